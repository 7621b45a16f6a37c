"""Fig. 11, appendix D.3: two inits of the down-projections of experts, alpha^-1 (the rule) and alpha^-1/2 (fan-in).

Both are compared under the same constants. The claim is judged with the study's own; on cpu, the paper's stand beside
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from expertp.analysis.collapse import Gap, early_gap
from expertp.figures.save import Drawing
from expertp.paper.collapse import COLLAPSED, MARKS, EarlyCurves, early_curves
from expertp.paper.constants import PAPER, PAPER_HPS, constants_label
from expertp.paper.finding import Criteria, Finding, Outcome, Tables, is_positive, zero_shot_study
from expertp.spec import RuleSetName
from expertp.study.cells import Arm
from expertp.study.table import StudyTable

CLAIM = (
    "A fan-in init of the down-projections (alpha^-1/2) breaks the early collapse of training curves that alpha^-1 "
    "keeps."
)
CRITERIA = Criteria(
    paper=f"Until the base has made half of its loss drop, the rule stays within {COLLAPSED:.0%} of the base's loss, "
    "and fan-in does not.",
    ours="The mean relative gap between base and largest size, from the start to half of the base's loss drop, is "
    "significantly larger with fan-in than with the rule.",
)

AXIS = "alpha"
FAN_IN: RuleSetName = "fan_in_down"

STUDY = zero_shot_study(
    "fan-in-down",
    cpu={
        "axes": {AXIS: [1, 2, 4]},
        "arms": {
            FAN_IN: {"axes": [AXIS]},
            PAPER: {"axes": [AXIS], "hps": PAPER_HPS},
            f"{PAPER}, fan-in": {"axes": [AXIS], "hps": {**PAPER_HPS, "rules": FAN_IN}},
        },
        "seeds": [0, 1, 2, 3],
    },
    paper={"axes": {AXIS: [1, 2, 4, 8]}, "arms": {FAN_IN: {"axes": [AXIS]}}},
)


@dataclass(frozen=True)
class _Side:
    """The training curves of one arm, with the gap between base and largest size."""

    drawing: Drawing
    curves: EarlyCurves
    gap: Gap


@dataclass(frozen=True)
class _Pair:
    """The rule and fan-in under one set of constants."""

    constants: str
    rule: _Side
    fan_in: _Side

    @property
    def is_worse(self) -> bool | None:
        """Whether fan-in has the larger gap; a run that diverges early has an infinite one."""
        rule, fan_in = self.rule.gap, self.fan_in.gap
        if math.isinf(rule.mean) or math.isinf(fan_in.mean):
            return None if rule.mean == fan_in.mean else math.isinf(fan_in.mean)
        return is_positive(fan_in.beyond(rule))

    def __str__(self) -> str:
        by = self.fan_in.gap.beyond(self.rule.gap)
        larger = (
            f" (|gap| {100 * by.mean:+.2g} ± {100 * by.error:.2g} percentage points)" if not math.isnan(by.mean) else ""
        )
        return f"{self.constants} constants {self.rule.gap} with the rule, {self.fan_in.gap} with fan-in{larger}"


def decide(tables: Tables) -> Outcome:
    """Compare the rule with fan-in, for every set of constants."""
    table = tables[STUDY.name]
    pairs = [
        _Pair(constants_label(arm.hps), _side(table, arm), _side(table, _with_fan_in(table, arm)))
        for arm in table.arms
        if arm.hps.rules != FAN_IN
    ]
    own = pairs[0]
    windows = " and ".join(dict.fromkeys(str(each.rule.curves.until) for each in pairs))
    return Outcome(
        parts=[own.is_worse],
        paper_parts=[own.rule.curves.is_collapsed and not own.fan_in.curves.is_collapsed],
        number=f"gap between base and largest size: {'; '.join(map(str, pairs))}",
        why=f"The claim is judged with the study's own constants ({own.constants}). With them, the largest difference "
        f"to the base is {own.rule.curves.largest} with the rule and {own.fan_in.curves.largest} with fan-in. The "
        f"window ends at step {windows}. {MARKS}",
        drawings=tuple(each.drawing for pair in pairs for each in (pair.rule, pair.fan_in)),
    )


def _with_fan_in(table: StudyTable, arm: Arm) -> Arm:
    """Return the arm with fan-in and otherwise the same hyperparameters."""
    return next(each for each in table.arms if each.hps == arm.hps.replace(rules=FAN_IN))


def _side(table: StudyTable, arm: Arm) -> _Side:
    drawing, by_axis = early_curves(table, arm, arm.name.replace(" ", "-"))
    found, sizes = by_axis[AXIS], table.sizes(AXIS)
    return _Side(drawing, found, early_gap(found.losses, table.base(AXIS), sizes[-1], found.until))


FINDING = Finding("fan-in-down", "Fig. 11, appendix D.3", CLAIM, CRITERIA, (STUDY,), decide)
