"""Records of a run: `train` writes these values, and all readers get the same types back.

metrics.jsonl   one `StepMetrics` per line
summary.json    one `RunResult`
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from expertp.util.records import Count

Status = Literal["finished", "diverged", "stopped"]
# JSON has no NaN and no infinity: a number that is not finite is written as null and read as nan.
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
# Fields of `StepMetrics` that depend on the clock; all others are the same when a run is repeated.
CLOCK_FIELDS = ("seconds", "tokens_per_second", "product_share")


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """Metrics of one optimizer step; tuples have one entry per MoE layer and are empty in a dense model.

    Args:
        step: optimizer steps done, from 1 on.
        loss: loss of the step's batch before the update; nan where it is not finite.
        val_loss: validation loss after the update; None between validations.
        lr_factor: factor of the learning rate schedule.
        tokens: tokens seen so far.
        max_load_deviation: max |Load - kappa| over experts, per layer.
        dead_experts: experts without a token in this step, per layer.
        bias_range: largest minus smallest expert bias, per layer.
        seconds: training time so far.
        tokens_per_second: mean since the run was started or resumed.
        product_share: FLOPs per second of training divided by those of matrix products on all ranks, which are measured
            when the run is started or resumed; nan in records of earlier versions.
    """

    step: Count
    loss: Number
    val_loss: Finite | None = None
    lr_factor: Number = math.nan
    tokens: Count = 0
    max_load_deviation: tuple[float, ...] = ()
    dead_experts: tuple[Count, ...] = ()
    bias_range: tuple[float, ...] = ()
    seconds: Number = math.nan
    tokens_per_second: Number = math.nan
    product_share: Number = math.nan

    @property
    def load_deviation(self) -> float | None:
        """Largest deviation of any layer; None in a dense model."""
        return max(self.max_load_deviation, default=None)

    def to_json(self) -> str:
        """Return the record's line in metrics.jsonl, without the line break."""
        return json.dumps({name: _finite_or_none(value) for name, value in asdict(self).items()})

    @staticmethod
    def from_json(line: str | bytes) -> StepMetrics:
        """Return the record of a line; any other line is a `ValueError`.

        >>> StepMetrics.from_json('{"step": 1, "loss": null}').loss
        nan
        """
        return _STEP_METRICS.validate_json(line)


@dataclass(frozen=True)
class RunResult:
    """How a run ended, or how far it was when it was stopped; `world_size` is the number of processes at its end."""

    status: Status
    step: Count
    steps: Count
    tokens: Count
    train_loss: Finite | None
    val_loss: Finite | None
    max_load_deviation: Finite | None
    dead_experts: Count | None
    seconds: Finite
    world_size: Count = 1

    @property
    def has_ended(self) -> bool:
        """Whether the run finished or diverged."""
        return self.status != "stopped"

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of summary.json."""
        return asdict(self)

    @staticmethod
    def from_dict(tree: object) -> RunResult:
        """Return the result of a tree; any other tree is a `ValueError`."""
        return _RUN_RESULT.validate_python(tree)


_STEP_METRICS, _RUN_RESULT = TypeAdapter(StepMetrics), TypeAdapter(RunResult)


def _finite_or_none(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
