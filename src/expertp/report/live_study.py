"""A study while it runs: what happens now, and the report's parts, provisional until all runs have ended."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from markupsafe import Markup

from expertp.errors import DamagedError, InputError, one_line
from expertp.figures.labels import HP_SHORT, axis_title, minus
from expertp.figures.save import Drawable, Drawing, render, to_csv
from expertp.report.elements import Item, Listing, Missing, Table
from expertp.report.live import NOW, Budget, Part, View
from expertp.report.live_charts import Line, line_chart
from expertp.report.pages import fill
from expertp.report.place import beside
from expertp.study.cells import Cell
from expertp.study.progress import ActiveRun, ProgressWatch, StudyProgress
from expertp.study.store import StudyDirectory, read_study
from expertp.study.table import ENDED, Result
from expertp.util.machine import core_share
from expertp.util.text import count, duration, plural

if TYPE_CHECKING:
    from expertp.figures.style import Figure

_Data = TypeVar("_Data", bound=Drawable)
# Running runs with a chart, groups of next runs, failures and lines of a worker's output that are shown.
MOST_CHARTS, MOST_NEXT, MOST_FAILURES, LOG_LINES = 12, 8, 50, 8
# CPU seconds of drawing all figures before it was measured.
FIRST_COST = 3.0
# Nobody trains if no worker was seen for so long: workers hold nothing between two runs, and take seconds to start.
QUIET_SECONDS = 15.0
TROUBLE = {"failed": 0, "damaged": 1, "diverged": 2, "stopped": 3}

Signature = tuple[object, ...]


@dataclass(frozen=True)
class RunningRun:
    """A run that is being trained, as its card shows it."""

    name: str
    label: str
    place: str
    facts: tuple[tuple[str, str], ...]
    chart: Markup | None


@dataclass(frozen=True)
class StudyNow:
    """The part on top of the page."""

    name: str
    state: str
    shares: tuple[tuple[str, float], ...]
    facts: tuple[tuple[str, str], ...]
    running: tuple[RunningRun, ...]
    tables: tuple[Item, ...]
    note: str
    looked_at: str


@dataclass
class Sketches:
    """Draws figures without PNG, and only those whose numbers have changed."""

    drawn: dict[str, Drawing] = field(default_factory=dict)

    def __call__(self, name: str, draw: Callable[[Figure, _Data], None], data: _Data) -> Drawing:
        """Return a figure; see `expertp.report.sections.Render`."""
        before = self.drawn.get(name)
        if before is None or before.csv != to_csv(data.rows()):
            self.drawn[name] = render(name, draw, data, has_png=False)
        return self.drawn[name]


class WatchedStudy:
    """Looks at a study's directory again and again, and writes nothing.

    Args:
        path: the directory.
        budget: what figures may cost while runs are trained.
    """

    def __init__(self, path: Path, budget: Budget) -> None:
        self.path, self.budget = path, budget
        self._watch, self._stamp = ProgressWatch(read_study(path)), _stamp(path / "study.json")
        self._sketches = Sketches()
        self._progress: StudyProgress | None = None
        self._drawn_from: Signature | None = None
        self._report: tuple[Part, ...] = ()
        self._last_losses = cache(lambda identity: _last_losses(self._watch.directory, identity))
        self._active_at, self._core_share = -math.inf, 1.0  # the share that a worker gets of its core
        self._cost, self._drawn_at, self._ended_then, self._trouble = FIRST_COST, "", 0, ""

    def look(self) -> View:
        """See `expertp.report.live.Watched`."""
        began = time.thread_time()
        stamp = _stamp(self.path / "study.json")
        if stamp != self._stamp:  # an adaptive sweep has chosen more cells, or the study has grown
            self._watch.directory, self._stamp = read_study(self.path), stamp
        directory = self._watch.directory = self._watch.directory.settled()
        progress = self._watch.look()
        shares = [core_share(run.holder.pid) for run in progress.running if run.holder.is_here]
        if known := [share for share in shares if share is not None]:
            self._core_share = statistics.fmean(known)
        trained = _trained_seconds(self._watch.results.values(), progress.running)
        self.budget.trained_seconds = self._core_share * trained
        if progress.running:
            self._active_at = time.monotonic()
        self._progress = progress
        now = self._now(directory, progress)
        html = fill("live_now.html", kind="study", now=now, path=str(self.path), box=_box(self._trouble))
        seconds = time.thread_time() - began
        return View(
            title=f"{progress.ended}/{progress.total} {directory.study.name}",
            parts=(Part(NOW, html), *self._report),
            cores=self._core_share * len(progress.running),
            look_seconds=seconds,
            is_provisional=not self._is_complete(),
        )

    def redraw(self) -> bool:
        """Make the parts of the report again if they have changed, and the budget allows it or nobody trains."""
        progress, signature = self._progress, self._signature()
        if progress is None or not progress.ended or signature == self._drawn_from:
            return False
        is_quiet = progress.ended == progress.total or time.monotonic() - self._active_at > QUIET_SECONDS
        if not (is_quiet or self.budget.allows(self._cost)):
            return False
        began = time.thread_time()
        try:
            self._report, self._trouble = self._drawn(self._watch.directory), ""
        except (DamagedError, InputError) as error:  # such as a damaged coordinate check: not drawn until it changes
            self._trouble = one_line(str(error))
        self._drawn_from, self._cost = signature, time.thread_time() - began
        self._drawn_at, self._ended_then = _clock(), progress.ended
        return True

    def _is_complete(self) -> bool:
        """Return whether all runs have ended and the report shows them."""
        progress = self._progress
        has_ended = progress is not None and progress.ended == progress.total
        return has_ended and self._drawn_from == self._signature()

    def _drawn(self, directory: StudyDirectory) -> tuple[Part, ...]:
        # scipy and matplotlib: only once there is something to judge and to draw
        from expertp.report.build import make_page
        from expertp.report.reading import read
        from expertp.report.sections import Album

        reading = read(directory)
        page = make_page(reading, Album(reading, self._sketches), "")
        names = ("overview", "verdict", *(section.anchor for section in page.sections))
        return tuple(Part(name, fill("live_part.html", page=page, name=name)) for name in names)

    def _signature(self) -> Signature:
        """Return what the report depends on."""
        ended = [(each.identity, each.status) for each in self._watch.results.values() if each.status in ENDED]
        return self._stamp, *sorted(ended), *((str(path), _stamp(path)) for path in beside(self.path))

    def _now(self, directory: StudyDirectory, progress: StudyProgress) -> StudyNow:
        counts = progress.counts
        left = progress.total - progress.ended - len(progress.running)
        shown = [(name, number) for name, number in counts.items() if name not in ("missing", "unfinished")]
        workers = max(1, len(progress.running))
        time_left = "" if not progress.seconds_left else duration(progress.seconds_left / workers)
        facts = [("ended", f"{progress.ended} of {progress.total}"), ("running", str(len(progress.running)))]
        facts += [("left", str(left))]
        facts += [(name, str(number)) for name, number in shown if number and name != "running"]
        facts += [("time left", f"about {time_left}")] if time_left else []
        return StudyNow(
            name=directory.study.name,
            state=_state(progress, left),
            shares=tuple((name, number / progress.total) for name, number in shown if number),
            facts=tuple(facts),
            running=tuple(_running(directory, run, place < MOST_CHARTS) for place, run in enumerate(progress.running)),
            tables=tuple(
                table
                for table in (
                    _next_runs(directory, self._watch.results, progress.running),
                    _models(progress),
                    _failures(directory, self._watch.results.values(), self._last_losses),
                    *_logs(directory.path / "workers"),
                )
                if table
            ),
            note=self._note(),
            looked_at=_clock(),
        )

    def _note(self) -> str:
        """Say how old the report below is, and whether it is final."""
        if not self._drawn_at:
            return (
                "Verdicts and figures follow below when the first runs have ended; drawing waits for its share of time."
            )
        if self._is_complete():
            return f"All runs have ended. The report below is complete, as of {self._drawn_at}."
        ended = plural(self._ended_then, "run")
        return f"Below: the report so far, provisional, from {ended} that had ended by {self._drawn_at}."


def _state(progress: StudyProgress, left: int) -> str:
    if progress.ended == progress.total:
        return f"All {plural(progress.total, 'run')} have ended"
    if progress.running:
        return f"{plural(len(progress.running), 'run')} in training, {left} left"
    return f"No worker is active; {plural(left, 'run')} left"


def _running(directory: StudyDirectory, run: ActiveRun, has_chart: bool) -> RunningRun:
    try:
        records = run.tail.look()
    except (DamagedError, OSError):
        records = ()
    label = _described(directory.cells_of[run.identity][0])
    facts, chart = [("step", f"{run.step} of {run.steps}")], None
    if records:
        last = records[-1]
        facts += [("loss", f"{last.loss:.3f}"), ("tokens/s", count(last.tokens_per_second))]
        if math.isfinite(last.product_share):
            facts.append(("of product speed", f"{last.product_share:.0%}"))
    if has_chart:
        points = [(float(each.step), each.loss) for each in records]
        chart = line_chart([Line(points)], run.steps, f"Training loss so far of {label}")
    name = directory.place(run.identity).name
    return RunningRun(name, label, f"{run.holder.host}, process {run.holder.pid}", tuple(facts), chart)


def _described(cell: Cell) -> str:
    value = (
        "zero-shot" if cell.hp is None or cell.value is None else f"{HP_SHORT[cell.hp]} 2^{minus(f'{cell.value:g}')}"
    )
    size = f"{axis_title(cell.axis)} {cell.size.label_on(cell.axis)}"
    return f"{size}, {cell.arm.name}, {value}, seed {cell.seed}"


def _next_runs(directory: StudyDirectory, results: Mapping[str, Result], running: Sequence[ActiveRun]) -> Table | None:
    """Return the runs that workers take next, in their order, and why; those of one curve share a row."""
    active, compared = {run.identity for run in running}, frozenset(directory.zero_shot_of.values())
    rows: dict[tuple[str, ...], list[Cell]] = {}
    for identity in directory.training_order:
        if identity in active or results[identity].status in ENDED:
            continue
        cell = directory.cells_of[identity][0]
        of = "zero-shot" if cell.hp is None else HP_SHORT[cell.hp]
        key = (
            axis_title(cell.axis),
            cell.size.label_on(cell.axis),
            cell.arm.name,
            of,
            _why(directory, cell, identity in compared, identity in directory.deciding),
        )
        rows.setdefault(key, []).append(cell)
    if not rows:
        return None
    shown = [
        (*key[:4], _values(found), ", ".join(map(str, sorted({cell.seed for cell in found}))), str(len(found)), key[4])
        for key, found in list(rows.items())[:MOST_NEXT]
    ]
    more = len(rows) - len(shown)
    caption = "Runs that come next, in the order in which workers take them"
    caption += f"; {plural(more, 'more row')} follow" if more else ""
    return Table(caption, ("axis", "size", "arm", "of", "values, log2", "seeds", "runs", "why"), tuple(shown))


def _values(cells: Sequence[Cell]) -> str:
    values = sorted({cell.value for cell in cells if cell.value is not None})
    return minus(", ".join(f"{value:g}" for value in values)) or "–"


def _why(directory: StudyDirectory, cell: Cell, is_compared_with: bool, is_deciding: bool) -> str:
    """Say why a run is trained."""
    if is_compared_with:
        return "others of its size and seed are compared with it"
    chosen = [each for each in directory.study.chosen or () if (each.axis, each.hp) == (cell.axis, cell.hp)]
    if chosen and chosen[0].why:
        return chosen[0].why
    return "the verdict of this axis needs it" if is_deciding else "no verdict depends on it; it comes last"


def _models(progress: StudyProgress) -> Table:
    """Return the runs of every model, and its best learning rate so far."""
    rows = [
        (
            each.model.label,
            each.arm.name,
            f"{each.ended}/{each.total}",
            str(each.counts["diverged"] or "–"),
            "–" if each.best_log2_lr is None else minus(f"{each.best_log2_lr:g}"),
            "–" if each.loss is None else f"{each.loss:.4f}",
        )
        for each in progress.models
    ]
    head = ("model", "arm", "ended", "diverged", "best log2_lr so far", "median loss there")
    return Table("Models", head, tuple(rows), numeric=4, is_folded=len(rows) > MOST_CHARTS)


def _failures(directory: StudyDirectory, results: Iterable[Result], last_losses: Callable[[str], str]) -> Table | None:
    """Return the runs that ended badly with their last lines: the error, or the last losses."""
    bad = sorted((each for each in results if each.status in TROUBLE), key=lambda each: TROUBLE[each.status])
    if not bad:
        return None
    rows = [
        (directory.place(each.identity).name, each.status, one_line(each.error) or last_losses(each.identity))
        for each in bad[:MOST_FAILURES]
    ]
    caption = f"{plural(len(bad), 'run')} that failed, diverged or were stopped, and their last lines"
    return Table(caption, ("run", "status", "last lines"), tuple(rows), is_folded=len(rows) > MOST_CHARTS)


def _last_losses(directory: StudyDirectory, identity: str) -> str:
    try:
        records = directory.records(identity)[-3:]
    except OSError:
        records = ()
    return "; ".join(f"step {each.step} loss {each.loss:.3f}" for each in records) or "no record"


def _logs(folder: Path) -> list[Listing]:
    """Return the last lines that workers have printed; they print only when something is wrong."""
    found = list[Listing]()
    for path in sorted(folder.glob("*.log")):
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 4000))
                text = file.read().decode(errors="replace")
        except OSError:
            continue
        if lines := text.strip().splitlines()[-LOG_LINES:]:
            found.append(
                Listing(f"log-{len(found)}", f"Last lines of worker {path.stem}", "\n".join(lines), is_folded=True)
            )
    return found


def _trained_seconds(results: Iterable[Result], running: Iterable[ActiveRun]) -> float:
    """Return the wall-clock time that workers have trained so far."""
    ended = sum(result.seconds or 0.0 for result in results)
    records = [run.tail.look() for run in running if run.step]
    return ended + sum(each[-1].seconds for each in records if each and math.isfinite(each[-1].seconds))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _box(text: str) -> Missing | None:
    return Missing(text, None) if text else None


def _clock() -> str:
    return time.strftime("%H:%M:%S")
