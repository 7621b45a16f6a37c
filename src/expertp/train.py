"""One run on disk: RunSpec -> RunResult. Records, checkpoints, resume to the bit, divergence."""

import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from expertp.balance import load_deviation
from expertp.data import Dataset, check_vocab, eval_batches, open_dataset, train_batch
from expertp.loop import StepOutcome, TrainingLoop, deterministic, plan_run, resolve_device
from expertp.model.experts import choose_backend
from expertp.spec import RunSpec
from expertp.store import Checkpoint, RunDirectory, open_run

Status = Literal["finished", "diverged", "stopped"]
# Fields of a metrics record that a clock decides; all others are the same in every repetition of a run.
CLOCK_FIELDS = ("seconds", "tokens_per_second")
METRICS_FLUSH_SECONDS = 5.0


@dataclass(frozen=True)
class StepMetrics:
    """What one optimizer step tells; lists have one entry per layer and are empty in a dense model.

    `loss` is that of the step's batch before the update, `val_loss` (None between validations) that after it.
    """

    step: int
    loss: float
    val_loss: float | None
    lr_factor: float
    tokens: int
    max_load_deviation: list[float]
    dead_experts: list[int]
    bias_range: list[float]
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class RunResult:
    """How a run ended, or stands."""

    status: Status
    step: int
    steps: int
    tokens: int
    train_loss: float | None
    val_loss: float | None
    max_load_deviation: float | None
    dead_experts: int | None
    seconds: float


class Tracker(Protocol):
    """Somebody who wants to see a run: a progress bar, TensorBoard."""

    def begin(self, run: RunSpec, steps_done: int) -> None:
        """Take notice that a run starts, or goes on after `steps_done` steps; its input is known to be good."""

    def log(self, metrics: StepMetrics) -> None:
        """Take notice of one step."""


