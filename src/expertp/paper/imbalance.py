"""Fig. 17, appendix D.3: balance of expert loads at all scales, and on a longer horizon."""

import math

import numpy as np

from expertp.figures import balance
from expertp.figures.save import render
from expertp.paper import horizon, zero_shot
from expertp.paper.finding import Criteria, Finding, Outcome, Tables, check_zero_shot_records

CLAIM = "Expert loads become even at every scale, and stay even on a longer horizon."

# Largest late deviation of a load from kappa that counts as balanced, relative to kappa. That of an expert without a
# token is 1.
BALANCED = 0.5
# The same for the median over sizes, by the paper's criterion: its curves fall to near 0.
NEAR_ZERO = 0.25
CRITERIA = Criteria(
    paper="The median over sizes of max |Load - kappa| in the last quarter of training is at most a quarter of kappa.",
    ours="At every size, max |Load - kappa| in the last quarter of training is at most half of kappa. It is open while "
    "a size has a diverged run.",
)


def decide(tables: Tables) -> Outcome:
    """Compare the late loads of all sizes with kappa."""
    drawings, late, unknown, chance = [], {}, [], 0.0
    for name, table in tables.items():
        check_zero_shot_records(table, table.own)
        shown, train, kappa = balance.data(table), table.study.train, float(table.study.base.kappa)
        drawings.append(render(f"balance-{name}", balance.draw, shown))
        chance = max(chance, math.sqrt((1 - kappa) / (kappa * train.batch_tokens)))
        for line in shown.lines:
            label, deviation = f"{name}, {line.axis} {line.label}", line.load.late(train.steps)
            if math.isnan(deviation):
                unknown.append(label)
            else:
                late[label] = deviation / kappa
    why = f"If the tokens of a batch were independent, chance alone would give loads an s.d. of {chance:.1%} of kappa."
    if unknown:
        why += f" Unknown, because a run diverges: {'; '.join(unknown)}."
    if not late:
        return Outcome([None], [None], "late loads are unknown", why, tuple(drawings))
    worst, median = max(late, key=lambda label: late[label]), float(np.median(list(late.values())))
    return Outcome(
        parts=[*(deviation <= BALANCED for deviation in late.values()), *(None for _ in unknown)],
        paper_parts=[median <= NEAR_ZERO],
        number=f"max |Load - kappa| / kappa late in training: median {median:.2f}, largest {late[worst]:.2f} ({worst})",
        why=why,
        drawings=tuple(drawings),
    )


FINDING = Finding(
    "imbalance",
    "Fig. 17, appendix D.3",
    CLAIM,
    CRITERIA,
    (zero_shot.QUARTER, zero_shot.QUARTER_DEPTH, horizon.STUDY),
    decide,
)
