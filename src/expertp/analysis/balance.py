"""How evenly experts are loaded in the course of training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# The last part of training, over which a load is averaged.
LATE = 0.25


@dataclass(frozen=True)
class LoadBalance:
    """Expert load of one model over time.

    Args:
        scale: how many times the base the model is.
        steps: steps that every seed has a record of.
        max_deviation: max |Load - kappa| over experts and layers, mean over seeds, per step.
        dead_experts: experts without a token, summed over layers, mean over seeds, per step.
        n_seeds: runs that this rests on.
    """

    scale: float
    steps: tuple[int, ...]
    max_deviation: tuple[float, ...]
    dead_experts: tuple[float, ...]
    n_seeds: int

    def late(self, steps: int) -> float:
        """Return the mean of `max_deviation` over the last quarter of so many steps; nan where a run ended before."""
        if self.steps[-1] < steps:
            return math.nan
        is_late = np.asarray(self.steps) > (1 - LATE) * steps
        return float(np.asarray(self.max_deviation)[is_late].mean())


def load_balance(scale: float, records: Mapping[int, Sequence[Mapping[str, Any]]]) -> LoadBalance | None:
    """Return the load of a model from the records of metrics.jsonl per seed; None where no step is shared.

    >>> record = {"step": 1, "max_load_deviation": [0.1, 0.3], "dead_experts": [0, 2]}
    >>> load_balance(2.0, {0: [record], 1: [{**record, "max_load_deviation": [0.1, 0.1]}]})
    LoadBalance(scale=2.0, steps=(1,), max_deviation=(0.2,), dead_experts=(2.0,), n_seeds=2)
    """
    by_seed = [
        {
            record["step"]: (max(record["max_load_deviation"]), sum(record["dead_experts"]))
            for record in of_seed
            if record["max_load_deviation"]
        }
        for of_seed in records.values()
    ]
    by_seed = [loads for loads in by_seed if loads]
    if not by_seed:
        return None
    # A diverged run ends early, and a mean over fewer seeds from there on would jump: the curve ends with it.
    steps = sorted(set.intersection(*(set(loads) for loads in by_seed)))
    if not steps:
        return None
    deviation, dead = np.mean([[loads[step] for step in steps] for loads in by_seed], axis=0).T.tolist()
    return LoadBalance(scale, tuple(steps), tuple(deviation), tuple(dead), len(by_seed))
