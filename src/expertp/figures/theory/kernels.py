"""Kernels of the stream over pairs of steps, by layer: mean over data of C_h(x, x, t, t') and C_g(x, x, t, t').

Theory above, networks below, where they have kernels. A kernel has one colour scale for all of its panels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.figures.theory.sizes import size_label, some_layers
from expertp.theory.finite import Size
from expertp.theory.problem import Floats
from expertp.theory.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KERNELS = ("C_h", "C_g")
# Perceived evenly, also by the colour-blind, and seen on light and dark paper.
COLOURS = "viridis"
# Steps along a side: more are too small to see.
MOST_STEPS = 24


@dataclass(frozen=True)
class KernelMap:
    """One kernel of one layer, over pairs of steps."""

    kernel: str
    of: str
    layer: int
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class KernelsData:
    """All maps; `steps` are their rows and columns, evenly spaced."""

    steps: tuple[int, ...]
    layers: tuple[int, ...]
    maps: tuple[KernelMap, ...]
    size: Size | None
    n_seeds: int

    @property
    def sides(self) -> list[str]:
        """What a kernel's rows show: theory, and networks where there are any."""
        return list(dict.fromkeys(each.of for each in self.maps))

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows, such that maps are about square."""
        return len(self.layers) - 1, 0.9 * len(KERNELS) * len(self.sides)

    def map_of(self, kernel: str, of: str, layer: int) -> KernelMap:
        """Return one of the maps."""
        return next(each for each in self.maps if (each.kernel, each.of, each.layer) == (kernel, of, layer))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per map and pair of steps t >= t': kernels are symmetric."""
        return [
            {"kernel": each.kernel, "of": each.of, "layer": each.layer, "t": t, "t_prime": t_prime, "value": value}
            for each in self.maps
            for t, line in zip(self.steps, each.values, strict=True)
            for t_prime, value in zip(self.steps, line, strict=True)
            if t_prime <= t
        ]


def data(theory: Trajectory, networks: Trajectory | None = None, size: Size | None = None) -> KernelsData:
    """Average kernels over data.

    Args:
        theory: with kernels.
        networks: of one size; left out where they have none.
        size: of the networks.
    """
    if theory.C_h is None or theory.C_g is None:
        raise ValueError("the theory has no kernels; solve it with kernels=True")
    layers, n_steps = some_layers(len(theory.C_h)), theory.C_h.shape[2]
    steps = range(0, n_steps, math.ceil(n_steps / MOST_STEPS))
    sides = {"theory": theory}
    if networks is not None and networks.C_h is not None:
        sides["networks"] = networks
    maps = [
        KernelMap(kernel, of, layer, tuple(tuple(line) for line in values[layer].tolist()))
        for kernel in KERNELS
        for of, run in sides.items()
        for values in [_over_data(getattr(run, kernel))[:, steps][..., steps]]
        for layer in layers
    ]
    n_seeds = len(networks.f_each) if networks is not None and "networks" in sides else 0
    return KernelsData(tuple(steps), tuple(layers), tuple(maps), size if n_seeds else None, n_seeds)


def _over_data(kernel: Floats) -> Floats:
    """Return the mean over x of C(x, x, t, t') [L+1, T, T]."""
    mean: Floats = np.einsum("lptps->lts", kernel) / kernel.shape[1]
    return mean


def draw(figure: Figure, found: KernelsData) -> None:
    """Draw a column per layer; for each kernel a row of theory and one of networks."""
    sides = found.sides
    grid = figure.subplots(len(KERNELS) * len(sides), len(found.layers), squeeze=False, sharex=True, sharey=True)
    for block, kernel in enumerate(KERNELS):
        rows = grid[block * len(sides) : (block + 1) * len(sides)]
        values = [each.values for each in found.maps if each.kernel == kernel]
        limits = float(np.min(values)), float(np.max(values))
        for row, of in zip(rows, sides, strict=True):
            for ax, layer in zip(row, found.layers, strict=True):
                image = _draw_map(ax, found, found.map_of(kernel, of, layer), limits)
            row[0].set_ylabel(f"{_side(found, of)}\nstep t′")
        for ax, layer in zip(rows[0], found.layers, strict=True):
            ax.set_title(f"{kernel}, layer {layer}")
        bar = figure.colorbar(image, ax=list(rows.flat), aspect=14 * len(sides), fraction=0.05, pad=0.02)
        bar.set_label(f"{kernel}(x, x, t, t′),\nmean over data")
        bar.outline.set_visible(False)
    for ax in grid[-1]:
        ax.set_xlabel("step t")


def _side(found: KernelsData, of: str) -> str:
    if of == "theory":
        return "theory"
    return f"{size_label(found.size)}\n(n = {found.n_seeds} seeds)" if found.size else f"networks (n = {found.n_seeds})"


def _draw_map(ax: Axes, found: KernelsData, each: KernelMap, limits: tuple[float, float]) -> Any:
    from matplotlib.ticker import MaxNLocator

    half = (found.steps[1] - found.steps[0] if len(found.steps) > 1 else 1) / 2
    ends = found.steps[0] - half, found.steps[-1] + half
    for spine in ax.spines.values():
        spine.set_visible(False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))
    # Kernels are symmetric, so it does not matter which of t and t' is up.
    return ax.imshow(
        each.values,
        origin="lower",
        extent=(*ends, *ends),
        vmin=limits[0],
        vmax=limits[1],
        cmap=COLOURS,
        interpolation="nearest",
    )
