"""Fig. 3, Finding 1.2: early in training, curves of larger models lie on the base's.

Runs that end with the warm-up have many seeds, and show how gaps shrink; runs of the whole horizon show how far the
window reaches, and the figures. A second set of constants stands beside the claim: on cpu the paper's, in the paper all
ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from expertp.analysis.collapse import NO_GAP, Shrinkage, shrinkage
from expertp.paper import zero_shot
from expertp.paper.collapse import COLLAPSED, MARKS, EarlyCurves, early_curves, losses_by_size
from expertp.paper.finding import Criteria, Finding, Outcome, PaperStudy, Tables, check_zero_shot_records

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


def _early(study: PaperStudy) -> PaperStudy:
    """Return the first steps of a study's runs, with other seeds.

    On cpu, gaps shrank by 0.4 to 1.4 s.d. of a seed over the first three seeds: 64 seeds see 0.4 with a power of 0.88.
    """
    cpu = {"seeds": list(range(3, 67)), "train": {"steps": 75, "eval_every": 75, "eval_tokens": 8192}}
    paper = {"seeds": list(range(4, 16)), "train": {"steps": 1000, "eval_every": 1000}}
    return replace(
        study,
        name=f"early-{study.name.removeprefix('zero-shot-')}",
        cpu={**study.cpu, **cpu},
        paper={**study.paper, **paper},
    )


# The study of first steps, by the name of that of whole runs; and all studies of whole runs.
EARLY = {study.name: _early(study) for study in (zero_shot.QUARTER, zero_shot.TWELFTH)}
STUDIES = (*EARLY, BESIDE.name)


@dataclass(frozen=True)
class _Judged:
    """The curves of one axis of a study.

    Args:
        study: name of the study.
        axis: the axis.
        curves: the curves of whole runs.
        until: last step of the window in which gaps are measured.
        shrinkage: how gaps shrink; None where there are fewer than three sizes.
    """

    study: str
    axis: str
    curves: EarlyCurves
    until: int
    shrinkage: Shrinkage | None

    @property
    def row(self) -> tuple[str, ...]:
        """The row of the table."""
        start = (self.study, self.axis, f"1 to {self.until}", self.curves.largest)
        if self.shrinkage is None:
            return (*start, *"-" * (len(HEAD) - len(start)))
        gaps = (str(len(self.shrinkage.first.by_seed)), str(self.shrinkage.first), str(self.shrinkage.last))
        ratios = (f"{self.shrinkage.ratio:.2f}", f"{self.shrinkage.expected:.2f}")
        return (*start, *gaps, *ratios, {True: "yes", False: "no", None: "open"}[self.shrinkage.is_shrinking])


HEAD = (
    *("study", "axis", "window (steps)", "largest difference to the base"),
    *("seeds", "gap of the first doubling", "gap of the last", "ratio", "ratio in theory", "shrinks"),
)


def decide(tables: Tables) -> Outcome:
    """Judge on every axis how the gap between neighbouring sizes shrinks."""
    drawings, found = [], []
    for name in STUDIES:
        table, early = tables[name], tables[EARLY[name].name] if name in EARLY else tables[name]
        check_zero_shot_records(early, early.own)
        drawing, by_axis = early_curves(table, table.own, name)
        drawings.append(drawing)
        for axis, each in by_axis.items():
            until = min(each.until, early.study.train.steps)
            gaps = shrinkage(losses_by_size(early, axis, early.own), until)
            found.append(_Judged(name, axis, each, until, gaps))
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
        f"window, and in theory about 1 / size. Runs that end with the warm-up, on seeds of their own, measure it. "
        f"{BESIDE.name} is not part of the claim, and has no such runs. {MARKS}",
        drawings=tuple(drawings),
        table=(HEAD, *(each.row for each in found)),
    )


FINDING = Finding(
    "loss-collapse",
    "Fig. 3, Finding 1.2",
    CLAIM,
    CRITERIA,
    (zero_shot.QUARTER, zero_shot.TWELFTH, BESIDE, *EARLY.values()),
    decide,
)
