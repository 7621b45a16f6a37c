"""What a figure of the paper says, and what came of it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from expertp.figures.save import Drawing
from expertp.report.reading import Reading

Verdict = Literal["HOLDS", "DOES NOT HOLD AT THIS SCALE", "INCONCLUSIVE"]
Readings = Mapping[str, Reading]


@dataclass(frozen=True)
class Outcome:
    """What came of a claim.

    Args:
        verdict: whether it holds here.
        number: what was measured, in a few words.
        why: one or two sentences that a reader with the figure before them needs.
    """

    verdict: Verdict
    number: str
    why: str


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
