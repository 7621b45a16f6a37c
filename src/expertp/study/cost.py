"""Cost of runs from the shapes of their models alone: parameters, tokens, FLOPs, disk. Needs no data and no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from expertp.spec import Model, RunSpec

# Size of the files of a run (run.json, summary.json, tokenizer) and of its records.
RUN_BYTES, RECORD_BYTES, RECORD_BYTES_PER_LAYER = 60_000, 220, 40
# A checkpoint holds weights and two moments in float32; two checkpoints are kept during a run.
CHECKPOINT_BYTES_PER_PARAMETER = 2 * 3 * 4


@dataclass(frozen=True)
class ModelCost:
    """The runs of one model and horizon; tokens and FLOPs are summed over runs."""

    model: Model
    runs: int
    tokens: int
    flops: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; parameters are exact, `paper_*` by the paper's formulas."""
        counts = self.model.counts()
        return {
            "model": self.model.to_dict(),
            "runs": self.runs,
            "total_parameters": counts.total,
            "active_parameters": counts.active,
            "paper_total": counts.paper_total,
            "paper_active": counts.paper_active,
            "tokens": self.tokens,
            "flops": self.flops,
        }


@dataclass(frozen=True)
class Cost:
    """The cost of a set of runs, by model (small models first) and in all."""

    models: tuple[ModelCost, ...]
    runs: int
    tokens: int
    flops: float

    def seconds_at(self, flops_per_second: float) -> float:
        """Return the time that all runs take at a speed."""
        return self.flops / flops_per_second


def cost_of_runs(runs: Iterable[RunSpec]) -> Cost:
    """Return the cost of runs; equal runs count once."""
    groups: dict[tuple[Model, int], list[RunSpec]] = {}
    for run in dict.fromkeys(runs):
        groups.setdefault((run.model, run.train.tokens), []).append(run)
    made = [
        ModelCost(model, len(found), tokens * len(found), float(sum(run.flops for run in found)))
        for (model, tokens), found in groups.items()
    ]
    models = tuple(sorted(made, key=lambda each: each.model.counts().total))
    n, tokens, flops = (sum(getattr(each, name) for each in models) for name in ("runs", "tokens", "flops"))
    return Cost(models, n, tokens, float(flops))


def disk_bytes(runs: Iterable[RunSpec], workers: int) -> int:
    """Return the disk space of runs, with the checkpoints of those that are trained at the same time."""
    found = list(runs)
    records = sum(
        run.train.steps // run.train.log_every * (RECORD_BYTES + RECORD_BYTES_PER_LAYER * run.model.n_layer)
        for run in found
    )
    largest = sorted((run.model.counts().total for run in found), reverse=True)[:workers]
    return records + RUN_BYTES * len(found) + CHECKPOINT_BYTES_PER_PARAMETER * sum(largest)
