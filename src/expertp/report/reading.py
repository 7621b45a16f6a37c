"""The results of a study directory and their verdicts, read once for a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from expertp.analysis.transfer import judge
from expertp.analysis.verdict import StudyVerdict
from expertp.report.commands import Deciding, deciding
from expertp.search.design import Proposal, next_cells
from expertp.spec import Model
from expertp.study.cells import Arm
from expertp.study.spec import StudySpec
from expertp.study.store import StudyDirectory
from expertp.study.table import DONE, CellResult, StudyTable, unique_results
from expertp.util.text import plural

STATUSES = ("finished", "diverged", "stopped", "failed", "damaged", "unfinished", "missing")


@dataclass(frozen=True, eq=False)
class Reading:
    """A study directory with its results and verdicts. Make it with `read`."""

    directory: StudyDirectory
    table: StudyTable
    verdict: StudyVerdict

    @property
    def study(self) -> StudySpec:
        """The study."""
        return self.directory.study

    @cached_property
    def deciding(self) -> Deciding:
        """The sweep that would decide the open verdicts."""
        return deciding(self.directory, self.table, self.verdict)

    @cached_property
    def next_cells(self) -> Sequence[Proposal]:
        """The cells that an adaptive sweep would train next; none where no verdict is asked for."""
        return next_cells(self.table, self.verdict) if self.study.verdict is not None else ()

    @property
    def largest(self) -> Model:
        """The largest model of the study."""
        models = [size.model for axis in self.table.axes for size in self.table.sizes(axis)]
        return max(models, key=lambda model: (model.counts().total, model.flops_per_token()))

    def counts(self) -> str:
        """Return the statuses of all runs in words."""
        return describe_counts(Counter[str](result.status for result in self.table.results))

    def zero_shot_counts(self, arm: Arm) -> str:
        """Return the number of seeds and the statuses of an arm's zero-shot runs."""
        return seeds_and_counts(self.table.where(arm=arm, hp=None), "size")

    def curve_counts(self, arm: Arm | None = None) -> str:
        """Return the number of seeds and the statuses of an arm's swept runs, by default of the study's own arm."""
        rows = [row for row in self.table.where(arm=arm or self.table.own) if row.cell.hp is not None]
        return seeds_and_counts(rows, "point")


def read(directory: StudyDirectory) -> Reading:
    """Read the results of all runs, and judge them."""
    table = directory.table()
    return Reading(directory, table, judge(table))


def seeds_and_counts(rows: Iterable[CellResult], what: str) -> str:
    """Return the number of seeds per point or size of a figure, and the statuses of the runs, in words."""
    rows = list(rows)
    points = {(row.cell.size.model, row.cell.run.hps, row.cell.seed) for row in rows}
    seeds = sorted(Counter(point[:2] for point in points).values()) or [0]
    n = plural(seeds[0], "seed") if seeds[0] == seeds[-1] else f"{seeds[0]} to {seeds[-1]} seeds"
    statuses = Counter[str](result.status for result in unique_results(rows))
    return f"n = {n} per {what}; {describe_counts(statuses)}"


def describe_counts(statuses: Mapping[str, int]) -> str:
    """Return numbers of runs by status in words; finished and diverged runs always appear, others if there are any.

    >>> describe_counts({"finished": 5, "missing": 1})
    '6 runs: 5 finished, 0 diverged, 1 missing'
    """
    listed = [f"{statuses.get(status, 0)} {status}" for status in STATUSES if statuses.get(status) or status in DONE]
    return f"{plural(sum(statuses.values()), 'run')}: {', '.join(listed)}"
