"""Train one run in a directory: RunSpec -> RunResult, with records, checkpoints and bit-exact resume."""

import math
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from expertp.config import first_difference
from expertp.data import Dataset, open_dataset
from expertp.errors import InputError
from expertp.model.balance import load_deviation
from expertp.spec import RunSpec
from expertp.training.checkpoints import Checkpoint, resume, save
from expertp.training.loop import StepOutcome, TrainingLoop, check_run, deterministic, resolve_device
from expertp.training.ranks import ALONE, Ranks
from expertp.training.records import RunResult, Status, StepMetrics
from expertp.training.resolution import resolved
from expertp.training.speed import product_speed
from expertp.training.store import RunDirectory, open_run
from expertp.util.machine import check_launcher, processor_name, rank_and_ranks

METRICS_FLUSH_SECONDS = 5.0


@runtime_checkable
class Tracker(Protocol):
    """Receives the metrics of a run: a progress bar, TensorBoard."""

    def begin(self, run: RunSpec, steps_done: int) -> None:
        """Start tracking a run whose input has been checked, after `steps_done` steps."""

    def log(self, metrics: StepMetrics) -> None:
        """Receive the metrics of one step."""

    def end(self) -> None:
        """Finish: no more steps follow."""


def train(
    run: RunSpec,
    out: str | Path,
    trackers: Sequence[Tracker] = (),
    should_stop: Callable[[], bool] = lambda: False,
    ranks: Ranks = ALONE,
) -> RunResult:
    """Train a run in a directory, from its newest checkpoint if there is one.

    Args:
        run: the run.
        out: the run's directory; a directory that holds another run is an error.
        trackers: receive the metrics of every step; not called if the run had already ended.
        should_stop: called in each step, before the weights change; when it returns True on any rank, the run is saved
            after the step and its status is `stopped`. When it raises an error, nothing is written any more.
        ranks: the processes that train the run, of `launched_ranks`.
    """
    check_launcher()
    if ranks.size != (size := rank_and_ranks()[1]):
        raise InputError(
            f"a launcher has started {size} processes, but a run without `ranks` is trained by one; start one process, "
            "or give the ranks of `launched_ranks`"
        )
    run, dataset, device = ranks.agreed(lambda: _checked(run, ranks))
    _check_same(run, dataset, device, ranks)
    with ExitStack() as stack:
        opened = open_run(out, run, dataset, _environment(run, device, ranks))
        directory = ranks.first(lambda: stack.enter_context(opened))
        result = ranks.first(directory.summary)
        if result is not None and result.has_ended:
            return result
        with deterministic(device):
            return _RecordedRun(TrainingLoop(run, dataset, device, ranks), directory, trackers).go(should_stop)


def _checked(run: RunSpec, ranks: Ranks) -> tuple[RunSpec, Dataset, str]:
    """Return the resolved run, its data and its device, if it can be trained here."""
    device = resolve_device(run.train)
    run, dataset = resolved(run, device), open_dataset(run.train.data)
    check_run(run, dataset, device, ranks)
    return run, dataset, device


def _check_same(run: RunSpec, dataset: Dataset, device: str, ranks: Ranks) -> None:
    """Raise `InputError` if a rank has other settings, other data or another kind of device than rank 0.

    Settings that are not part of a run's identity count as well: they say when ranks exchange what.
    """
    same = run.replace(train=run.train.replace(data="", device="auto"))  # both may be called differently elsewhere
    first, *others = ranks.gathered((same, dataset.content_hash, device))
    for rank, other in enumerate(others, 1):
        if other[2] != first[2]:
            raise InputError(f"rank {rank} computes on {other[2]}, but rank 0 on {first[2]}; set train.device")
        if other[1] != first[1]:
            raise InputError(
                f"rank {rank} has other data than rank 0 (hash {other[1]} there, {first[1]} here); copy the directory "
                "of train.data to all machines"
            )
        if difference := first_difference(other[0], first[0]):
            raise InputError(
                f"rank {rank} has other settings than rank 0 ({difference}); give all ranks the same run file and "
                "overrides"
            )


