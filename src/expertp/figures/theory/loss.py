"""Figure: loss of networks of several sizes and of the limit over steps; below, their relative difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from expertp.figures import style
from expertp.figures.labels import seeds_label, thinned
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.figures.theory.sizes import FIELDS, THEORY_DASHES, size_handle, small_to_large, theory_handle
from expertp.figures.theory.ticks import log_ticks
from expertp.theory.compare import Comparison
from expertp.theory.finite import Size
from expertp.theory.trajectory import Trajectory

# A loss that falls by more than this factor is drawn on a logarithmic axis.
LOG_FROM = 10


@dataclass(frozen=True, eq=False)
class LossData(FigureData):
    """Data of the figure.

    Args:
        steps: the steps drawn.
        limit: loss of the limit [T].
        networks: losses of the networks of each size, by seed [S, T].
    """

    columns = ("curve", *FIELDS, "step", "loss", "relative_to_limit")
    steps: Sequence[int]
    limit: NDArray[np.float64]
    networks: Mapping[Size, NDArray[np.float64]]

    @property
    def shape(self) -> tuple[float, float]:
        """Width and height of the figure, in panels, with room for the legend."""
        return 2, 1.85 + 0.05 * len(self.networks)

    @property
    def is_log(self) -> bool:
        """Whether the axis of the loss is logarithmic."""
        return bool(max(self.limit) > LOG_FROM * min(self.limit) > 0)

    @property
    def n_seeds(self) -> int:
        """Networks per size (the smallest number if it varies)."""
        return min(map(len, self.networks.values()), default=0)

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per curve and step."""
        curves: list[tuple[str, Sequence[Value], NDArray[np.float64]]] = [("limit", (None,) * len(FIELDS), self.limit)]
        for size, losses in self.networks.items():
            curves += [(f"seed {seed}", astuple(size), each) for seed, each in enumerate(losses)]
            curves.append(("mean", astuple(size), losses.mean(0)))
        for name, fields, values in curves:
            for step, value, limit in zip(self.steps, values.tolist(), self.limit.tolist(), strict=True):
                yield name, *fields, step, value, (value - limit) / limit


def data(comparison: Comparison) -> LossData:
    """Return the loss curves of a comparison."""
    ordered = small_to_large(comparison.networks, comparison.problem)
    return loss_data(comparison.theory, {size: comparison.networks[size] for size in ordered})


def loss_data(limit: Trajectory, networks: Mapping[Size, Trajectory]) -> LossData:
    """Return the loss curves of the limit and of networks in the given order."""
    shown = thinned(limit.loss.tolist())
    return LossData(shown, limit.loss[shown], {size: each.losses_each[:, shown] for size, each in networks.items()})


def draw(figure: Figure, found: LossData) -> None:
    """Draw the loss curves above and their relative difference to the limit below."""
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.6, 1))
    draw_losses(upper, found)
    upper.set_ylabel("loss")
    style.faint_grid(lower)
    lower.axhline(0, color=style.INK, linewidth=1.3, linestyle=THEORY_DASHES)
    for place, losses in enumerate(found.networks.values()):
        difference = [(each - found.limit) / found.limit for each in (*losses, losses.mean(0))]
        _draw_size(lower, found, place, difference)
    style.percent_ticks(lower)
    lower.set_ylabel("difference\nto the limit")
    lower.set_xlabel("step")
    labels = [f"{size} ({seeds_label([len(losses)])})" for size, losses in found.networks.items()]
    handles = {label: size_handle(place, len(labels)) for place, label in enumerate(labels)}
    style.figure_legend(figure, {**handles, "limit": theory_handle()})


def draw_losses(ax: Axes, found: LossData) -> None:
    """Draw all loss curves, thin for single seeds, and the limit on top."""
    style.faint_grid(ax)
    for place, losses in enumerate(found.networks.values()):
        _draw_size(ax, found, place, [*losses, losses.mean(0)])
    ax.plot(found.steps, found.limit, color=style.INK, linewidth=1.3, linestyle=THEORY_DASHES, zorder=3)
    if found.is_log:
        ax.set_yscale("log")
        log_ticks(ax)
    else:
        ax.set_ylim(bottom=0)


def _draw_size(ax: Axes, found: LossData, place: int, curves: Sequence[NDArray[np.float64]]) -> None:
    """Draw the curves of one size; the last one is the mean."""
    of, n = len(found.networks), len(found.steps)
    colour = style.size_colour(place, of)
    for curve in curves[:-1]:
        ax.plot(found.steps, curve, color=colour, linewidth=0.7, alpha=0.3)
    # Markers of different sizes are at different steps, so that they do not hide each other.
    stride = max(1, n // 6)
    every = (place * stride // max(1, of), stride)
    ax.plot(found.steps, curves[-1], color=colour, marker=style.marker(place), markevery=every, markersize=4.5)
