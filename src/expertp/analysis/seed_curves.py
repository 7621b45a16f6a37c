"""Training records by seed -> one quantity as an array [seed, step].

Shapes: S seeds, T steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from expertp.training.records import StepMetrics

Records = Mapping[int, Sequence[StepMetrics]]  # by seed


@dataclass(frozen=True, eq=False)
class SeedCurves:
    """One quantity over the steps of training, for several seeds.

    Args:
        seeds: the seeds.
        steps: the steps that any seed has a record of.
        values_ST: the quantity; nan where a run has no record, for example after it has diverged.
    """

    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    values_ST: Float[np.ndarray, "S T"]

    def at(self, steps: Sequence[int], seeds: Sequence[int] | None = None) -> Float[np.ndarray, "S2 T2"]:
        """Return the values of some seeds (by default all) at some steps; nan where there is no record."""
        chosen = self.values_ST if seeds is None else self.values_ST[[self.seeds.index(seed) for seed in seeds]]
        found = {step: chosen[:, place] for place, step in enumerate(self.steps)}
        missing = np.full(len(chosen), math.nan)
        return np.stack([found.get(step, missing) for step in steps], axis=1) if steps else np.empty((len(chosen), 0))

    def shared_seeds(self, other: SeedCurves) -> tuple[int, ...]:
        """Return the seeds that both have."""
        return tuple(sorted(set(self.seeds) & set(other.seeds)))


def seed_curves(records: Records, quantity: Callable[[StepMetrics], float | None]) -> SeedCurves:
    """Return a quantity of training records as curves.

    >>> metrics = StepMetrics
    >>> records = {0: [metrics(step=1, loss=7.0), metrics(step=2, loss=6.0)], 1: [metrics(step=1, loss=5.0)]}
    >>> seed_curves(records, lambda record: record.loss).values_ST.tolist()
    [[7.0, 6.0], [5.0, nan]]
    """
    steps = sorted({record.step for of_seed in records.values() for record in of_seed})
    place = {step: index for index, step in enumerate(steps)}
    values_ST = np.full((len(records), len(steps)), math.nan)
    for row, of_seed in enumerate(records.values()):
        for record in of_seed:
            value = quantity(record)
            values_ST[row, place[record.step]] = math.nan if value is None else value
    return SeedCurves(tuple(records), tuple(steps), values_ST)


def training_losses(records: Records) -> SeedCurves:
    """Return the training losses of records."""
    return seed_curves(records, lambda record: record.loss)
