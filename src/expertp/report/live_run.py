"""One run while it is trained: losses, learning rates, loads and speed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from expertp.adapters.fit import Fit
from expertp.errors import DamagedError
from expertp.report.elements import Item, Missing
from expertp.report.live import NOW, Part, View
from expertp.report.live_charts import Chart, Line, heat_map, line_chart
from expertp.report.pages import fill
from expertp.report.planned import plan_table, tensor_table
from expertp.spec import RunSpec
from expertp.training.records import RunResult, StepMetrics
from expertp.training.resolution import plan_run
from expertp.training.store import RunDirectory, read_run
from expertp.training.tail import RecordsTail
from expertp.util.statistics import RunningMean
from expertp.util.text import count, duration, plural

# A run whose last record is older, in steps and in seconds, is not being trained, as far as files tell.
SILENT_STEPS, SILENT_SECONDS = 20, 30.0
# Learning rates whose groups are named; a plan rarely has more.
MOST_RATES = 12


@dataclass(frozen=True)
class RunNow:
    """The part on top of the page."""

    state: str
    share: float
    facts: tuple[tuple[str, str], ...]
    charts: tuple[Chart, ...]
    looked_at: str


class WatchedRun:
    """Looks at a run's directory again and again, and writes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._directory, self._tail = read_run(path), RecordsTail(path / "metrics.jsonl")
        self._settings = Part("settings", fill("live_now.html", kind="settings", items=_settings(self._directory)))

    def look(self) -> View:
        """See `expertp.report.live.Watched`."""
        began, box = time.thread_time(), None
        try:
            records: Sequence[StepMetrics] = self._tail.look()
            summary = self._directory.summary()
        except DamagedError as error:
            records, summary, box = (), None, Missing(str(error), None)
        run = self._directory.run
        state, is_active = _state(run, records, summary, self._silent_seconds())
        now = RunNow(
            state=state,
            share=records[-1].step / run.train.steps if records else 0.0,
            facts=_facts(run, records, is_active),
            charts=_charts(run, records),
            looked_at=time.strftime("%H:%M:%S"),
        )
        html = fill("live_now.html", kind="run", now=now, path=str(self.path), box=box)
        title = f"{now.share:.0%} {self.path.name}"
        seconds = time.thread_time() - began
        return View(title, (Part(NOW, html), self._settings), cores=float(is_active), look_seconds=seconds)

    def redraw(self) -> bool:
        """See `expertp.report.live.Watched`."""
        return False

    def _silent_seconds(self) -> float:
        """Return how long ago a record was written."""
        try:
            return time.time() - self._tail.path.stat().st_mtime
        except FileNotFoundError:
            return math.inf


def _settings(directory: RunDirectory) -> tuple[Item, ...]:
    made = plan_run(directory.run)
    return (tensor_table(made) if isinstance(made, Fit) else plan_table(made),)


def _state(run: RunSpec, records: Sequence[StepMetrics], summary: RunResult | None, silent: float) -> tuple[str, bool]:
    """Say in words how the run is, and whether it is being trained."""
    if summary is not None and summary.has_ended:
        how = "Finished" if summary.status == "finished" else "Diverged"
        return f"{how} at step {summary.step} of {run.train.steps}, after {duration(summary.seconds)}", False
    if not records:
        return "No step is recorded yet", False
    last = records[-1]
    where = f"step {last.step} of {run.train.steps}"
    step_seconds = run.train.batch_tokens / last.tokens_per_second if last.tokens_per_second > 0 else 0.0
    if silent > max(SILENT_SECONDS, SILENT_STEPS * step_seconds * run.train.log_every):
        return f"No record for {duration(silent)}, at {where}: the run seems to be stopped", False
    return f"In training, {where}", True


