"""The elements of a page: values that the template turns into HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote


@dataclass(frozen=True)
class Picture:
    """A figure with its caption and its numbers.

    Args:
        name: name of its files.
        svg: the figure as HTML, not escaped.
        caption: how to read it.
        counts: number of seeds, and of finished, diverged and missing runs.
        csv: the plotted numbers.
    """

    name: str
    svg: str
    caption: str
    counts: str
    csv: str
    kind: Literal["picture"] = "picture"

    @property
    def csv_link(self) -> str:
        """The numbers as a data URL."""
        return f"data:text/csv;charset=utf-8,{quote(self.csv, safe=',')}"


@dataclass(frozen=True)
class Missing:
    """Missing data, and the command that produces it; None where there is no command."""

    text: str
    command: str | None
    kind: Literal["missing"] = "missing"


@dataclass(frozen=True)
class Table:
    """A table; the last `numeric` columns are numbers."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: int = 0
    is_folded: bool = False
    kind: Literal["table"] = "table"


@dataclass(frozen=True)
class Listing:
    """Text to copy: a command, JSON or code."""

    anchor: str
    title: str
    text: str
    is_folded: bool = False
    kind: Literal["listing"] = "listing"


@dataclass(frozen=True)
class Note:
    """A sentence."""

    text: str
    kind: Literal["note"] = "note"


Item = Picture | Missing | Table | Listing | Note


@dataclass(frozen=True)
class Section:
    """A section of the page; numbered sections ask a question that their items answer."""

    anchor: str
    title: str
    lead: str
    items: tuple[Item, ...]
    number: str = ""


@dataclass(frozen=True)
class VerdictRow:
    """One row of the table of verdicts."""

    axis: str
    arm: str
    hp: str
    verdict: str
    has_no_power: bool
    reason: str
    cost: str
    confidence: str
    tolerance: str
    sensitivity: str
    drift: str
    seeds: str
    diverged: str
    next_step: str


@dataclass(frozen=True)
class Page:
    """The contents of the page."""

    digest: str
    title: str
    summary: tuple[str, ...]
    headline: Picture | None
    intro: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    verdict_sum: str
    verdict_note: str
    verdicts: tuple[VerdictRow, ...]
    next_cells: Table | None
    missing: Missing | None
    sections: tuple[Section, ...]
    written_by: str
