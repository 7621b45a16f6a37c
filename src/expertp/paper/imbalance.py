"""Fig. 17, appendix D.3: balance of expert loads at all scales, and on a longer horizon.

The studies have more seeds than those of other findings, and other ones: over the seeds of these, loads at some sizes
were so close to the limit that noise decided.
"""

import math
from dataclasses import replace

import numpy as np

from expertp.analysis.balance import late_deviations
from expertp.analysis.paired import PairedDifference, paired
from expertp.figures import balance
from expertp.figures.save import render
from expertp.paper import horizon, zero_shot
from expertp.paper.finding import (
    Criteria,
    Finding,
    Outcome,
    PaperStudy,
    Tables,
    check_zero_shot_records,
    joint_models,
    zero_shot_study,
)

CLAIM = "Expert loads become even at every scale, and stay even on a longer horizon."

# Largest late deviation of a load from kappa that counts as balanced, relative to kappa. That of an expert without a
# token is 1.
BALANCED = 0.5
# The same for the median over sizes, by the paper's criterion: its curves fall to near 0.
NEAR_ZERO = 0.25
CRITERIA = Criteria(
    paper="The median over sizes of max |Load - kappa| in the last quarter of training is at most a quarter of kappa.",
    ours="At every size, max |Load - kappa| in the last quarter of training is at most half of kappa, beyond noise. It "
    "is open while a size has a diverged run.",
)


def _own(study: PaperStudy, name: str) -> PaperStudy:
    """Return a study with seeds of its own on cpu.

    Seeds differed by an s.d. of up to 0.03, relative to kappa: twelve see a distance of 0.03 from the limit with a
    power of 0.9.
    """
    return replace(study, name=name, cpu={**study.cpu, "seeds": list(range(3, 15))})


STUDIES = (
    _own(zero_shot.QUARTER, "balance-quarter"),
    _own(zero_shot.QUARTER_DEPTH, "balance-quarter-depth"),
    _own(
        zero_shot_study(
            "horizon",
            cpu={
                "train": horizon.LONG,
                "hps": {"lr": horizon.LONG_LR},
                "joint": joint_models({"larger": horizon.LARGER}),
            },
            paper={key: horizon.STUDY.paper[key] for key in ("train", "joint")},
        ),
        "balance-horizon",
    ),
)


def decide(tables: Tables) -> Outcome:
    """Compare the late loads of all sizes with kappa."""
    drawings, unknown, chance = [], [], 0.0
    late: dict[str, PairedDifference] = {}
    for name, table in tables.items():
        check_zero_shot_records(table, table.own)
        shown, train, kappa = balance.data(table), table.study.train, float(table.study.base.kappa)
        drawings.append(render(name, balance.draw, shown))
        chance = max(chance, math.sqrt((1 - kappa) / (kappa * train.batch_tokens)))
        for line in shown.lines:
            label = f"{name}, {line.axis} {line.label}"
            records = table.zero_shot_records(line.axis, line.size, table.own)
            shares = [deviation / kappa for deviation in late_deviations(records, train.steps).values()]
            if any(map(math.isnan, shares)):
                unknown.append(label)
            else:
                late[label] = paired(shares, [0.0] * len(shares))
    why = f"If the tokens of a batch were independent, chance alone would give loads an s.d. of {chance:.1%} of kappa."
    if unknown:
        why += f" Unknown, because a run diverges: {'; '.join(unknown)}."
    if not late:
        return Outcome([None], [None], "late loads are unknown", why, tuple(drawings))
    worst = max(late, key=lambda label: late[label].mean)
    median = float(np.median([each.mean for each in late.values()]))
    is_balanced = [each.is_at_most(BALANCED, comparisons=len(late)) for each in late.values()]
    return Outcome(
        parts=[*is_balanced, *(None for _ in unknown)],
        paper_parts=[median <= NEAR_ZERO],
        number=f"max |Load - kappa| / kappa late in training, mean over seeds: median over sizes {median:.2f}, largest "
        f"{late[worst].mean:.3f} \N{PLUS-MINUS SIGN} {late[worst].error:.3f} ({worst})",
        why=why,
        drawings=tuple(drawings),
    )


FINDING = Finding("imbalance", "Fig. 17, appendix D.3", CLAIM, CRITERIA, STUDIES, decide)
