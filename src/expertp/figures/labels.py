"""Names and number formats shared by figures, and summaries of losses over seeds."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from expertp.analysis.verdict import Verdict
from expertp.study.spec import HP
from expertp.util.statistics import confidence
from expertp.util.text import plural

# Name in place of an axis where only the base is shown.
BASE = "base"
AXIS_TITLES = {
    BASE: "at the base",
    "width": "width (n_embd)",
    "depth": "depth (n_layer)",
    "experts": "experts (n_exp)",
    "alpha": "expert size (alpha_ffn)",
    "fixed_topk": "experts, fixed top-k (n_exp)",
}
HP_TITLES: dict[HP, str] = {"log2_lr": "log₂ learning rate", "log2_init_std": "log₂ init std"}
HP_SHORT: dict[HP, str] = {"log2_lr": "lr", "log2_init_std": "init std"}
# Space without a width.
ZERO_WIDTH = "\u200b"
LOSS = "validation loss (nats)"
LOSS_COLUMNS = ("median", "min", "max", "n", "diverged", "stopped", "missing")


def axis_title(axis: str) -> str:
    """Return the title of an axis, with the field that it changes.

    >>> axis_title("width"), axis_title("all")
    ('width (n_embd)', 'all (joint scale)')
    """
    return AXIS_TITLES.get(axis, f"{axis} (joint scale)")


def axes_with_data(axes: Sequence[str], known: Container[str]) -> tuple[str, ...]:
    """Return the axes that get a column of panels: those with data, or all where none has any.

    >>> axes_with_data(("width", "depth"), {"depth"}), axes_with_data(("width", "depth"), ())
    (('depth',), ('width', 'depth'))
    """
    return tuple(axis for axis in axes if axis in known) or tuple(axes)


def interval_label(verdicts: Iterable[Verdict], hp: HP) -> str:
    """Return the name of a hyperparameter with the confidence of its intervals, which may differ between verdicts."""
    tails = [each.tail for each in verdicts if each.hp == hp]
    ends = dict.fromkeys(confidence(tail) for tail in (max(tails), min(tails)))
    return f"{HP_SHORT[hp]}, {' to '.join(ends)} interval"


def as_drawn(text: str) -> str:
    r"""Return a text from outside, such as the name of an arm, such that matplotlib draws it as it is.

    matplotlib reads text between dollar signs as a formula, and leaves labels with a leading underscore out of legends.

    >>> as_drawn(r"$\bad$"), as_drawn("two\nlines"), as_drawn("_hidden") == f"{ZERO_WIDTH}_hidden"
    ('\\$\\bad\\$', 'two lines', True)
    """
    text = " ".join(text.split()).replace("$", r"\$")
    return f"{ZERO_WIDTH}{text}" if text.startswith("_") else text


@dataclass(frozen=True)
class LossSummary:
    """Final losses of one configuration over seeds: counts, median and range.

    `median` is None where a run has diverged or was stopped, since a median over the other seeds would be biased; `low`
    and `high` are over the finished runs.
    """

    n: int
    diverged: int
    stopped: int
    missing: int
    median: float | None
    low: float | None
    high: float | None

    @property
    def of(self) -> str:
        """Diverged runs out of the runs that have ended, such as "2/3"."""
        return f"{self.diverged}/{self.runs}"

    @property
    def mark(self) -> str:
        """What stands in place of a median: "2/3" for diverged runs, "1/3s" for stopped ones; empty if there are none.

        >>> summarize([3.0, math.inf, math.inf], stopped=1).mark
        '1/3 1/3s'
        """
        stopped = f"{self.stopped}/{self.runs}s" if self.stopped else ""
        return " ".join(filter(None, (self.of if self.diverged else "", stopped)))

    @property
    def numbers(self) -> dict[str, float | None]:
        """Columns of a CSV."""
        values = (self.median, self.low, self.high, self.n, self.diverged, self.stopped, self.missing)
        return dict(zip(LOSS_COLUMNS, values, strict=True))

    @property
    def runs(self) -> int:
        """Number of runs that have ended, diverged and stopped ones included."""
        return self.n + self.diverged + self.stopped


def summarize(losses: Iterable[float], stopped: int = 0) -> LossSummary:
    """Summarize losses over seeds; inf is a diverged run or one of those that were stopped, nan a missing one.

    >>> summarize([3.0, 3.2, math.inf])
    LossSummary(n=2, diverged=1, stopped=0, missing=0, median=None, low=3.0, high=3.2)
    """
    losses = list(losses)
    finished = [loss for loss in losses if math.isfinite(loss)]
    infinite = losses.count(math.inf)
    return LossSummary(
        n=len(finished),
        diverged=infinite - stopped,
        stopped=stopped,
        missing=sum(math.isnan(loss) for loss in losses),
        median=float(np.median(finished)) if finished and not infinite else None,
        low=min(finished, default=None),
        high=max(finished, default=None),
    )


def known(value: float | None) -> float | None:
    """Return a number, or None for nan.

    >>> known(math.nan), known(0.5), known(math.inf)
    (None, 0.5, inf)
    """
    return None if value is None or math.isnan(value) else value


def thinned(values: Sequence[float], most: int = 160) -> list[int]:
    """Return indices of a series to draw: all of a short one, else some evenly spaced in value and in logarithm.

    >>> thinned([0.0] * 5), len(thinned([0.0] * 5000)) <= 160
    ([0, 1, 2, 3, 4], True)
    """
    if len(values) <= most:
        return list(range(len(values)))
    early = np.unique(np.round(np.geomspace(1, len(values), most // 2)).astype(int)) - 1
    even = np.linspace(0, len(values) - 1, most - most // 2).astype(int)
    return sorted(set(early.tolist()) | set(even.tolist()))


def signed(value: float, digits: int) -> str:
    """Write a number with its sign; the minus is typographic, and a rounded zero is positive.

    >>> signed(-0.5, 2), signed(0.25, 2), signed(-0.001, 2)
    ('−0.50', '+0.25', '+0.00')
    """
    return minus(f"{value:+z.{digits}f}")


def minus(text: str) -> str:
    """Return a text with typographic minus signs."""
    return text.replace("-", "\N{MINUS SIGN}")


def span(values: Iterable[object]) -> str:
    """Write the first and last of ordered values, or one where they are equal.

    >>> span([6, 6]), span([5, 6, 6])
    ('6', '5–6')
    """
    written = [str(value) for value in values]
    return written[0] if written[0] == written[-1] else f"{written[0]}–{written[-1]}"


def seeds_label(counts: Iterable[int]) -> str:
    """Return the number of seeds of a figure in words.

    >>> seeds_label([4, 3, 4]), seeds_label([1]), seeds_label([])
    ('n = 3–4 seeds', 'n = 1 seed', 'n = 0 seeds')
    """
    ordered = sorted(counts) or [0]
    return f"n = {plural(ordered[0], 'seed') if ordered[0] == ordered[-1] else f'{span(ordered)} seeds'}"
