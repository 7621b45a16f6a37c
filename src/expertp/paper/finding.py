"""The types of a finding: what the paper claims, which studies answer it, what came out, and the record of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from pydantic import TypeAdapter

from expertp.analysis.paired import PairedDifference
from expertp.analysis.seed_curves import Records
from expertp.errors import RunError
from expertp.figures.save import Drawing
from expertp.study.cells import Arm
from expertp.study.table import CellResult, StudyTable

Answer = Literal["HOLDS", "DOES NOT HOLD AT THIS SCALE", "INCONCLUSIVE"]
Tables = Mapping[str, StudyTable]  # by the name of the study


def is_positive(difference: PairedDifference) -> bool | None:
    """Return whether a difference is above zero; None where it is not significant, or where a run has diverged."""
    return True if difference.is_higher else False if difference.is_lower else None


@dataclass(frozen=True)
class PaperStudy:
    """A study of the paper.

    Args:
        name: its name.
        cpu: what differs from the `common` sections of the profile `cpu`: sections of a study, `corpus` where it is not
            the profile's first, and `lr_octaves` or `init_octaves` where the learning rates or init stds of the grid
            are given in octaves from the study's own.
        paper: the same for the profile `paper`.
        both: changes in both profiles.
        is_adaptive: whether a profile with a limit of time trains only the cells that decide the verdicts.
    """

    name: str
    cpu: Mapping[str, Any]
    paper: Mapping[str, Any]
    both: Mapping[str, Any] = field(default_factory=dict)
    is_adaptive: bool = False


def zero_shot_study(
    name: str, cpu: Mapping[str, Any], paper: Mapping[str, Any], both: Mapping[str, Any] = MappingProxyType({})
) -> PaperStudy:
    """Return a study that trains every size with the base's hyperparameters only, and has no verdict."""
    settings = {"lr_octaves": [0], "grids": {"log2_init_std": None}, "verdict": None, **both}
    return PaperStudy(name, cpu, paper, settings)


def joint_models(models: Mapping[str, Mapping[str, Any]], **shared: Any) -> dict[str, Any]:
    """Return the section `joint` of a study with one model per axis; `shared` are settings of all models."""
    return {name: {"models": [{**shared, **model}]} for name, model in models.items()}


@dataclass(frozen=True)
class Criteria:
    """When a claim holds: a sentence with the paper's own criterion, read off its figure or text, and one with ours."""

    paper: str
    ours: str


def answer(parts: Sequence[bool | None]) -> Answer:
    """Return whether a claim holds, given its parts; None: noise could decide a part either way.

    >>> [answer(parts) for parts in ([True, True], [True, None], [True, None, False])]
    ['HOLDS', 'INCONCLUSIVE', 'DOES NOT HOLD AT THIS SCALE']
    """
    if False in parts:
        return "DOES NOT HOLD AT THIS SCALE"
    return "INCONCLUSIVE" if None in parts else "HOLDS"


@dataclass(frozen=True)
class Outcome:
    """What came out for a claim.

    Args:
        parts: whether each part of the claim holds by our criterion; None where noise could decide it either way.
        paper_parts: the same by the paper's criterion, which looks at medians and ignores noise.
        number: what was measured, in a few words.
        why: one or two sentences that explain the answer to a reader who sees the figure.
        drawings: the figures.
        table: all verdicts, where a sentence cannot hold them; the first row is the header.
    """

    parts: Sequence[bool | None]
    paper_parts: Sequence[bool | None]
    number: str
    why: str
    drawings: tuple[Drawing, ...]
    table: tuple[tuple[str, ...], ...] = ()

    @property
    def answer(self) -> Answer:
        """Whether the claim holds here, by our criterion."""
        return answer(self.parts)

    @property
    def paper_answer(self) -> Answer:
        """Whether the claim holds here, by the paper's criterion."""
        return answer(self.paper_parts)


@dataclass(frozen=True)
class Finding:
    """One finding of the paper.

    Args:
        name: its name here.
        where: its place in the paper.
        claim: what the paper says.
        criteria: when the claim holds.
        studies: the studies that answer it; empty where nothing is trained.
        decide: draws the figures and judges the claim, given the tables of these studies.
    """

    name: str
    where: str
    claim: str
    criteria: Criteria
    studies: tuple[PaperStudy, ...]
    decide: Callable[[Tables], Outcome]


@dataclass(frozen=True, kw_only=True)
class FindingRecord:
    """finding.json: the outcome of a finding, with the names of its studies and figures, its texts and its cost."""

    name: str
    where: str
    claim: str
    criteria: Criteria | None = None  # None in records of earlier versions
    studies: tuple[str, ...]
    pictures: tuple[str, ...]
    answer: Answer
    paper_answer: Answer | None = None  # None in records of earlier versions
    number: str
    why: str
    table: tuple[tuple[str, ...], ...] = ()
    profile: str
    text: tuple[str, ...]
    cost: str

    def is_judged_by(self, criteria: Criteria) -> bool:
        """Return whether the answer was given by these criteria; an earlier version may have had others."""
        return self.criteria == criteria

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of finding.json."""
        return {_KEYS.get(name, name): value for name, value in asdict(self).items()}

    @staticmethod
    def from_dict(tree: Mapping[str, Any]) -> FindingRecord:
        """Return the record of a tree; a tree that is none is a `ValueError`."""
        fields = {key: field for field, key in _KEYS.items()}
        return _RECORD.validate_python({fields.get(key, key): value for key, value in tree.items()})


# Keys of finding.json that are not the names of their fields.
_KEYS = {"answer": "verdict", "paper_answer": "verdict_by_paper"}
_RECORD = TypeAdapter(FindingRecord)


def complete_records(table: StudyTable, rows: tuple[CellResult, ...]) -> Records:
    """Return the training records of runs of one model by seed; a run without records is a `RunError`."""
    found = table.records(rows)
    if len(found) < len(rows):
        missing = f"{len(rows) - len(found)} of {len(rows)} runs of {rows[0].cell.size.model.describe()}"
        raise RunError(
            f"{table.study.name}: {missing} have no records of their training curves; remove their directories and "
            "run the same command again to train them"
        )
    return found


def check_zero_shot_records(table: StudyTable, arm: Arm) -> None:
    """Raise a `RunError` if a zero-shot run of an arm has no training records."""
    for axis in table.axes_of(arm):
        for size in table.sizes(axis):
            complete_records(table, table.where(axis=axis, size=size, arm=arm, hp=None))
