"""Loss curves over a hyperparameter, and the table of a study's results that they are cut from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from expertp.spec import RunSpec
from expertp.study import FIELD_OF, HP, StudySpec
from expertp.study_store import Result


@dataclass(frozen=True)
class Curve:
    """Final validation losses of one model over a grid of one hyperparameter.

    Args:
        axis: the axis that the model lies on.
        scale: how many times the base it is.
        size: the same in the unit of the axis.
        rules: the rule set, or the name of a contrast.
        hp: what the grid moves.
        log2_values: the grid, increasing.
        losses: `losses[value][seed]`; inf where a run has diverged, nan where there is no result.
        centre: log2 of the hyperparameter that the study gives to zero-shot runs.
        seeds: the seeds, in the order of `losses[value]`.
    """

    axis: str
    scale: float
    size: float
    rules: str
    hp: HP
    log2_values: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    centre: float
    seeds: tuple[int, ...] = ()

    @property
    def n_diverged(self) -> tuple[int, ...]:
        """How many runs have diverged, per value."""
        return tuple(sum(loss == math.inf for loss in cell) for cell in self.losses)

    @property
    def n_missing(self) -> tuple[int, ...]:
        """How many runs have no result, per value."""
        return tuple(sum(math.isnan(loss) for loss in cell) for cell in self.losses)

    @property
    def n_seeds(self) -> int:
        """Seeds per value."""
        return max((len(cell) for cell in self.losses), default=0)

    @property
    def medians(self) -> tuple[float, ...]:
        """Median over seeds, per value: inf where any run has diverged, nan where there is no result at all.

        One diverged run is enough: a value that sometimes ends a run is no candidate for the best, and leaving the
        run out would average over the lucky ones.

        >>> losses = ((3.0, 3.2, 3.1), (3.0, math.inf, 3.0), (math.nan, 3.5, 3.7), (math.nan,) * 3)
        >>> Curve("width", 1, 64, "expertp", "log2_lr", (-7, -6, -5, -4), losses, -6).medians
        (3.1, inf, 3.6, nan)
        """
        return tuple(_median(cell) for cell in self.losses)

    @property
    def best_place(self) -> int:
        """Where in the grid the lowest median is; the first place where runs diverge at every value."""
        medians = [median if math.isfinite(median) else math.inf for median in self.medians]
        return medians.index(min(medians))

    @property
    def best_value(self) -> float:
        """The value there, log2."""
        return self.log2_values[self.best_place]

    @property
    def is_best_at_edge(self) -> bool:
        """Whether there is nothing on one side of it, so that the true best may lie beyond."""
        return self.best_place in (0, len(self.losses) - 1)


def _median(cell: Sequence[float]) -> float:
    if math.inf in cell:
        return math.inf
    there = [loss for loss in cell if not math.isnan(loss)]
    return float(np.median(there)) if there else math.nan


@dataclass(frozen=True)
class StudyTable:
    """The results of a study, to be asked by axis, scale, rule set and hyperparameter."""

    study: StudySpec
    results: Sequence[Result]

    def result(self, run: RunSpec) -> Result | None:
        """Return how a run of the study stands; None where the results do not tell."""
        return self._by_run.get(_key(run))

    def curve(self, axis: str, scale: float, rules: str, hp: HP) -> Curve | None:
        """Return a model's loss curve, or None where the study does not sweep it."""
        model = self.study.models(axis).get(scale)
        if model is None or hp not in self.study.swept(axis, model, rules):
            return None
        runs = self.study.curve(axis, model, rules, hp)
        return Curve(
            axis=axis,
            scale=scale,
            size=self.study.size_of(axis, model),
            rules=rules,
            hp=hp,
            log2_values=self.study.grid(hp, axis),
            losses=tuple(tuple(map(self._loss, cell)) for cell in runs),
            centre=math.log2(getattr(self.study.hps_of(rules), FIELD_OF[hp])),
            seeds=self.study.seeds_of(axis, hp),
        )

    def curves(self, axis: str, rules: str, hp: HP) -> dict[float, Curve]:
        """Return the loss curves of an axis by scale, those that the study sweeps."""
        found = {scale: self.curve(axis, scale, rules, hp) for scale in self.study.models(axis)}
        return {scale: curve for scale, curve in found.items() if curve is not None}

    def zero_shot(self, axis: str, scale: float, rules: str) -> tuple[float, ...]:
        """Return the losses of a model with the base's hyperparameters as they are, one per seed of the study."""
        return tuple(map(self._loss, self.study.centre(self.study.models(axis)[scale], rules)))

    def _loss(self, run: RunSpec) -> float:
        result = self.result(run)
        if result is None:
            return math.nan
        if result.status == "diverged":
            return math.inf
        return result.val_loss if result.status == "finished" and result.val_loss is not None else math.nan

    @cached_property
    def _by_run(self) -> dict[tuple[str, str, int], Result]:
        return {_key(result.run): result for result in self.results}


def _key(run: RunSpec) -> tuple[str, str, int]:
    """Return all in which runs of one study differ; the compute type, which results have resolved, is not part."""
    return run.model.model_dump_json(), run.hps.model_dump_json(), run.train.seed
