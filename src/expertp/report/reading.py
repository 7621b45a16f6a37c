"""What a report needs of a study directory, read once; records of runs only where a figure asks for them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from expertp.analysis.curves import StudyTable
from expertp.analysis.optimum import Optimum
from expertp.analysis.transfer import StudyVerdict, judge
from expertp.spec import ModelSpec, RunSpec
from expertp.study import HP, StudySpec
from expertp.study_store import DONE, Result, StudyDirectory

Record = Mapping[str, Any]
Thin = Callable[[Sequence[Record]], Sequence[Record]]
STATUSES = ("finished", "diverged", "failed", "unfinished", "missing")


def _unchanged(records: Sequence[Record]) -> Sequence[Record]:
    return records


@dataclass(frozen=True, eq=False)
class Reading:
    """A study directory as the report sees it. Make it with `read`.

    Args:
        directory: where it is.
        results: how all runs stand.
        table: the same, to be asked.
        verdict: what they come to.
        thin: goes over the records of each run.
    """

    directory: StudyDirectory
    results: Sequence[Result]
    table: StudyTable
    verdict: StudyVerdict
    thin: Thin = _unchanged
    _records: dict[str, Mapping[int, Sequence[Record]]] = field(default_factory=dict)

    @property
    def study(self) -> StudySpec:
        """What was to be done."""
        return self.directory.study

    @property
    def optima(self) -> dict[tuple[str, HP], Mapping[float, Optimum]]:
        """The optima that the verdict rests on, by axis and hyperparameter."""
        return {(each.axis, each.hp): each.optima for each in self.verdict.axes}

    @property
    def largest(self) -> ModelSpec:
        """The largest model of the study: what its plan is for."""
        models = [model for axis in self.study.axis_names for model in self.study.models(axis).values()]
        return max(models, key=lambda model: (model.counts().total, model.flops_per_token()))

    def records(self, model: ModelSpec, rules: str) -> Mapping[int, Sequence[Record]]:
        """Return metrics.jsonl by seed, of the runs with the base's hyperparameters that have ended."""
        key = f"{rules} {model.model_dump_json()}"
        if key not in self._records:
            self._records[key] = self.records_of(self.study.centre(model, rules))
        return self._records[key]

    def records_of(self, runs: Iterable[RunSpec]) -> Mapping[int, Sequence[Record]]:
        """Return metrics.jsonl by seed, of those among some runs that have ended and have records."""
        found = {}
        for result in self._ended(runs):
            run = self.directory.directory(result.identity)
            if run and (records := run.metrics()):
                found[result.run.train.seed] = self.thin(records)
        return found

    def _ended(self, runs: Iterable[RunSpec]) -> list[Result]:
        found = [self.table.result(run) for run in runs]
        return [result for result in found if result is not None and result.status in DONE]

    def counts(self) -> str:
        """Say how many of all runs have finished, diverged and so on."""
        return describe_counts(Counter[str](result.status for result in self.results))

    def seeds_and_counts(self, runs: Iterable[RunSpec], what: str) -> str:
        """Say how many seeds a point or size of a picture has, and how its runs stand; refined axes have more seeds."""
        unique = {(run.model, run.hps.model_dump_json(), run.train.seed): run for run in runs}
        seeds = sorted(Counter(cell[:2] for cell in unique).values()) or [0]
        n = f"{seeds[0]}" if seeds[0] == seeds[-1] else f"{seeds[0]} to {seeds[-1]}"
        found = [self.table.result(run) for run in unique.values()]
        statuses = Counter[str](result.status if result else "missing" for result in found)
        return f"n = {n} seeds a {what}; {describe_counts(statuses)}"

    def zero_shot_counts(self, rules: str) -> str:
        """Say how the runs with the base's hyperparameters stand."""
        study = self.study
        axes = study.axis_names if rules == study.hps.rules else study.contrasts[rules].axes
        models = [model for axis in axes for model in study.models(axis).values()]
        return self.seeds_and_counts((run for model in models for run in study.centre(model, rules)), "size")

    def command(self, verb: str) -> str:
        """Return the command that fills this directory, or part of it."""
        return f"expertp {verb} STUDY.yaml {self.out_option('coordcheck' if verb == 'coordcheck' else '')}"

    def out_option(self, folder: str = "") -> str:
        """Return the option that names this directory, or a folder in it."""
        return f"--out {shlex.quote(str(self.directory.path / folder))}"


def describe_counts(statuses: Mapping[str, int]) -> str:
    """Say how runs stand; finished and diverged always, the others where there are any.

    >>> describe_counts({"finished": 5, "missing": 1})
    '6 runs: 5 finished, 0 diverged, 1 missing'
    """
    told = [f"{statuses.get(status, 0)} {status}" for status in STATUSES if statuses.get(status) or status in DONE]
    total = sum(statuses.values())
    return f"{total} run{'s' if total != 1 else ''}: {', '.join(told)}"


def read(directory: StudyDirectory, thin: Thin = _unchanged) -> Reading:
    """Read how all runs stand, and judge them."""
    results = directory.results()
    return Reading(directory, results, StudyTable(directory.study, results), judge(directory.study, results), thin)
