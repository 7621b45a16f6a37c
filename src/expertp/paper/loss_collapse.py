"""Fig. 3, Finding 1.2: early in training, curves of larger models lie on the base's.

A second set of constants stands beside the claim: on cpu the paper's, in the paper all ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from expertp.analysis.collapse import NO_GAP, Shrinkage, shrinkage
from expertp.paper import zero_shot
from expertp.paper.collapse import COLLAPSED, MARKS, EarlyCurves, early_curves
from expertp.paper.finding import Criteria, Finding, Outcome, Tables

CLAIM = (
    "With transferred hyperparameters, the training curves of wider models and of models with more or larger experts "
    "lie on the base's early in training."
)
CRITERIA = Criteria(
    paper=f"Every size stays within {COLLAPSED:.0%} of the base's loss until the base has made half of its loss drop.",
    ours="On every axis with three or more sizes, the mean relative gap between neighbouring sizes, from the start to "
    "half of the base's loss drop, is significantly smaller at the last doubling than at the first, or both are at "
    f"most {NO_GAP:.1%}, beyond noise.",
)

# Shown, but not part of the claim.
BESIDE = zero_shot.QUARTER_BESIDE


@dataclass(frozen=True)
class _Judged:
    """The curves of one axis of a study; `shrinkage` is None where there are fewer than three sizes."""

    study: str
    axis: str
    curves: EarlyCurves
    shrinkage: Shrinkage | None

    @property
    def row(self) -> tuple[str, ...]:
        """The row of the table."""
        start = (self.study, self.axis, f"1 to {self.curves.until}", self.curves.largest)
        if self.shrinkage is None:
            return (*start, "-", "-", "-", "-", "-")
        gaps = (str(self.shrinkage.first), str(self.shrinkage.last))
        ratios = (f"{self.shrinkage.ratio:.2f}", f"{self.shrinkage.expected:.2f}")
        return (*start, *gaps, *ratios, {True: "yes", False: "no", None: "open"}[self.shrinkage.is_shrinking])


HEAD = (
    *("study", "axis", "window (steps)", "largest difference to the base", "gap of the first doubling"),
    *("gap of the last", "ratio", "ratio in theory", "shrinks"),
)


def decide(tables: Tables) -> Outcome:
    """Judge on every axis how the gap between neighbouring sizes shrinks."""
    drawings, found = [], []
    for name, table in tables.items():
        drawing, by_axis = early_curves(table, table.own, name)
        drawings.append(drawing)
        found += [_Judged(name, axis, each, shrinkage(each.losses, each.until)) for axis, each in by_axis.items()]
    claimed = [each for each in found if each.study != BESIDE.name]
    judged = [each for each in claimed if each.shrinkage is not None]
    worst = max(claimed, key=lambda each: each.curves.collapse.max_deviation_until_half)
    ratios = [
        f"{each.study}, {each.axis} {each.shrinkage.ratio:.2f} (theory {each.shrinkage.expected:.2f})"
        for each in judged
        if each.shrinkage is not None
    ]
    return Outcome(
        parts=[each.shrinkage.is_shrinking for each in judged if each.shrinkage is not None] or [None],
        paper_parts=[each.curves.is_collapsed for each in claimed],
        number=f"gap of the last doubling divided by that of the first: {'; '.join(ratios) or 'unknown'}; largest "
        f"difference to the base {worst.curves.largest} ({worst.study}, {worst.axis})",
        why=f"A gap is the mean of (loss of the larger size - loss of the smaller) / loss of the smaller in the "
        f"window, and in theory about 1 / size. {BESIDE.name} is not part of the claim. {MARKS}",
        drawings=tuple(drawings),
        table=(HEAD, *(each.row for each in found)),
    )


FINDING = Finding(
    "loss-collapse",
    "Fig. 3, Finding 1.2",
    CLAIM,
    CRITERIA,
    (zero_shot.QUARTER, zero_shot.TWELFTH, BESIDE),
    decide,
)
