"""Loss over steps of networks of several sizes, with the limit over them; below, how far each lies from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.figures import style
from expertp.figures.labels import thinned
from expertp.figures.theory.sizes import THEORY_DASHES, size_handle, size_label, small_to_large, theory_handle
from expertp.figures.theory.ticks import log_ticks
from expertp.theory.compare import Comparison
from expertp.theory.finite import Size
from expertp.theory.trajectory import Trajectory, losses

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A loss that falls by more than this is drawn on a logarithmic axis.
LOG_FROM = 10


@dataclass(frozen=True)
class SizeLosses:
    """Loss curves of one size, one per seed, and their mean."""

    size: Size
    seeds: tuple[tuple[float, ...], ...]
    mean: tuple[float, ...]


@dataclass(frozen=True)
class LossData:
    """The limit and all sizes from small to large, at the steps that are drawn.

    Args:
        steps: how many have been taken.
        limit: loss of the limit.
        sizes: of the networks.
        mc_error: Monte-Carlo error of the limit, relative to f; nan for one replicate.
    """

    steps: tuple[int, ...]
    limit: tuple[float, ...]
    sizes: tuple[SizeLosses, ...]
    mc_error: float

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows, with room for the legend."""
        return 2, 1.85 + 0.05 * len(self.sizes)

    @property
    def is_log(self) -> bool:
        """Whether the loss falls so far that its axis is logarithmic."""
        return max(self.limit) > LOG_FROM * min(self.limit) > 0

    @property
    def n_seeds(self) -> int:
        """Networks of each size; where they differ, the fewest."""
        return min((len(each.seeds) for each in self.sizes), default=0)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per curve and step that is drawn."""
        found = self._rows("limit", None, self.limit)
        for each in self.sizes:
            for seed, values in enumerate(each.seeds):
                found += self._rows(f"seed {seed}", each.size, values)
            found += self._rows("mean", each.size, each.mean)
        return found

    def _rows(self, curve: str, size: Size | None, values: Sequence[float]) -> list[dict[str, Any]]:
        return [
            {
                "curve": curve,
                "N": size.N if size else None,
                "E": size.E if size else None,
                "n_hid": size.n_hid if size else None,
                "step": step,
                "loss": value,
                "relative_to_limit": (value - limit) / limit,
            }
            for step, value, limit in zip(self.steps, values, self.limit, strict=True)
        ]


def data(comparison: Comparison) -> LossData:
    """Take the loss curves of a comparison."""
    ordered = small_to_large(comparison.networks, comparison.problem)
    return loss_data(comparison.theory, {size: comparison.networks[size] for size in ordered})


def loss_data(limit: Trajectory, networks: Mapping[Size, Trajectory]) -> LossData:
    """Take the loss curves of the limit and of networks, in their order."""
    shown = thinned(limit.loss.tolist())
    return LossData(
        steps=tuple(shown),
        limit=tuple(limit.loss[shown].tolist()),
        sizes=tuple(_size(size, each, shown) for size, each in networks.items()),
        mc_error=limit.mc_error,
    )


def _size(size: Size, networks: Trajectory, shown: list[int]) -> SizeLosses:
    curves = losses(networks.f_each, networks.y)[:, shown]
    return SizeLosses(size, tuple(tuple(each) for each in curves.tolist()), tuple(curves.mean(0).tolist()))


def draw(figure: Figure, found: LossData) -> None:
    """Draw the curves above and their difference to the limit below."""
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.6, 1))
    draw_losses(upper, found)
    upper.set_ylabel("loss")
    style.faint_grid(lower)
    limit = np.asarray(found.limit)
    lower.axhline(0, color=style.INK, linewidth=1.3, linestyle=THEORY_DASHES)
    for place, each in enumerate(found.sizes):
        _draw_size(lower, found, place, *((np.asarray(curve) - limit) / limit for curve in (*each.seeds, each.mean)))
    style.percent_ticks(lower)
    lower.set_ylabel("difference\nto the limit")
    lower.set_xlabel("step")
    handles = {
        f"{size_label(each.size)} (n = {len(each.seeds)} seeds)": size_handle(place, len(found.sizes))
        for place, each in enumerate(found.sizes)
    }
    style.figure_legend(figure, {**handles, "limit": theory_handle()})


def draw_losses(ax: Axes, found: LossData) -> None:
    """Draw all loss curves, thin for seeds, and the limit on top."""
    style.faint_grid(ax)
    for place, each in enumerate(found.sizes):
        _draw_size(ax, found, place, *(np.asarray(curve) for curve in (*each.seeds, each.mean)))
    ax.plot(found.steps, found.limit, color=style.INK, linewidth=1.3, linestyle=THEORY_DASHES, zorder=3)
    if found.is_log:
        ax.set_yscale("log")
        log_ticks(ax)
    else:
        ax.set_ylim(bottom=0)


def _draw_size(ax: Axes, found: LossData, place: int, *curves: np.ndarray[Any, Any]) -> None:
    """Draw the curves of one size, the last of which is the mean."""
    of, n = len(found.sizes), len(found.steps)
    colour = style.size_colour(place, of)
    for curve in curves[:-1]:
        ax.plot(found.steps, curve, color=colour, linewidth=0.7, alpha=0.3)
    # Markers of different sizes stand at different steps, so that none hides another.
    stride = max(1, n // 6)
    every = (place * stride // max(1, of), stride)
    ax.plot(found.steps, curves[-1], color=colour, marker=style.marker(place), markevery=every, markersize=4.5)
