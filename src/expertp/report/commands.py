"""Commands that pages and terminals suggest to the user."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from expertp.analysis.remedies import Remedy
from expertp.study.spec import HP


def sweep(directory: Path) -> str:
    """Return the command that trains the missing runs of a study."""
    return f"expertp sweep STUDY.yaml --out {shlex.quote(str(directory))}"


def coordcheck(directory: Path) -> str:
    """Return the command that adds a coordinate check to a study."""
    return f"expertp coordcheck STUDY.yaml --out {shlex.quote(str(directory / 'coordcheck'))}"


def theory(directory: Path) -> str:
    """Return the command that adds the mean-field theory to a study."""
    return f"expertp theory compare --out {shlex.quote(str(directory / 'theory'))}"


def report(directory: Path) -> str:
    """Return the command that writes a study's report."""
    return f"expertp report {shlex.quote(str(directory))}"


def next_step(remedy: Remedy, hp: HP, directory: Path) -> str:
    """Return a sentence with the command that applies a remedy.

    >>> next_step(Remedy("seeds", seeds=(3, 4)), "log2_lr", Path("first"))
    '`expertp sweep STUDY.yaml --out first --refine MINUTES` adds seeds 3, 4'
    """
    command = sweep(directory)
    if remedy.kind == "runs":
        runs = f"{remedy.runs} missing runs" if remedy.runs != 1 else "missing run"
        return f"`{command}` trains the {runs}"
    if remedy.kind == "seeds":
        return f"`{command} --refine MINUTES` adds seeds {_listed(remedy.seeds)}"
    where = "beyond its edge" if remedy.kind == "wider" else "around the optimum"
    return f"`{command} --refine MINUTES` adds {_listed(remedy.values)} to the grid of {hp}, {where}"


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
