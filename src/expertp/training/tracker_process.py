"""A tracker's process, `python -m expertp.training.tracker_process`: reads what `ProcessTracker` writes, lines of JSON.

The first line describes the run, the others its steps; the last says that the run has ended. Without it, the run was
killed, and is marked as failed. A run that is resumed continues at the tracker: steps that it has are not sent again.
Lines are read as they come and wait here, so that the run never waits for a tracker.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from queue import Queue
from typing import Any, Protocol

from expertp.util.records import read_bounded

PROJECT = "expertp"
# Records that may wait for a slow tracker; further ones wait in the pipe and then in the run's process.
MOST_WAITING = 2**16


class Place:
    """What a tracker has of the run in a directory, in TRACKER.json there: the run's id and its last step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            tree = json.loads(read_bounded(path, "remove it"))
            self.id, self.last_step = str(tree["id"]), int(tree["last_step"])
        except (OSError, ValueError, KeyError, TypeError):  # the first time, or damaged: another run at the tracker
            self.id = secrets.token_hex(8)
            self.note(0)

    def note(self, step: int) -> None:
        """Record that the tracker has a step."""
        self.last_step = step
        partial = self._path.with_name(f".{self._path.name}.tmp")
        partial.write_text(json.dumps({"id": self.id, "last_step": step}), encoding="utf-8")
        os.replace(partial, self._path)


class Sink(Protocol):
    """Where metrics go."""

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Store the numbers of one step."""

    def finish(self, has_ended: bool) -> None:
        """Store what is left; `has_ended` is False for a run that was killed."""


class WandbSink:
    """A run of Weights & Biases; offline, its files are in `wandb/` in the run's directory, for `wandb sync`."""

    def __init__(self, head: Mapping[str, Any], identity: str) -> None:
        import wandb

        self._run = wandb.init(
            project=PROJECT,
            id=identity,
            resume="allow",
            name=head["name"],
            group=head["group"] or None,
            job_type=head["kind"] or None,
            config={**head["config"], **head["run"]},
            dir=head["out"],
            mode="offline" if head["tracker"] == "wandb-offline" else None,
            settings=wandb.Settings(console="off", x_disable_stats=True, disable_git=True, disable_code=True),
        )
        self._run.summary.update(dict(head["summary"]))

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """See `Sink`."""
        self._run.log(dict(scalars), step=step)

    def finish(self, has_ended: bool) -> None:
        """See `Sink`."""
        self._run.finish(exit_code=0 if has_ended else 1)


class TrackioSink:
    """A run of trackio, in its local database."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        import trackio

        self._trackio = trackio
        trackio.init(
            project=PROJECT,
            name=head["name"],
            group=head["group"] or None,
            config={"kind": head["kind"], **head["config"], **head["run"], **head["summary"]},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """See `Sink`."""
        self._trackio.log(dict(scalars), step=step)

    def finish(self, has_ended: bool) -> None:
        """See `Sink`."""
        del has_ended
        self._trackio.finish()


def read_ahead(pipe: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a pipe, which a thread reads as they come; a line that was cut off is left out."""
    lines: Queue[str | None] = Queue(MOST_WAITING)

    def read() -> None:
        for line in pipe:
            if line.endswith("\n"):
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, name="pipe", daemon=True).start()
    yield from iter(lines.get, None)


def pass_on(lines: Iterable[str]) -> None:
    """Send a run to its tracker."""
    source = iter(lines)
    head = json.loads(next(source))
    place = Place(Path(head["out"]) / f"{head['tracker']}.json")
    sink: Sink = TrackioSink(head) if head["tracker"] == "trackio" else WandbSink(head, place.id)
    has_ended = False
    for line in source:
        message = json.loads(line)
        if message.get("end"):
            has_ended = True
        elif message["step"] > place.last_step:
            sink.log(message["scalars"], message["step"])
            place.note(message["step"])
    sink.finish(has_ended)


if __name__ == "__main__":
    try:
        pass_on(read_ahead(sys.stdin))
    except BaseException:
        traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)  # Python cannot shut down while a thread reads the pipe
