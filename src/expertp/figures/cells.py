"""Losses over seeds as points with bars, and diverged runs in a strip above them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.figures import style
from expertp.figures.labels import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Points from one line of a strip of diverged runs to the next.
LEVEL = 10.5


def draw_cells(ax: Axes, x: Sequence[float], cells: Sequence[Cell], level: int = 0, **look: Any) -> None:
    """Draw medians with bars from least to largest; where a run has diverged, "1/3" at a level of the strip above."""
    median, low, high = (
        np.array([math.nan if each.median is None else getattr(each, part) for each in cells], float)
        for part in ("median", "low", "high")
    )
    ax.errorbar(x, median, np.abs([median - low, high - median]), capsize=2, elinewidth=1, **look)
    for place, each in zip(x, cells, strict=True):
        if each.diverged:
            ax.annotate(
                each.of, (place, 1.0), xycoords=ax.get_xaxis_transform(), ha="center", va="top",
                xytext=(0, -1 - LEVEL * level), textcoords="offset points", fontsize=8, color=look["color"],
            )  # fmt: skip


def strip_above(low: float, high: float, levels: int) -> float:
    """Return where a strip ends that has room for so many levels above losses from low to high."""
    share = 0.03 + 0.075 * levels
    return high + (high - low) * share / (1 - share)


def strip_of_diverged(axes: Sequence[Axes], levels: int, is_named: bool = True) -> None:
    """Make room above all losses of panels with one range for levels of diverged runs, and say what stands there."""
    low, high = axes[0].get_ylim()
    # None in the strip, where no loss is.
    axes[0].set_yticks([tick for tick in axes[0].get_yticks() if low <= tick <= high - 0.03 * (high - low)])
    axes[0].set_ylim(low, strip_above(low, high, levels))
    for ax in axes:
        ax.axhline(high, color=style.INK, alpha=0.35, linewidth=0.8)
    if is_named:
        axes[0].annotate(
            "diverged", (0, 1), xycoords="axes fraction", xytext=(-5, -1), textcoords="offset points", ha="right",
            va="top", fontsize=8,
        )  # fmt: skip
