"""Fig. 11, appendix D.3: two inits of the down-projections of experts, alpha^-1 (the rule) and alpha^-1/2 (fan-in).

On cpu, the base's experts have the customary shape, four times as wide as the stream, and are trained with the tuned
constants and with the paper's.

Criterion: for every set of constants with which the rule keeps the early collapse (within 2% of the base's loss until
half of its loss drop), fan-in does not keep it, beyond the noise of the base's seeds.
"""

from expertp.paper.collapse import COLLAPSED, MARKS, MEASURED, NOISE, compare_with_base, is_collapsed, largest
from expertp.paper.finding import Finding, Outcome, Tables, zero_shot_study
from expertp.spec import RuleSetName

CLAIM = (
    "A fan-in init of the down-projections (alpha^-1/2) breaks the early collapse of training curves that alpha^-1 "
    "keeps."
)

FAN_IN: RuleSetName = "fan_in_down"

STUDY = zero_shot_study(
    "fan-in-down",
    cpu={
        "base": {"alpha_ffn": 4},
        "axes": {"alpha": [4, 8, 16]},
        "arms": {
            FAN_IN: {"axes": ["alpha"]},
            "paper": {"axes": ["alpha"], "hps": {"constants": "paper", "lr": 1 / 128}},
            "paper, fan-in": {"axes": ["alpha"], "hps": {"constants": "paper", "lr": 1 / 128, "rules": FAN_IN}},
        },
        "seeds": [0, 1, 2, 3, 4, 5, 6, 7],
    },
    paper={"axes": {"alpha": [1, 2, 4, 8]}, "arms": {FAN_IN: {"axes": ["alpha"]}}},
)


def decide(tables: Tables) -> Outcome:
    """Compare the rule with fan-in, for every set of constants."""
    table = tables[STUDY.name]
    drawings, measured, parts = [], [], []
    for arm in table.arms:
        if arm.hps.rules == FAN_IN:
            continue
        other = next(each for each in table.arms if each.hps == arm.hps.replace(rules=FAN_IN))
        found = []
        for each in (arm, other):
            drawing, by_axis = compare_with_base(table, each, each.name.replace(" ", "-"))
            drawings.append(drawing)
            found.append(by_axis["alpha"])
        rule, fan_in = found
        label = "tuned" if arm == table.own else arm.name
        measured.append(f"{label} constants {largest(rule)} with the rule, {largest(fan_in)} with fan-in")
        if is_collapsed(rule):
            is_kept = is_collapsed(fan_in)
            parts.append(None if is_kept is None else not is_kept)
    return Outcome(
        parts=parts or [None],
        number=f"{MEASURED}: {'; '.join(measured)}",
        why=f"The rule must stay within {COLLAPSED:.0%}, and fan-in must exceed both this and {NOISE}. A set of "
        f"constants with which the rule itself exceeds it is not judged. {MARKS}",
        drawings=tuple(drawings),
    )


FINDING = Finding("fan-in-down", "Fig. 11, appendix D.3", CLAIM, (STUDY,), decide)
