"""What a live page shows: parts with versions, and a thread that keeps them current at a bounded cost.

The thread looks at a directory every few seconds while a page is open. A look is cheap and refreshes the part on top.
The parts of the report are drawn again when their runs have changed and the budget allows it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

from expertp.errors import InputError, one_line
from expertp.report.elements import Missing
from expertp.report.pages import fill

# Seconds between two looks, which grow with the cost of a look, and from the last request until the thread rests.
LOOK_SECONDS, LONGEST_PAUSE, IDLE_SECONDS = 2.0, 600.0, 90.0
# Share of the sweep's CPU time that this process may take, and the share that looks take of it.
SHARE, LOOK_SHARE = 0.018, 0.25
NOW = "now"


@dataclass(frozen=True)
class Part:
    """A part of a page: the HTML of one element, escaped."""

    anchor: str
    html: str

    @cached_property
    def version(self) -> str:
        """What changes when the part changes."""
        return hashlib.sha256(self.html.encode(errors="replace")).hexdigest()[:16]


@dataclass(frozen=True)
class View:
    """What a page shows at a moment.

    Args:
        title: title of the page.
        parts: its parts, from top to bottom.
        cores: number of cores that train what is shown, about.
        look_seconds: CPU time of the look, without figures that were drawn.
        is_provisional: whether runs are left, so that verdicts may change.
    """

    title: str
    parts: tuple[Part, ...]
    cores: float = 0.0
    look_seconds: float = 0.0
    is_provisional: bool = False


@dataclass
class Budget:
    """Bounds the CPU time of this process to a share of the CPU time of the training that it shows.

    Args:
        share: the share.
        trained_seconds: CPU time of the training so far.
    """

    share: float = SHARE
    trained_seconds: float = 0.0

    def allows(self, seconds: float) -> bool:
        """Return whether so many seconds of CPU time may be spent now."""
        return time.process_time() + seconds <= self.share * self.trained_seconds


@runtime_checkable
class Watched(Protocol):
    """A study or a run that is looked at again and again."""

    def look(self) -> View:
        """Return what the page shows now, in milliseconds."""

    def redraw(self) -> bool:
        """Draw again what is expensive to draw, if it is due; return whether the next look will show more."""


@dataclass
class Waiting:
    """A directory that holds neither a study nor a run yet."""

    path: Path

    def look(self) -> View:
        """See `Watched`."""
        text = (
            f"`{self.path}` holds no study and no run yet. This page follows as soon as `expertp sweep STUDY.yaml "
            "--out DIR` or `expertp train RUN.yaml --out DIR` has begun there."
        )
        html = fill("live_now.html", kind="waiting", path=str(self.path), box=Missing(text, None))
        return View(f"Waiting for {self.path.name}", (Part(NOW, html),))

    def redraw(self) -> bool:
        """See `Watched`."""
        return False


def watched(path: Path, budget: Budget) -> Watched:
    """Return the study or the run in a directory, or what waits for one."""
    if (path / "study.json").exists():
        from expertp.report.live_study import WatchedStudy

        return WatchedStudy(path, budget)
    if (path / "run.json").exists():
        from expertp.report.live_run import WatchedRun

        return WatchedRun(path)
    return Waiting(path)


@dataclass
class Follower:
    """Keeps the view of a directory current in a thread, while somebody asks for it.

    Args:
        path: the directory; it may not exist yet.
        budget: bounds the CPU time.

    Attributes:
        pause: seconds until the next look.
    """

    path: Path
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        self._subject: Watched = Waiting(self.path)
        self._view = self._subject.look()
        self.pause = LOOK_SECONDS
        self._asked_at = time.monotonic()
        self._is_wanted, self._is_back = threading.Event(), threading.Event()
        self._has_ended, self._has_looked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it draws at this moment is not waited for."""
        self._has_ended.set()
        self._is_wanted.set()
        self._is_back.set()

    def view(self) -> View:
        """Return the newest view, and keep it current for a while; waits for the first one."""
        if time.monotonic() - self._asked_at > IDLE_SECONDS:  # what is there may be old
            self._has_looked.clear()
            self._is_back.set()
        self._asked_at = time.monotonic()
        self._is_wanted.set()
        self._has_looked.wait(timeout=LOOK_SECONDS)
        return self._view

    def look(self) -> View:
        """Look at the directory now; what is wrong with it is part of the view."""
        try:
            if isinstance(self._subject, Waiting) or not self.path.exists():
                self._subject = watched(self.path, self.budget)
            self._view = self._subject.look()
            self._has_looked.set()
            if self._subject.redraw():
                self._view = self._subject.look()
        except (InputError, OSError) as error:  # damaged, or a file server that does not answer
            self._view = _with_trouble(self._view, one_line(str(error)))
        except Exception as error:  # the page must go on, and say so
            self._view = _with_trouble(self._view, one_line(f"{type(error).__name__}: {error}"))
        self._has_looked.set()
        return self._view

    def _follow(self) -> None:
        seen: Watched | None = None
        while not self._has_ended.is_set():
            self._is_back.clear()
            view = self.look()
            # The first look at a subject reads all that has ended; the later ones tell what a look costs.
            self.pause = pause_after(view, self.budget.share) if self._subject is seen else LOOK_SECONDS
            seen = self._subject
            self._is_back.wait(self.pause)
            if time.monotonic() - self._asked_at > IDLE_SECONDS:
                self._is_wanted.clear()
                self._is_wanted.wait()


def pause_after(view: View, share: float = SHARE) -> float:
    """Return the seconds until the next look, with which looks keep to their part of the share of CPU time.

    >>> pause_after(View("cheap", (), cores=2, look_seconds=0.01)), pause_after(View("idle", (), look_seconds=1))
    (2.0, 2.0)
    >>> round(pause_after(View("expensive", (), cores=2, look_seconds=1)))
    111
    """
    allowed = LOOK_SHARE * share * view.cores  # CPU seconds per second
    return min(max(LOOK_SECONDS, view.look_seconds / allowed if allowed else 0.0), LONGEST_PAUSE)


def _with_trouble(view: View, text: str) -> View:
    """Return a view that says what is wrong, and shows the rest as it was; the next look may come soon."""
    html = fill("live_now.html", kind="trouble", path="", box=Missing(text, None))
    kept: Sequence[Part] = [part for part in view.parts if part.anchor != "trouble"]
    return View(view.title, (Part("trouble", html), *kept), view.cores, is_provisional=view.is_provisional)