def train(
    run: RunSpec,
    out: str | Path,
    trackers: Sequence[Tracker] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Train one run in a directory, from its newest checkpoint if there is one.

    Args:
        run: what to train.
        out: the run's directory; one that holds another run is an error.
        trackers: told about every logged step.
        should_stop: asked after each step; when it says yes, the run is saved and returned as `stopped`.
    """
    # What cannot be planned, fed or computed is refused before anything is written.
    plan_run(run)
    dataset = _open_data(run)
    device = resolve_device(run)
    choose_backend(run.train.expert_backend, device, run.model, run.train.dtype)
    directory = open_run(out, run, dataset, _environment(device))
    with directory.locked():
        ended = directory.summary()
        if ended and ended["status"] in ("finished", "diverged"):
            return RunResult(**{field.name: ended[field.name] for field in fields(RunResult)})
        with deterministic(device):
            return _RecordedRun(TrainingLoop(run, dataset, device), directory, trackers).go(should_stop)


def _open_data(run: RunSpec) -> Dataset:
    """Open a run's data and see that it fits the model and fills a batch, before anything is written."""
    dataset = open_dataset(run.train.data)
    check_vocab(dataset, run.model.vocab_size)
    train_batch(dataset.train, run.model.context, run.sequences, run.train.seed, step=0)
    if run.train.eval_every > 0:
        next(iter(eval_batches(dataset.val, run.model.context, 1, run.train.eval_tokens)))
    return dataset


class _RecordedRun:
    """A training loop whose steps are recorded and saved in a directory."""

    def __init__(self, loop: TrainingLoop, directory: RunDirectory, trackers: Sequence[Tracker]) -> None:
        self.loop, self.directory, self.trackers = loop, directory, trackers
        self.train = loop.run.train
        self.pending: list[str] = []
        self.seconds_before = self._resume()
        self.steps_before = loop.steps_done
        self.started = self.saved_at = self.flushed_at = time.monotonic()

    def go(self, should_stop: Callable[[], bool]) -> RunResult:
        """Step until the end, a divergence or a wish to stop."""
        for tracker in self.trackers:
            tracker.begin(self.loop.run, self.steps_before)
        while self.loop.steps_done < self.train.steps:
            outcome = self.loop.step()
            self._record(outcome)
            if outcome.diverged:
                return self._end("diverged")
            if self._checkpoint_due():
                self._save()
            if should_stop() and self.loop.steps_done < self.train.steps:
                self._save()
                return self._end("stopped")
        self._save()
        return self._end("finished")

    def _record(self, outcome: StepOutcome) -> None:
        """Validate if it is time, and write down the step if it is one of those to be logged."""
        step, train = self.loop.steps_done, self.train
        is_last = outcome.diverged or step == train.steps
        val_loss = None
        if train.eval_every > 0 and not outcome.diverged and (is_last or step % train.eval_every == 0):
            val_loss = self.loop.evaluate()
        if not (is_last or val_loss is not None or step == 1 or step % train.log_every == 0):
            return
        metrics = self._metrics(outcome, val_loss)
        # JSON has no NaN: a diverged loss is written as null.
        record = {key: None if _is_not_finite(value) else value for key, value in asdict(metrics).items()}
        self.pending.append(json.dumps(record) + "\n")
        if time.monotonic() - self.flushed_at > METRICS_FLUSH_SECONDS:
            self._flush()
        for tracker in self.trackers:
            tracker.log(metrics)

    def _metrics(self, outcome: StepOutcome, val_loss: float | None) -> StepMetrics:
        loop, load_LE, routers = self.loop, outcome.load_LE, self.loop.model.routers()
        here = time.monotonic() - self.started
        tokens_here = (loop.steps_done - self.steps_before) * self.train.batch_tokens
        return StepMetrics(
            step=loop.steps_done,
            loss=outcome.loss,
            val_loss=val_loss,
            lr_factor=outcome.lr_factor,
            tokens=loop.steps_done * self.train.batch_tokens,
            max_load_deviation=load_deviation(load_LE, loop.run.model.n_act).abs().amax(-1).tolist() if routers else [],
            dead_experts=(load_LE == 0).sum(-1).tolist() if routers else [],
            bias_range=[(router.bias.max() - router.bias.min()).item() for router in routers],
            seconds=round(self.seconds_before + here, 3),
            tokens_per_second=round(tokens_here / max(here, 1e-9), 1),
        )

    def _flush(self) -> None:
        self.directory.append_metrics("".join(self.pending))
        self.pending.clear()
        self.flushed_at = time.monotonic()

    def _checkpoint_due(self) -> bool:
        every = self.train.checkpoint_steps
        by_steps = every is not None and self.loop.steps_done % every == 0
        return by_steps or time.monotonic() - self.saved_at >= self.train.checkpoint_seconds

    def _save(self) -> None:
        self._flush()
        self.directory.save_checkpoint(
            Checkpoint(
                step=self.loop.steps_done,
                weights=self.loop.weights(),
                optimizer=self.loop.optimizer_state(),
                metrics_bytes=self.directory.metrics_path.stat().st_size,
                seconds=self._seconds(),
            )
        )
        self.saved_at = time.monotonic()

    def _resume(self) -> float:
        """Go back to the newest checkpoint, or to the start when there is none; return the seconds spent so far."""
        checkpoint = self.directory.latest_checkpoint()
        if checkpoint is None:
            self.directory.cut_metrics(0)
            return 0.0
        self.loop.restore(checkpoint.step, checkpoint.weights, checkpoint.optimizer)
        self.directory.cut_metrics(checkpoint.metrics_bytes)
        return checkpoint.seconds

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _end(self, status: Status) -> RunResult:
        """Write the summary; losses and loads are those of the last records, before a resume or after it."""
        self._flush()
        records = self.directory.metrics()
        last = records[-1]
        validations = [record["val_loss"] for record in records if record["val_loss"] is not None]
        result = RunResult(
            status=status,
            step=self.loop.steps_done,
            steps=self.train.steps,
            tokens=self.loop.steps_done * self.train.batch_tokens,
            train_loss=last["loss"],
            val_loss=validations[-1] if validations else None,
            max_load_deviation=max(last["max_load_deviation"], default=None),
            dead_experts=sum(last["dead_experts"]) if last["dead_experts"] else None,
            seconds=round(self._seconds(), 3),
        )
        self.directory.write_summary(asdict(result))
        return result


def _environment(device: str) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
