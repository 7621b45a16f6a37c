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
from expertp.data import open_dataset
from expertp.loop import StepOutcome, TrainingLoop, check_run, deterministic, resolve_device, resolved
from expertp.machine import processor_name
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

    def end(self) -> None:
        """Take notice that no more steps come."""


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
        trackers: told about every step; not at all when the run had ended before.
        should_stop: asked after each step; when it says yes, the run is saved and returned as `stopped`.
    """
    device = resolve_device(run.train)
    run, dataset = resolved(run, device), open_dataset(run.train.data)
    check_run(run, dataset, device)
    with open_run(out, run, dataset, _environment(device)) as directory:
        ended = directory.summary()
        if ended and ended["status"] in ("finished", "diverged"):
            return RunResult(**{field.name: ended[field.name] for field in fields(RunResult)})
        with deterministic(device):
            return _RecordedRun(TrainingLoop(run, dataset, device), directory, trackers).go(should_stop)


class _RecordedRun:
    """A training loop whose steps are recorded and saved in a directory."""

    def __init__(self, loop: TrainingLoop, directory: RunDirectory, trackers: Sequence[Tracker]) -> None:
        self.loop, self.directory, self.trackers = loop, directory, trackers
        self.train = loop.run.train
        self.pending: list[str] = []
        self.seconds_before = self._resume()
        self.steps_before = self.saved_step = loop.steps_done
        self.started = self.saved_at = self.flushed_at = time.monotonic()

    def go(self, should_stop: Callable[[], bool]) -> RunResult:
        """Step until the end, a divergence or a wish to stop."""
        for tracker in self.trackers:
            tracker.begin(self.loop.run, self.steps_before)
        status: Status = "finished"
        while self.loop.steps_done < self.train.steps:
            if not self._step():
                status = "diverged"
                break
            if self._checkpoint_due():
                self._save()
            if should_stop() and self.loop.steps_done < self.train.steps:
                status = "stopped"
                break
        if status == "diverged":
            self._flush()
        else:
            self._save()
        for tracker in self.trackers:
            tracker.end()
        return self._end(status)

    def _step(self) -> bool:
        """Take a step, validate if it is time, and write it down; return False if the run has diverged."""
        outcome, train = self.loop.step(), self.train
        step = self.loop.steps_done
        diverged, val_loss = outcome.diverged, None
        if not diverged and train.eval_every > 0 and (step == train.steps or step % train.eval_every == 0):
            val_loss = self.loop.evaluate()
            diverged = self.loop.has_diverged(val_loss)
        metrics = self._metrics(outcome, val_loss)
        if diverged or val_loss is not None or step in (1, train.steps) or step % train.log_every == 0:
            # JSON has no NaN: a loss that is not finite is written as null.
            record = {key: None if _is_not_finite(value) else value for key, value in asdict(metrics).items()}
            self.pending.append(json.dumps(record) + "\n")
        if time.monotonic() - self.flushed_at > METRICS_FLUSH_SECONDS:
            self._flush()
        for tracker in self.trackers:
            tracker.log(metrics)
        return not diverged

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
        """Save unless this very step has been saved."""
        self._flush()
        if self.loop.steps_done == self.saved_step:
            return
        self.directory.save_checkpoint(
            Checkpoint(
                step=self.loop.steps_done,
                weights=self.loop.weights(),
                optimizer=self.loop.optimizer_state(),
                metrics_bytes=self.directory.metrics_path.stat().st_size,
                seconds=self._seconds(),
            )
        )
        self.saved_at, self.saved_step = time.monotonic(), self.loop.steps_done

    def _resume(self) -> float:
        """Go back to the newest checkpoint, or to the start when there is none; return the seconds spent so far."""
        checkpoint = self.directory.resume()
        if checkpoint is None:
            return 0.0
        self.loop.restore(checkpoint.step, checkpoint.weights, checkpoint.optimizer)
        return checkpoint.seconds

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _end(self, status: Status) -> RunResult:
        """Write the summary; its numbers are those of the last record, its validation the last there was."""
        records = self.directory.metrics()
        last = records[-1]
        validations = [record["val_loss"] for record in records if record["val_loss"] is not None]
        result = RunResult(
            status=status,
            step=self.loop.steps_done,
            steps=self.train.steps,
            tokens=self.loop.steps_done * self.train.batch_tokens,
            train_loss=last["loss"],
            # A diverged run has no validation loss: an earlier one would make it look good.
            val_loss=validations[-1] if validations and status != "diverged" else None,
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
        "device": torch.cuda.get_device_name() if device == "cuda" else processor_name(),
        "threads": torch.get_num_threads(),
    }


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
