"""How long work shows itself: a rich bar on a terminal, one heartbeat line each 30 s everywhere else."""

import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

HEARTBEAT_SECONDS = 30.0


class _Bar(Progress):
    """A bar with some lines of text above it."""

    above = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield what is drawn, from top to bottom."""
        if self.above:
            yield Text(self.above)
        yield from super().get_renderables()


class Reporter:
    """Shows progress towards `total` (None: unknown) on standard error, as a context manager.

    Args:
        title: what is being done, a word or two.
        total: the value of `done` at the end, or None when nobody knows.
        terminal: draw a bar; by default when standard error is a terminal.
        heartbeat: seconds between two lines when there is no terminal.
        shows_time: let the bar guess the time left; not where the caller knows better and says it.
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

    def update(self, done: float, detail: str, above: str = "") -> None:
        """Say how far the work is (`done` out of `total`) and what there is to see.

        `detail` stands beside the bar or in the heartbeat; `above`, a small table, only over a bar.
        """
        if self._bar:
            self._bar.above = above
            self._bar.update(self._task, completed=done, detail=detail)
        elif time.monotonic() - self._last_line >= self._heartbeat:
            self._last_line = time.monotonic()
            self.line(f"{self._share(done)}{detail}, {self._last_line - self._started:.0f} s")

    def line(self, text: str) -> None:
        """Print one line that stays: above the bar on a terminal, plainly elsewhere."""
        if self._bar:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(f"{self._title}: {text}", file=sys.stderr, flush=True)

    def _share(self, done: float) -> str:
        return f"{done / self._total:.0%}, " if self._total else ""
