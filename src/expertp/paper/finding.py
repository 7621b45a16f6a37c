"""What a figure of the paper says, and what came of it here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from expertp.analysis.paired import Change
from expertp.figures.save import Drawing
from expertp.report.reading import Reading

Verdict = Literal["HOLDS", "DOES NOT HOLD AT THIS SCALE", "INCONCLUSIVE"]
Readings = Mapping[str, Reading]
# Largest deviation of an expert's load from kappa, late in training, that counts as balanced; a share of kappa. That of
# an expert without a token is 1.
BALANCED = 0.5


def verdict_of(answers: Iterable[bool | None]) -> Verdict:
    """Return what the answers to all parts of a claim come to; None is an answer that chance could have given.

    >>> verdict_of([True, True]), verdict_of([True, None]), verdict_of([True, None, False])
    ('HOLDS', 'INCONCLUSIVE', 'DOES NOT HOLD AT THIS SCALE')
    """
    known = list(answers)
    if False in known:
        return "DOES NOT HOLD AT THIS SCALE"
    return "INCONCLUSIVE" if None in known else "HOLDS"


def is_positive(change: Change) -> bool | None:
    """Answer whether a difference is above zero; None where chance explains it, or a run of it has diverged."""
    return True if change.is_higher else False if change.is_lower else None


@dataclass(frozen=True)
class Outcome:
    """What came of a claim.

    Args:
        verdict: whether it holds here.
        number: what was measured, in a few words.
        why: one or two sentences that a reader with the figure before them needs.
        table: all that was judged, where it is more than a sentence can hold; its first row says what columns are.
    """

    verdict: Verdict
    number: str
    why: str
    table: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Shown:
    """A finding's pictures and its outcome."""

    drawings: tuple[Drawing, ...]
    outcome: Outcome


@dataclass(frozen=True)
class Finding:
    """One figure of the paper.

    Args:
        name: what it shows, in a word or two.
        where: its place in the paper.
        claim: what the paper says of it.
        studies: of the profile, that it is drawn from; none where it needs no training.
        show: draws and judges, given these studies.
    """

    name: str
    where: str
    claim: str
    studies: tuple[str, ...]
    show: Callable[[Readings], Shown]
