"""Fig. 8, appendix D.1: loss over learning rate at the base, with tuned constants and with all constants one.

The tuned constants are the study's own: in the paper the paper's; on cpu those of the profile, and the paper's stand
beside them. All sets have the same grid of learning rates.
"""

from collections.abc import Mapping

from expertp.analysis.curves import curve
from expertp.analysis.paired import paired
from expertp.analysis.stability import STABLE, UNSTABLE, common_octaves, unstable_seeds
from expertp.figures import curves
from expertp.figures.save import render
from expertp.paper.constants import ONES, ONES_HPS, PAPER, PAPER_HPS, constants_label
from expertp.paper.finding import Criteria, Finding, Outcome, PaperStudy, Tables, is_positive
from expertp.study.cells import Arm
from expertp.study.table import StudyTable

CLAIM = "Without tuned constants, the loss is higher even at the best learning rate, and some seeds diverge above it."
CRITERIA = Criteria(
    paper="At the best learning rate of each set, the median loss of all ones is higher than that of the "
    "study's own constants; above that learning rate, more seeds are unstable with all ones.",
    ours="Each set has the init std that was its best in a pilot. Loss: at the best learning rate of each set, all "
    "ones have a significantly higher loss than the study's own constants. Stability: significantly more seeds have an "
    "unstable run with all ones, above the best learning rate of each set and up to as many octaves above it as all "
    f"grids cover (Fisher's exact test, one-sided, 5%); it does not hold if the upper 95% bound of their share is "
    f"below {STABLE:.0%}. A run is unstable if it diverges, or ends {UNSTABLE} nats above the lowest median loss of "
    "its set.",
)

STUDY = PaperStudy(
    "constants",
    cpu={
        "axes": {"width": [64]},
        "arms": {
            PAPER: {"axes": ["width"], "retune": {"width": [64]}, "hps": PAPER_HPS},
            ONES: {"axes": ["width"], "retune": {"width": [64]}, "hps": ONES_HPS},
        },
        "grids": {"log2_lr": [-8.5, -7.5, -6.5, -5.5, -4.5, -3.5]},
        # Others than those over which all sets had the init std of the study's own.
        "seeds": list(range(8, 16)),
    },
    paper={
        "axes": {"width": [512]},
        "arms": {ONES: {"axes": ["width"], "retune": {"width": [512]}, "hps": {"constants": "ones"}}},
    },
    both={"grids": {"log2_init_std": None}, "verdict": None},
)


def constants_labels(table: StudyTable) -> Mapping[Arm, str]:
    """Return the name of the set of constants of each arm."""
    return {arm: constants_label(arm.hps) for arm in table.arms}


def decide(tables: Tables) -> Outcome:
    """Compare all sets of constants, each at its own best learning rate, and how many seeds are unstable above it."""
    table = tables[STUDY.name]
    axis, labels = table.axes[0], constants_labels(table)
    own = labels[table.own]
    swept = {label: curve(table, axis, table.base(axis), arm, "log2_lr") for arm, label in labels.items()}
    found = {label: each for label, each in swept.items() if each}
    best = {label: each.losses[each.best_place] for label, each in found.items()}
    octaves = common_octaves(found.values())
    unstable = {label: unstable_seeds(each, octaves) for label, each in found.items()}
    gaps = {label: paired(losses, best[own]) for label, losses in best.items() if label != own}
    medians = {label: each.medians[each.best_place] for label, each in found.items()}
    # Diverged runs at every learning rate of all ones, but not of the own constants, are the higher loss.
    is_higher = True if medians[own] < medians[ONES] == float("inf") else is_positive(gaps[ONES])
    rates = ", ".join(f"{label} 2^{each.best_value:g}" for label, each in found.items())
    differences = "; ".join(f"{label} minus {own} {gap}" for label, gap in gaps.items())
    shares = ", ".join(f"{label} {each}" for label, each in unstable.items())
    return Outcome(
        parts=[is_higher, unstable[ONES].are_more_than(unstable[own])],
        paper_parts=[medians[ONES] > medians[own], unstable[ONES].unstable > unstable[own].unstable],
        number=f"loss at the best learning rate of each set of constants: {differences}; seeds with an "
        f"unstable run up to {octaves:g} octaves above it: {shares}",
        why=f"Best learning rates: {rates}.",
        drawings=(render("constants-loss", curves.draw, curves.base_data(table, "log2_lr", labels)),),
    )


FINDING = Finding("constants-loss", "Fig. 8, appendix D.1", CLAIM, CRITERIA, (STUDY,), decide)
