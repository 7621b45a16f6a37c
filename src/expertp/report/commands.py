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
    from expertp.analysis.verdict import StudyVerdict
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
class Deciding:
    """The sweep that would decide the open verdicts of a study.

    Args:
        command: the command.
        runs: number of runs that its next look adds to the study.
        minutes: the time for them, with one worker per core.
    """

    command: str
    runs: int
    minutes: int

    def __str__(self) -> str:
        if not self.runs:
            return f"`{self.command}`"
        return f"`{self.command}` ({plural(self.runs, 'run')} next, about {self.minutes} min)"


def deciding(directory: StudyDirectory, table: StudyTable, verdict: StudyVerdict) -> Deciding:
    """Return the sweep that would decide all open verdicts of a study, with the cost of its next look."""
    from expertp.search.design import propose

    line = sweep(directory.path, "--until", "decided")
    if verdict.missing:
        return Deciding(line if directory.study.chosen is not None else sweep(directory.path), 0, 0)
    found = [each for each in propose(table, verdict) if not math.isnan(each.seconds)]
    minutes = math.ceil(sum(each.seconds for each in found) / usable_cores() / 60)
    return Deciding(line, sum(each.runs for each in found), minutes)
