"""Commands that pages and terminals suggest to the user; they run as printed, from the same working directory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from expertp.spec import Spec
from expertp.util.machine import usable_cores
from expertp.util.text import command, plural

if TYPE_CHECKING:
    from expertp.analysis.remedies import Remedy
    from expertp.analysis.transfer import StudyVerdict
    from expertp.study.spec import HP
    from expertp.study.store import StudyDirectory
    from expertp.study.table import StudyTable


def sweep(directory: Path, *options: str) -> str:
    """Return the command that trains the missing runs of a study: study.json holds it with all its overrides."""
    return command("sweep", directory / "study.json", "--out", directory, *options)


def coordcheck(directory: Path, name: str = "coordcheck", options: Sequence[str] = ()) -> str:
    """Return the command that adds a coordinate check to a study, in its folder `name`."""
    return command("coordcheck", directory / "study.json", *options, "--out", directory / name)


def theory(directory: Path, options: Sequence[str] = ()) -> str:
    """Return the command that adds the mean-field theory to a study."""
    return command("theory", "compare", *options, "--out", directory / "theory")


def report(directory: Path) -> str:
    """Return the command that writes a study's report."""
    return command("report", directory)


def overrides(before: Spec, after: Spec, fields: Iterable[str] | None = None) -> list[str]:
    """Return the overrides that change one spec into another, in some of its fields (default: in all).

    >>> from expertp.spec import BaseHPs
    >>> overrides(BaseHPs(lr=0.01, init_std=0.02), BaseHPs(lr=0.02, init_std=0.02))
    ['lr=0.02']
    """
    found = []
    theirs, ours = before.to_dict(), after.to_dict()
    for name in ours if fields is None else fields:
        if theirs[name] == ours[name]:
            continue
        if isinstance(getattr(before, name), Spec) and isinstance(getattr(after, name), Spec):
            changed = {key: value for key, value in ours[name].items() if value != theirs[name].get(key)}
            found += [f"{name}.{key}={_yaml(value)}" for key, value in changed.items()]
        else:
            found.append(f"{name}={_yaml(ours[name])}")
    return found


def _yaml(value: object) -> str:
    return value if isinstance(value, str) and value.isalnum() else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Refinement:
    """One sweep that trains what would decide all open verdicts of a study.

    Args:
        command: the command.
        runs: number of runs that it adds to the study.
        minutes: the time for them, with one worker per core.
    """

    command: str
    runs: int
    minutes: int

    def __str__(self) -> str:
        if not self.runs:
            return f"`{self.command}`"
        return f"`{self.command}` ({plural(self.runs, 'run')}, about {self.minutes} min)"


def refinement(directory: StudyDirectory, table: StudyTable, verdict: StudyVerdict) -> Refinement:
    """Return the sweep that would decide all open verdicts of a study, with its cost."""
    from expertp.search.design import propose

    found = propose(directory, table, verdict)
    if not found:
        return Refinement(sweep(directory.path), 0, 0)
    minutes = math.ceil(sum(each.seconds for each in found) / usable_cores() / 60)
    line = sweep(directory.path, "--refine", str(minutes))
    return Refinement(line, sum(each.runs for each in found), minutes)


def next_step(remedy: Remedy, hp: HP) -> str:
    """Return what a remedy of an open verdict adds to a study.

    >>> from expertp.analysis.remedies import Remedy
    >>> next_step(Remedy("seeds", seeds=(3, 4)), "log2_lr")
    'add seeds 3, 4'
    """
    if remedy.kind == "runs":
        return f"train the {plural(remedy.runs, 'missing run') if remedy.runs != 1 else 'missing run'}"
    if remedy.kind == "seeds":
        return f"add seed{'s' if len(remedy.seeds) != 1 else ''} {_listed(remedy.seeds)}"
    where = "beyond its edge" if remedy.kind == "wider" else "around the optimum"
    return f"add {_listed(remedy.values)} to the grid of {hp}, {where}"


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
