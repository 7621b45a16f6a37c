"""Cost of a study on this machine: time from a few timed steps of each model, FLOPs and disk from its shape."""

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from expertp.data import Dataset
from expertp.spec import ModelSpec, RunSpec
from expertp.training.loop import TrainingLoop, check_run, deterministic, resolve_device

# Time after which no further model is timed; the times of the others are extrapolated by FLOPs.
CALIBRATION_SECONDS = 20.0
TIMED_STEPS = 3
# Size of the files of a run (run.json, summary.json, tokenizer) and of its records.
RUN_BYTES, RECORD_BYTES, RECORD_BYTES_PER_LAYER = 60_000, 220, 40
# A checkpoint holds weights and two moments in float32; two checkpoints are kept during a run.
CHECKPOINT_BYTES_PER_PARAMETER = 2 * 3 * 4


@dataclass(frozen=True)
class ModelCost:
    """Number of runs of one model, and the training time of one of them on one worker."""

    model: ModelSpec
    runs: int
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """Cost of the missing runs of a study.

    Args:
        models: cost per model, small models first.
        tokens: training tokens of all runs.
        flops: FLOPs of all runs.
        seconds: wall-clock time with all workers.
        disk_bytes: disk space, with the checkpoints of runs that are being trained.
    """

    models: tuple[ModelCost, ...]
    tokens: int
    flops: float
    seconds: float
    disk_bytes: int


def forecast(
    runs: Sequence[RunSpec], dataset: Dataset, workers: int = 1, limit: float = CALIBRATION_SECONDS
) -> Forecast:
    """Return the cost of runs with one thread per worker, after timing a few steps of each model.

    Args:
        runs: the runs to train.
        dataset: their data.
        workers: number of processes that share the runs.
        limit: seconds after which no further model is timed.
    """
    examples = {run.model: run for run in sorted(runs, key=lambda run: run.model.flops_per_token())}
    counts = Counter(run.model for run in runs)
    seconds = with_all_models(_timed(list(examples.values()), dataset, limit), tuple(examples))
    return Forecast(
        models=tuple(ModelCost(model, counts[model], seconds[model]) for model in examples),
        tokens=sum(run.train.tokens for run in runs),
        flops=float(sum(run.flops for run in runs)),
        seconds=sum(seconds[run.model] for run in runs) / workers,
        disk_bytes=_disk_bytes(runs, workers),
    )


def with_all_models(known: Mapping[ModelSpec, float], models: Sequence[ModelSpec]) -> dict[ModelSpec, float]:
    """Return the seconds per run of all models; unknown ones scale with FLOPs from the known model nearest in FLOPs.

    >>> small, large = (ModelSpec(n_embd=n, n_layer=2, n_exp=4, vocab_size=64, context=8) for n in (64, 128))
    >>> with_all_models({small: 2.0}, [small, large])[large] > 4
    True
    """
    if not known:
        return {}

    def nearest(model: ModelSpec) -> ModelSpec:
        return min(known, key=lambda other: abs(other.flops_per_token() - model.flops_per_token()))

    return {
        model: known[model] if model in known else known[near] * model.flops_per_token() / near.flops_per_token()
        for model in models
        for near in [nearest(model)]
    }


def _timed(examples: Sequence[RunSpec], dataset: Dataset, limit: float) -> dict[ModelSpec, float]:
    """Time runs until the limit is reached, at least the first."""
    began, known = time.monotonic(), dict[ModelSpec, float]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for run in examples:
            if known and time.monotonic() - began > limit:
                break
            known[run.model] = _run_seconds(run, dataset)
    finally:
        torch.set_num_threads(threads)
    return known


def _run_seconds(run: RunSpec, dataset: Dataset) -> float:
    device, times = resolve_device(run.train), []
    check_run(run, dataset, device)
    with deterministic(device):
        loop = TrainingLoop(run, dataset, device)
        for _ in range(1 + TIMED_STEPS):
            began = time.perf_counter()
            loop.step()  # returns loss and loads to the host, so the device has finished
            times.append(time.perf_counter() - began)
    return statistics.median(times[1:]) * (run.train.steps + _evaluations_in_steps(run))


def _evaluations_in_steps(run: RunSpec) -> float:
    """Return the cost of validation in training steps: a forward pass is a third of a step."""
    train = run.train
    if train.eval_every == 0:
        return 0.0
    times = -(-train.steps // train.eval_every)
    return times * train.eval_tokens / train.batch_tokens / 3


def _disk_bytes(runs: Sequence[RunSpec], workers: int) -> int:
    records = sum(
        run.train.steps // run.train.log_every * (RECORD_BYTES + RECORD_BYTES_PER_LAYER * run.model.n_layer)
        for run in runs
    )
    largest = sorted((run.model.counts().total for run in runs), reverse=True)[:workers]
    return records + RUN_BYTES * len(runs) + CHECKPOINT_BYTES_PER_PARAMETER * sum(largest)
