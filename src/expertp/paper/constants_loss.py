"""Fig. 8, appendix D.1: loss over learning rate at the base, with tuned constants and with all constants one.

Criterion: at the best learning rate of each, all ones end with a significantly higher loss than the tuned constants;
and above that learning rate, more runs diverge with all ones.
"""

import math
from collections.abc import Mapping

from expertp.analysis.curves import curve
from expertp.analysis.paired import paired
from expertp.figures import curves
from expertp.figures.save import render
from expertp.paper.finding import Finding, Outcome, PaperStudy, Tables, is_positive
from expertp.study.cells import Arm
from expertp.study.table import StudyTable

CLAIM = "Without tuned constants, the loss is higher even at the best learning rate, and some seeds diverge above it."

TUNED, ONES = "tuned", "all ones"

STUDY = PaperStudy(
    "constants",
    cpu={
        "axes": {"width": [96]},
        "arms": {
            "paper": {"axes": ["width"], "retune": {"width": [96]}, "hps": {"constants": "paper", "lr": 1 / 128}},
            ONES: {"axes": ["width"], "retune": {"width": [96]}, "hps": {"constants": "ones"}},
        },
    },
    paper={
        "axes": {"width": [512]},
        "arms": {ONES: {"axes": ["width"], "retune": {"width": [512]}, "hps": {"constants": "ones"}}},
    },
    both={"grids": {"log2_init_std": None}, "verdict": None},
)


def constants_labels(table: StudyTable) -> Mapping[Arm, str]:
    """Return the name of the set of constants of each arm."""
    return {arm: TUNED if arm == table.own else arm.name for arm in table.arms}


def decide(tables: Tables) -> Outcome:
    """Compare all sets of constants, each at its own best learning rate."""
    table = tables[STUDY.name]
    axis, labels = table.axes[0], constants_labels(table)
    swept = {label: curve(table, axis, table.base(axis), arm, "log2_lr") for arm, label in labels.items()}
    found = {label: each for label, each in swept.items() if each}
    best = {label: each.losses[each.best_place] for label, each in found.items()}
    diverged = {label: sum(each.n_diverged[each.best_place + 1 :]) for label, each in found.items()}
    gaps = {label: paired(losses, best[TUNED]) for label, losses in best.items() if label != TUNED}
    is_lost = math.inf in best[ONES] and math.inf not in best[TUNED]
    # Equally many diverged runs decide nothing: larger models or a longer horizon might differ.
    is_less_stable = None if diverged[ONES] == diverged[TUNED] else diverged[ONES] > diverged[TUNED]
    measured = "; ".join(f"{label} minus {TUNED} {gap}" for label, gap in gaps.items())
    return Outcome(
        parts=[True if is_lost else is_positive(gaps[ONES]), is_less_stable],
        number=f"loss at the best learning rate of each set of constants: {measured}",
        why=f"Diverged runs above that learning rate: {', '.join(f'{name} {n}' for name, n in diverged.items())}.",
        drawings=(render("constants-loss", curves.draw, curves.base_data(table, "log2_lr", labels)),),
    )


FINDING = Finding("constants-loss", "Fig. 8, appendix D.1", CLAIM, (STUDY,), decide)
