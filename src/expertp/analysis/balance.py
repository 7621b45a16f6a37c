"""Balance of the load over experts during training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from expertp.analysis.seed_curves import Records, seed_curves

# The last share of training, over which `late` averages.
LATE = 0.25


@dataclass(frozen=True)
class LoadBalance:
    """Expert load of one model over time.

    Args:
        steps: steps that every seed has a record of.
        max_deviation: max |Load - kappa| over experts and layers, mean over seeds, per step.
        dead_experts: experts without a token, summed over layers, mean over seeds, per step.
        n_seeds: number of runs.
    """

    steps: tuple[int, ...]
    max_deviation: tuple[float, ...]
    dead_experts: tuple[float, ...]
    n_seeds: int

    def late(self, steps: int) -> float:
        """Return the mean of `max_deviation` over the last quarter of `steps`; nan where a run ended before."""
        if self.steps[-1] < steps:
            return math.nan
        is_late = np.asarray(self.steps) > (1 - LATE) * steps
        return float(np.asarray(self.max_deviation)[is_late].mean())


def load_balance(records: Records) -> LoadBalance | None:
    """Return the expert load of a model from its training records; None where the seeds share no step.

    >>> from expertp.training.records import StepMetrics
    >>> one, two = (
    ...     StepMetrics(step=1, loss=7.0, max_load_deviation=(0.1, worst), dead_experts=(0, 2)) for worst in (0.3, 0.1))
    >>> load_balance({0: [one], 1: [two]})
    LoadBalance(steps=(1,), max_deviation=(0.2,), dead_experts=(2.0,), n_seeds=2)
    """
    moe = {seed: found for seed, run in records.items() if (found := [each for each in run if each.max_load_deviation])}
    deviation = seed_curves(moe, lambda record: record.load_deviation)
    dead = seed_curves(moe, lambda record: sum(record.dead_experts))
    # A diverged run ends early; a mean over the remaining seeds would jump there, so the curve ends with it.
    is_shared = ~np.isnan(deviation.values_ST).any(axis=0)
    if not moe or not is_shared.any():
        return None
    return LoadBalance(
        steps=tuple(step for step, kept in zip(deviation.steps, is_shared, strict=True) if kept),
        max_deviation=tuple(deviation.values_ST[:, is_shared].mean(0).tolist()),
        dead_experts=tuple(dead.values_ST[:, is_shared].mean(0).tolist()),
        n_seeds=len(moe),
    )


def late_deviations(records: Records, steps: int) -> dict[int, float]:
    """Return max |Load - kappa| over the last quarter of `steps` by seed; nan for a run that ended before."""
    loads = {seed: load_balance({seed: run}) for seed, run in records.items()}
    return {seed: load.late(steps) if load else math.nan for seed, load in loads.items()}
