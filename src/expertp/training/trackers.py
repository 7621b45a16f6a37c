"""Trackers: destinations of metrics in addition to the run directory.

TensorBoard writes files in this process. Weights & Biases and trackio run in a process of their own that reads metrics
from a pipe (`tracker_process.py`): nothing that they do, print or wait for reaches the run. A tracker that fails is
left out with one warning.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from expertp.errors import InputError, how_to_install, one_line
from expertp.spec import RunSpec, TrackerName
from expertp.training.records import StepMetrics
from expertp.training.train import Tracker
from expertp.util.text import plural

# The package of each tracker, which is also the name of the extra that installs it.
PACKAGES: Mapping[TrackerName, str] = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "wandb-offline": "wandb",
    "trackio": "trackio",
}
# Bytes that may wait for a tracker's process, and seconds that the end of a run gives it to take them.
MOST_WAITING, END_SECONDS = 2**20, 5.0


@dataclass(frozen=True)
class Labels:
    """What a tracker calls a run.

    Args:
        name: name of the run.
        group: what it belongs to, such as a study.
        kind: what it is within its group, such as an arm.
        config: what the tracker can group and filter runs by.
        summary: results that are known from the start.
    """

    name: str
    group: str = ""
    kind: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)


def make_tracker(name: TrackerName, out: str | Path, labels: Labels | None = None) -> Tracker:
    """Return a tracker of the run in a directory; one that is not installed is an `InputError`."""
    check_tracker(name)
    labels = labels or Labels(Path(out).name)
    return Guarded(TensorBoardTracker(out)) if name == "tensorboard" else ProcessTracker(name, out, labels)


def check_tracker(name: TrackerName) -> None:
    """Raise `InputError` if a tracker is not installed."""
    if importlib.util.find_spec(PACKAGES[name]) is None:
        raise InputError(f"the tracker {name} is not installed; {how_to_install(PACKAGES[name])}")


def scalars(metrics: StepMetrics) -> dict[str, float]:
    """Return the numbers of a step by the names that trackers show."""
    found = {
        "loss/train": metrics.loss,
        "loss/validation": metrics.val_loss,
        "schedule/lr_factor": metrics.lr_factor,
        "speed/tokens_per_second": metrics.tokens_per_second,
        "speed/product_share": metrics.product_share,
        "load/max_deviation": metrics.load_deviation,
        "load/dead_experts": sum(metrics.dead_experts) if metrics.dead_experts else None,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


class TensorBoardTracker:
    """Write losses, loads and speed as TensorBoard scalars to `tensorboard/` in the run directory."""

    def __init__(self, out: str | Path) -> None:
        self._directory = Path(out) / "tensorboard"

    def begin(self, run: RunSpec, steps_done: int) -> None:
        """Open the log and discard records of later steps, which an earlier crash may have left."""
        from torch.utils.tensorboard import SummaryWriter

        del run
        self._writer = SummaryWriter(str(self._directory), purge_step=steps_done + 1)

    def log(self, metrics: StepMetrics) -> None:
        """Write the scalars of one step."""
        for name, value in scalars(metrics).items():
            self._writer.add_scalar(name, value, metrics.step)
        self._writer.flush()

    def end(self) -> None:
        """Close the log."""
        self._writer.close()


class Guarded:
    """A tracker that is left out, with one warning, once it has raised an error."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker, self._has_failed = tracker, False

    def begin(self, run: RunSpec, steps_done: int) -> None:
        """See `expertp.training.train.Tracker`."""
        self._try(lambda: self._tracker.begin(run, steps_done))

    def log(self, metrics: StepMetrics) -> None:
        """See `expertp.training.train.Tracker`."""
        self._try(lambda: self._tracker.log(metrics))

    def end(self) -> None:
        """See `expertp.training.train.Tracker`."""
        self._try(self._tracker.end)

    def _try(self, call: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            call()
        except Exception as error:
            self._has_failed = True
            name = type(self._tracker).__name__
            warnings.warn(f"{name} has failed ({one_line(str(error))}); the run goes on without it", stacklevel=3)


class ProcessTracker:
    """Sends metrics to a tracker in another process and never waits for it, except for seconds at the end.

    The process takes records as they come and keeps them until the tracker has them. If it does not, records are lost
    to the tracker, with one warning at the end; the run directory has them all.

    Args:
        name: the tracker.
        out: directory of the run; what the tracker prints is in NAME.log there.
        labels: what the tracker calls the run.
    """

    def __init__(self, name: TrackerName, out: str | Path, labels: Labels) -> None:
        self.name, self.out, self.labels = name, Path(out), labels
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting, self.lost = b"", 0

    @property
    def log_path(self) -> Path:
        """Where the tracker's output is."""
        return self.out / f"{self.name}.log"

    def begin(self, run: RunSpec | None, steps_done: int = 0) -> None:
        """Start the process and tell it about the run; without a run, only the labels are tracked."""
        del steps_done  # the process knows which steps the tracker has
        tree = {} if run is None else run.to_dict()
        head = {**asdict(self.labels), "tracker": self.name, "out": str(self.out), "run": tree}
        try:
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "expertp.training.tracker_process"],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the run: the tracker ends when the pipe does
                )
        except OSError as error:
            self._give_up(str(error))
            return
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._send(head)

    def log(self, metrics: StepMetrics) -> None:
        """Send one step."""
        if self._process is not None:
            self._send({"step": metrics.step, "scalars": scalars(metrics)})

    def end(self) -> None:
        """Say that the run has ended. The process takes its time to store or upload what it has."""
        if self._process is None:
            return
        last = _line({"end": True})
        self._waiting += last
        self._flush()
        ends_at = time.monotonic() + END_SECONDS
        while self._process is not None and self._waiting and time.monotonic() < ends_at:
            assert self._process.stdin is not None
            select.select([], [self._process.stdin], [], 0.1)
            self._flush()
        left = self.lost + self._waiting.removesuffix(last).count(b"\n")
        if self._process is not None and (left or self._waiting):
            self._give_up(f"it did not take {plural(left, 'record')}")
        elif self._process is not None:
            self._close(self._process)

    def _send(self, message: Mapping[str, Any]) -> None:
        line = _line(message)
        if len(self._waiting) + len(line) > MOST_WAITING:
            self.lost += 1
        else:
            self._waiting += line
        self._flush()

    def _flush(self) -> None:
        """Write as much as the pipe takes."""
        if self._process is None or self._process.stdin is None:
            return
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._process.stdin.fileno(), self._waiting) :]
        except BlockingIOError:
            pass
        except OSError:
            self._give_up(f"it has ended; see {self.log_path}")

    def _give_up(self, why: str) -> None:
        process, self._process, self._waiting = self._process, None, b""
        if process is not None:
            self._close(process)
        warnings.warn(f"the tracker {self.name} has failed: {one_line(why)}; {self.out} has all records", stacklevel=4)

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with suppress(OSError):  # the process has ended
            process.stdin.close()
        threading.Thread(target=process.wait, name="tracker", daemon=True).start()


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
