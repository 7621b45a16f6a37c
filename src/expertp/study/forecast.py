"""Training time of runs on this machine: a few timed steps where they fit into seconds, otherwise from FLOPs.

torch is imported only where a model is timed.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from expertp.spec import Model, ParallelSpec, RunSpec

if TYPE_CHECKING:
    from expertp.data import Dataset

# Time for timing models. A model whose steps are expected to take longer than what is left is not timed.
CALIBRATION_SECONDS = 5.0
TIMED_STEPS = 3
# Speed of building and initializing a model, parameters per second; a cautious value for one thread.
BUILD_SPEED = 2e7
# Share of the speed of matrix products that training reaches; it estimates the time of models that are not timed.
PRODUCT_SHARE = 0.4


@dataclass(frozen=True)
class ModelTime:
    """Number of runs of one model, and the training time of one of them on one worker.

    `is_timed` says that steps of this model were timed; otherwise the time is an estimate from its FLOPs.
    """

    model: Model
    runs: int
    seconds: float
    is_timed: bool


@dataclass(frozen=True)
class Forecast:
    """Training time of runs: per model, small models first, and the wall-clock time of all with all workers."""

    models: tuple[ModelTime, ...]
    seconds: float

    @property
    def basis(self) -> str:
        """What the times are based on, in a few words."""
        timed = sum(each.is_timed for each in self.models)
        if timed == len(self.models):
            return f"from {TIMED_STEPS} timed steps of each model"
        if timed:
            return f"from timed steps of {timed} of {len(self.models)} models, the others estimated from FLOPs"
        return "estimated from FLOPs and the speed of matrix products, no step was timed"


def forecast(
    runs: Sequence[RunSpec], dataset: Dataset, workers: int = 1, limit: float = CALIBRATION_SECONDS
) -> Forecast:
    """Return the training time of runs with one thread per worker.

    Args:
        runs: the runs to train.
        dataset: their data.
        workers: number of processes that share the runs.
        limit: seconds for timing models. The models are timed from small to large while the steps of the next one are
            expected to fit.
    """
    alone = [run.replace(parallel=ParallelSpec()) for run in sorted(runs, key=lambda run: run.model.flops_per_token())]
    examples = {run.model: run for run in alone}  # steps are timed in this process, whatever trains the runs
    counts = Counter(run.model for run in runs)
    known, speed = _timed(list(examples.values()), dataset, limit)
    seconds = with_all_models(known, tuple(examples)) or {
        model: run.flops / speed * (1 + _evaluations_in_steps(run) / run.train.steps) for model, run in examples.items()
    }
    return Forecast(
        models=tuple(ModelTime(model, counts[model], seconds[model], model in known) for model in examples),
        seconds=sum(seconds[run.model] for run in runs) / workers,
    )


def with_all_models(known: Mapping[Model, float], models: Sequence[Model]) -> dict[Model, float]:
    """Return the seconds per run of all models; unknown ones scale with FLOPs from the known model nearest in FLOPs.

    >>> from expertp.spec import ModelSpec
    >>> small, large = (ModelSpec(n_embd=n, n_layer=2, n_exp=4, vocab_size=64, context=8) for n in (64, 128))
    >>> with_all_models({small: 2.0}, [small, large])[large] > 4
    True
    """
    if not known:
        return {}

    def nearest(model: Model) -> Model:
        return min(known, key=lambda other: abs(other.flops_per_token() - model.flops_per_token()))

    return {
        model: known[model] if model in known else known[near] * model.flops_per_token() / near.flops_per_token()
        for model in models
        for near in [nearest(model)]
    }


def _timed(examples: Sequence[RunSpec], dataset: Dataset, limit: float) -> tuple[dict[Model, float], float]:
    """Time steps of runs while they fit; return the seconds per run by model, and the expected FLOPs per second."""
    import torch

    from expertp.training.loop import check_run, resolve_device
    from expertp.training.speed import product_speed

    threads, known = torch.get_num_threads(), dict[Model, float]()
    torch.set_num_threads(1)
    try:
        for run in examples:
            check_run(run, dataset, resolve_device(run.train))
        speed = PRODUCT_SHARE * product_speed(resolve_device(examples[0].train)) if examples else 1.0
        ends_at = time.monotonic() + limit
        for run in examples:
            expected = (1 + TIMED_STEPS) * run.flops / run.train.steps / speed + run.model.counts().total / BUILD_SPEED
            if time.monotonic() + expected > ends_at:
                break
            step = _step_seconds(run, dataset)
            known[run.model] = step * (run.train.steps + _evaluations_in_steps(run))
            if step > 0:
                speed = run.flops / run.train.steps / step
    finally:
        torch.set_num_threads(threads)
    return known, speed


def _step_seconds(run: RunSpec, dataset: Dataset) -> float:
    """Return the median time of a training step."""
    from expertp.training.loop import TrainingLoop, deterministic, resolve_device

    device, times = resolve_device(run.train), []
    with deterministic(device):
        loop = TrainingLoop(run, dataset, device)
        for _ in range(1 + TIMED_STEPS):
            began = time.perf_counter()
            loop.step()  # returns loss and loads to the host, so the device has finished
            times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def _evaluations_in_steps(run: RunSpec) -> float:
    """Return the cost of validation in training steps: a forward pass is a third of a step."""
    train = run.train
    if train.eval_every == 0:
        return 0.0
    times = -(-train.steps // train.eval_every)
    return times * train.eval_tokens / train.batch_tokens / 3
