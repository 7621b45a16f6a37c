"""Losses over seeds as points with error bars, and a strip at the top of a panel for diverged runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from expertp.figures import style
from expertp.figures.labels import LossSummary
from expertp.figures.style import Axes

# Height of one line of the strip of diverged runs, points.
LEVEL = 10.5


def draw_losses(ax: Axes, x: Sequence[float], losses: Sequence[LossSummary], level: int = 0, **look: Any) -> None:
    """Draw medians with bars from minimum to maximum; where a run has diverged, write "1/3" on a line of the strip."""
    median, low, high = (
        np.array([math.nan if each.median is None else getattr(each, part) for each in losses], float)
        for part in ("median", "low", "high")
    )
    error_bars(ax, x, median, low, high, **look)
    for place, each in zip(x, losses, strict=True):
        if each.diverged:
            ax.annotate(
                each.of, (place, 1.0), xycoords=ax.get_xaxis_transform(), ha="center", va="top",
                xytext=(0, -1 - LEVEL * level), textcoords="offset points", fontsize=8, color=look["color"],
            )  # fmt: skip


def error_bars(ax: Axes, x: Sequence[float], middle: Any, low: Any, high: Any, **look: Any) -> None:
    """Draw points with bars from low to high."""
    middle, low, high = map(np.asarray, (middle, low, high))
    ax.errorbar(x, middle, np.abs([middle - low, high - middle]), capsize=2, elinewidth=1, **look)


def strip_above(low: float, high: float, levels: int) -> float:
    """Return the upper end of a strip with some lines above losses from low to high."""
    share = 0.03 + 0.075 * levels
    return high + (high - low) * share / (1 - share)


def strip_of_diverged(axes: Sequence[Axes], levels: int, is_named: bool = True) -> None:
    """Add a strip for diverged runs above the losses of panels that share their range, with a label if `is_named`."""
    low, high = axes[0].get_ylim()
    # No ticks in the strip, which has no losses.
    axes[0].set_yticks([tick for tick in axes[0].get_yticks() if low <= tick <= high - 0.03 * (high - low)])
    axes[0].set_ylim(low, strip_above(low, high, levels))
    for ax in axes:
        ax.axhline(high, color=style.INK, alpha=0.35, linewidth=0.8)
    if is_named:
        axes[0].annotate(
            "diverged", (0, 1), xycoords="axes fraction", xytext=(-5, -1), textcoords="offset points", ha="right",
            va="top", fontsize=8,
        )  # fmt: skip
