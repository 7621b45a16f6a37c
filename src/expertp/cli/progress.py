"""Progress of long work: a rich progress bar on a terminal, otherwise one line every 30 s."""

import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

HEARTBEAT_SECONDS = 30.0
# How often a bar changes, at most.
BAR_SECONDS = 0.1


class _Bar(Progress):
    """A progress bar with lines of text above it."""

    above = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the text and the bar."""
        if self.above:
            yield Text(self.above)
        yield from super().get_renderables()


class Reporter:
    """Show progress on standard error; a context manager.

    Args:
        title: name of the work, one or two words.
        total: the value of `done` at the end; None if unknown.
        terminal: draw a bar (default: if standard error is a terminal).
        heartbeat: seconds between two lines if there is no bar.
        shows_time: show the bar's estimate of the remaining time.
    """

    def __init__(
        self,
        title: str,
        total: float | None,
        terminal: bool | None = None,
        heartbeat: float = HEARTBEAT_SECONDS,
        shows_time: bool = True,
    ) -> None:
        self._title, self._total, self._heartbeat = title, total, heartbeat
        self._started = self._last_line = time.monotonic()
        self._last_bar = 0.0
        self._bar: _Bar | None = None
        if sys.stderr.isatty() if terminal is None else terminal:
            self._bar = _Bar(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=16),
                TaskProgressColumn(),
                *([TimeRemainingColumn()] if shows_time else []),
                TextColumn("{task.fields[detail]}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(title, total=total, detail="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    @property
    def has_bar(self) -> bool:
        """Whether a bar is drawn, and not lines."""
        return self._bar is not None

    def is_due(self) -> bool:
        """Return whether an update would show; work that takes milliseconds need not describe every step."""
        if self._bar:
            return time.monotonic() - self._last_bar >= BAR_SECONDS
        return time.monotonic() - self._last_line >= self._heartbeat

    def update(self, done: float, detail: str, above: str = "") -> None:
        """Show that `done` of `total` is complete.

        `detail` is shown next to the bar or in the heartbeat line, `above` above the bar only.
        """
        if self._bar:
            self._last_bar = time.monotonic()
            self._bar.above = above
            self._bar.update(self._task, completed=done, detail=detail)
        elif time.monotonic() - self._last_line >= self._heartbeat:
            self._last_line = time.monotonic()
            self.line(f"{self._share(done)}{detail}, {self._last_line - self._started:.0f} s")

    def line(self, text: str) -> None:
        """Print one permanent line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(f"{self._title}: {text}", file=sys.stderr, flush=True)

    def _share(self, done: float) -> str:
        return f"{done / self._total:.0%}, " if self._total else ""