class _RecordedRun:
    """A training loop whose steps are recorded and saved in a directory."""

    def __init__(self, loop: TrainingLoop, directory: RunDirectory, trackers: Sequence[Tracker]) -> None:
        self.loop, self.directory, self.trackers = loop, directory, trackers
        self.train, self.ranks = loop.run.train, loop.ranks
        self.pending: list[StepMetrics] = []
        self.product_speed = sum(loop.ranks.gathered(product_speed(loop.device, loop.dtype)))
        self.seconds_before = self._resume()
        self.steps_before = self.saved_step = loop.steps_done
        self.started = self.saved_at = self.flushed_at = time.monotonic()

    def go(self, should_stop: Callable[[], bool]) -> RunResult:
        """Step until the end, a divergence or a stop."""
        for tracker in self.trackers:
            tracker.begin(self.loop.run, self.steps_before)
        status: Status = "finished"
        while self.loop.steps_done < self.train.steps:
            outcome = self.loop.step(lambda: (should_stop(), self._is_time_to_save()))
            if not self._record(outcome):
                status = "diverged"
                break
            is_told, is_time_to_save = outcome.requests
            if time.monotonic() - self.flushed_at > METRICS_FLUSH_SECONDS:
                self._flush()
            if is_time_to_save or self._checkpoint_due():
                self._save()
            if is_told and self.loop.steps_done < self.train.steps:
                status = "stopped"
                break
        if status == "diverged":
            self._flush()
        else:
            self._save()
        for tracker in self.trackers:
            tracker.end()
        return self._end(status)

    def _record(self, outcome: StepOutcome) -> bool:
        """Validate if due, and record the step; return False if the run has diverged."""
        train, step = self.train, self.loop.steps_done
        diverged, val_loss = outcome.diverged, None
        if not diverged and train.eval_every > 0 and (step == train.steps or step % train.eval_every == 0):
            val_loss = self.loop.evaluate()
            diverged = self.loop.has_diverged(val_loss)
        metrics = self._metrics(outcome, val_loss)
        if diverged or val_loss is not None or step in (1, train.steps) or step % train.log_every == 0:
            self.pending.append(metrics)
        for tracker in self.trackers:
            tracker.log(metrics)
        return not diverged

    def _metrics(self, outcome: StepOutcome, val_loss: float | None) -> StepMetrics:
        loop, load_LE = self.loop, outcome.load_LE
        has_experts = load_LE.numel() > 0
        here = time.monotonic() - self.started
        tokens_here = (loop.steps_done - self.steps_before) * self.train.batch_tokens
        speed = tokens_here / max(here, 1e-9)
        return StepMetrics(
            step=loop.steps_done,
            loss=outcome.loss,
            val_loss=val_loss,
            lr_factor=outcome.lr_factor,
            tokens=loop.steps_done * self.train.batch_tokens,
            max_load_deviation=tuple(_max_deviation(load_LE, loop.run.model.n_act) if has_experts else ()),
            dead_experts=tuple((load_LE == 0).sum(-1).tolist() if has_experts else ()),
            bias_range=tuple(loop.model.bias_ranges()),
            seconds=round(self.seconds_before + here, 3),
            tokens_per_second=round(speed, 1),
            product_share=round(speed * loop.run.model.flops_per_token() / self.product_speed, 4),
        )

    def _flush(self) -> None:
        if self.ranks.is_first:
            self.directory.append_metrics(self.pending)
        self.pending.clear()
        self.flushed_at = time.monotonic()

    def _checkpoint_due(self) -> bool:
        every = self.train.checkpoint_steps
        return every is not None and self.loop.steps_done % every == 0

    def _is_time_to_save(self) -> bool:
        """Return whether rank 0 asks for a checkpoint: the clock of one rank decides."""
        return self.ranks.is_first and time.monotonic() - self.saved_at >= self.train.checkpoint_seconds

    def _save(self) -> None:
        """Save a checkpoint unless this step has been saved."""
        self._flush()
        if self.loop.steps_done == self.saved_step:
            return
        checkpoint = Checkpoint(
            step=self.loop.steps_done,
            weights=self.loop.weights(),
            optimizer=self.loop.optimizer_state(),
            metrics_bytes=self.ranks.first(lambda: self.directory.metrics_path.stat().st_size),
            seconds=self._seconds(),
        )
        save(self.directory, checkpoint, self.ranks)
        self.saved_at, self.saved_step = time.monotonic(), self.loop.steps_done

    def _resume(self) -> float:
        """Restore the newest checkpoint, if any, and return the seconds spent so far."""
        saved = resume(self.directory, self.ranks)
        if saved is None:
            return 0.0
        self.ranks.agreed(lambda: self.loop.restore(saved.step, saved.tensors))
        return saved.seconds

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _end(self, status: Status) -> RunResult:
        """Write and return the summary: the numbers of the last record, and the last validation loss."""
        return self.ranks.first(lambda: self._write_summary(status))

    def _write_summary(self, status: Status) -> RunResult:
        records = self.directory.metrics()
        last = records[-1]
        validations = [record.val_loss for record in records if record.val_loss is not None]
        result = RunResult(
            status=status,
            step=self.loop.steps_done,
            steps=self.train.steps,
            tokens=self.loop.steps_done * self.train.batch_tokens,
            train_loss=last.loss if math.isfinite(last.loss) else None,
            # A diverged run has no validation loss: an earlier one would be misleading.
            val_loss=validations[-1] if validations and status != "diverged" else None,
            max_load_deviation=last.load_deviation,
            dead_experts=sum(last.dead_experts) if last.dead_experts else None,
            seconds=round(self._seconds(), 3),
            world_size=self.ranks.size,
        )
        self.directory.write_summary(result)
        return result


def _environment(run: RunSpec, device: str, ranks: Ranks) -> dict[str, str | int]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{library: version(library) for library in run.model.libraries},
        "device": torch.cuda.get_device_name() if device == "cuda" else processor_name(),
        "threads": torch.get_num_threads(),
        "ranks": ranks.size,
    }


def _max_deviation(load_LE: Int[Tensor, "L E"], n_act: int) -> list[float]:
    """Return max |Load - kappa| over experts, per layer."""
    deviation: list[float] = load_deviation(load_LE, n_act).abs().amax(-1).tolist()
    return deviation