def _facts(run: RunSpec, records: Sequence[StepMetrics], is_active: bool) -> tuple[tuple[str, str], ...]:
    if not records:
        return (("steps", str(run.train.steps)),)
    last, mean = records[-1], RunningMean()
    smoothed = [mean.add(each.loss) for each in records][-1]
    validations = [each.val_loss for each in records if each.val_loss is not None]
    facts = [("loss", f"{last.loss:.4f}"), ("smoothed", f"{smoothed:.4f}")]
    facts += [("validation", f"{validations[-1]:.4f}")] if validations else []
    facts += [("lr of the base", f"{run.hps.lr * last.lr_factor:.4g}")]
    if last.load_deviation is not None:
        facts += [("max |Load − κ|", f"{last.load_deviation:.3f}"), ("dead experts", str(sum(last.dead_experts)))]
    facts += [("tokens", count(last.tokens)), ("tokens/s", count(last.tokens_per_second))]
    if math.isfinite(last.product_share):
        facts.append(("of product speed", f"{last.product_share:.0%}"))
    if is_active and last.tokens_per_second > 0:
        left = (run.train.steps - last.step) * run.train.batch_tokens / last.tokens_per_second
        facts.append(("time left", f"about {duration(left)}"))
    return tuple(facts)


def _charts(run: RunSpec, records: Sequence[StepMetrics]) -> tuple[Chart, ...]:
    end, mean = run.train.steps, RunningMean()
    raw = [(float(each.step), each.loss) for each in records]
    smooth = [(step, mean.add(loss)) for step, loss in raw]
    validation = [(float(each.step), each.val_loss) for each in records if each.val_loss is not None]
    losses = [Line(raw, "faint"), Line(smooth), Line(validation, "other")]
    charts = [
        Chart(
            "Loss",
            line_chart(losses, end, "Training loss, smoothed loss and validation loss over steps"),
            "Nats per token over steps. Faint: every record; line: running mean; second colour: validation.",
        ),
        _rates(run, records),
    ]
    if any(each.max_load_deviation for each in records):
        charts.append(_loads(run, records))
    speed = [(float(each.step), each.tokens_per_second) for each in records]
    shares = [(float(each.step), each.product_share) for each in records]
    return (
        *charts,
        Chart(
            "Tokens per second",
            line_chart([Line(speed)], end, "Tokens per second over steps", number=count),
            "Mean since the run was started or resumed.",
        ),
        Chart(
            "Share of the speed of matrix products",
            line_chart([Line(shares)], end, "Share of the speed of matrix products", number="{:.0%}".format),
            "FLOPs per second of training beside those of matrix products, measured where the run is trained.",
        ),
    )


def _rates(run: RunSpec, records: Sequence[StepMetrics]) -> Chart:
    """Return the learning rates of all groups; groups with the same one share a line."""
    groups: dict[float, list[str]] = {}
    for name, lr in learning_rates(run):
        groups.setdefault(lr, []).append(name)
    lines = [Line([(float(each.step), lr * each.lr_factor) for each in records]) for lr in groups]
    named = sorted(groups.items(), reverse=True)
    texts = [f"{lr:.3g}: {', '.join(names)}" for lr, names in named[:MOST_RATES]]
    more = [f"{plural(len(named) - MOST_RATES, 'more rate')}"] if len(named) > MOST_RATES else []
    svg = line_chart(lines, run.train.steps, "Learning rates of all parameter groups over steps", is_log=True)
    return Chart("Learning rates", svg, f"Peak of each line and its groups. {'; '.join([*texts, *more])}.")


def learning_rates(run: RunSpec) -> list[tuple[str, float]]:
    """Return the planned learning rate of every parameter group that Adam trains, or of every role of a family."""
    made = plan_run(run)
    if isinstance(made, Fit):
        return list(dict.fromkeys((each.role, each.lr) for each in made.tensors))
    found = [(name, group.lr) for name, group in made.groups.items() if name != "expert_bias"]
    return [(name, lr) for name, lr in found if lr is not None]


def _loads(run: RunSpec, records: Sequence[StepMetrics]) -> Chart:
    columns = [(each.step, each.max_load_deviation) for each in records if each.max_load_deviation]
    top = max(max(values) for _, values in columns)
    return Chart(
        "Loads",
        heat_map(columns, run.train.steps, top, "Largest deviation of a load per layer over steps"),
        f"Largest |Load − κ| of each layer over steps, layer 1 on top. Full colour: {top:.3f}; no colour: 0, perfect "
        f"balance. An expert that gets every token has {float(1 - run.model.kappa):.3g}.",
    )
