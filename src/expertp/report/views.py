"""What a page is made of: values that the template turns into HTML, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote


@dataclass(frozen=True)
class Picture:
    """A figure with what it shows, how many runs it rests on, and its numbers to take away.

    Args:
        name: that of its files.
        svg: an element of the page, safe as it is.
        caption: how to read it.
        counts: n, diverged and missing runs.
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
        """The numbers as an address that needs no file and no network."""
        return f"data:text/csv;charset=utf-8,{quote(self.csv, safe=',')}"


@dataclass(frozen=True)
class Missing:
    """Data that is not there, and the command that makes it; None where no command does yet."""

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
    """Text to be copied: a command, JSON, code."""

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
    """A part of the page: a question and what answers it."""

    anchor: str
    title: str
    lead: str
    items: tuple[Item, ...]
    number: str = ""


@dataclass(frozen=True)
class VerdictRow:
    """One line of the table at the top."""

    axis: str
    hp: str
    verdict: str
    reason: str
    drift: str
    excess: str
    limit: str
    seeds: str
    diverged: str
    next_step: str


@dataclass(frozen=True)
class Page:
    """All that the template fills in."""

    title: str
    intro: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    verdict_sum: str
    verdict_note: str
    verdicts: tuple[VerdictRow, ...]
    missing: Missing | None
    sections: tuple[Section, ...]
    written_by: str
