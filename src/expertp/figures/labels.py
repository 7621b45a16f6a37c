"""What figures call things, and how a handful of losses over seeds is summed up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from expertp.study import HP, StudySpec

# What stands in the place of an axis where only the base is shown.
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
LOSS = "validation loss (nats)"


def axis_title(axis: str) -> str:
    """Return the name of an axis, with the field that it moves.

    >>> axis_title("all $")
    'all \\\\$ (joint scale)'
    """
    return AXIS_TITLES.get(axis, f"{axis} (joint scale)".replace("$", r"\$"))  # a dollar would begin a formula


def size_label(study: StudySpec, axis: str, scale: float) -> str:
    """Return a size in the unit of its axis; a joint scaling has none but the scale."""
    if axis in study.joint:
        return f"{scale:.3g}×"
    return f"{study.size_of(axis, study.models(axis)[scale]):g}"


@dataclass(frozen=True)
class Cell:
    """Losses of the same run over seeds: how many there are, and how they lie.

    `median` is None where a run has diverged, since a median over the lucky seeds would flatter; `low` and `high` are
    over those that have finished.
    """

    n: int
    diverged: int
    missing: int
    median: float | None
    low: float | None
    high: float | None

    @property
    def of(self) -> str:
        """Say how many have diverged: "2/3"."""
        return f"{self.diverged}/{self.runs}"

    @property
    def numbers(self) -> dict[str, float | None]:
        """What a table tells of it."""
        return {
            "median": self.median,
            "min": self.low,
            "max": self.high,
            "n": self.n,
            "diverged": self.diverged,
            "missing": self.missing,
        }

    @property
    def runs(self) -> int:
        """How many there are, diverged ones included."""
        return self.n + self.diverged


def cell(losses: Iterable[float]) -> Cell:
    """Sum up losses over seeds, in which inf is a diverged run and nan a missing one.

    >>> cell([3.0, 3.2, math.inf])
    Cell(n=2, diverged=1, missing=0, median=None, low=3.0, high=3.2)
    """
    losses = list(losses)
    finished = [loss for loss in losses if math.isfinite(loss)]
    diverged = sum(loss == math.inf for loss in losses)
    return Cell(
        n=len(finished),
        diverged=diverged,
        missing=sum(math.isnan(loss) for loss in losses),
        median=float(np.median(finished)) if finished and not diverged else None,
        low=min(finished, default=None),
        high=max(finished, default=None),
    )


def known(value: float | None) -> float | None:
    """Return a number that can be stored, infinite or not, or None.

    >>> known(math.nan), known(0.5), known(math.inf)
    (None, 0.5, inf)
    """
    return None if value is None or math.isnan(value) else value


def thinned(values: Sequence[float], most: int = 160) -> list[int]:
    """Return places in a long series that tell its course: all of a short one, else evenly spread over its logarithm.

    >>> thinned([0.0] * 5), len(thinned([0.0] * 5000)) <= 160
    ([0, 1, 2, 3, 4], True)
    """
    if len(values) <= most:
        return list(range(len(values)))
    early = np.unique(np.round(np.geomspace(1, len(values), most // 2)).astype(int)) - 1
    even = np.linspace(0, len(values) - 1, most - most // 2).astype(int)
    return sorted(set(early.tolist()) | set(even.tolist()))


def signed(value: float, digits: int) -> str:
    """Write a number with its sign, a real minus.

    >>> signed(-0.5, 2), signed(0.25, 2)
    ('−0.50', '+0.25')
    """
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def span(values: Iterable[object]) -> str:
    """Write ordered values that should be one, and both ends where they are not.

    >>> span([6, 6]), span([5, 6, 6])
    ('6', '5–6')
    """
    written = [str(value) for value in values]
    return written[0] if written[0] == written[-1] else f"{written[0]}–{written[-1]}"


def seeds_label(counts: Iterable[int]) -> str:
    """Say over how many seeds a picture is.

    >>> seeds_label([4, 3, 4]), seeds_label([1]), seeds_label([])
    ('n = 3–4 seeds', 'n = 1 seed', 'n = 0 seeds')
    """
    n = span(sorted(counts) or [0])
    return f"n = {n} seed{'' if n == '1' else 's'}"
