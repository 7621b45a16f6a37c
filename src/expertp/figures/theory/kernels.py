"""Figure: stream kernels over pairs of steps by layer, C_h(x, x, t, t') and C_g(x, x, t, t') averaged over data.

The theory is above the networks, if those have kernels. All panels of one kernel share a colour scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from expertp.figures.labels import seeds_label
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Figure
from expertp.figures.theory.sizes import some_layers
from expertp.theory.finite import Size
from expertp.theory.trajectory import Trajectory

KERNELS = ("C_h", "C_g")
# Perceptually uniform, safe for colour-blind readers, visible on light and dark pages.
COLOURS = "viridis"
# Steps along one side of a map; more would be too small to see.
MOST_STEPS = 24


@dataclass(frozen=True, eq=False)
class KernelsData(FigureData):
    """Data of the figure.

    Args:
        steps: rows and columns of every map, evenly spaced.
        layers: columns of the figure.
        maps: kernel over pairs of steps, by name, side ("theory" or "networks") and layer.
        size: size of the networks.
        n_seeds: number of networks.
    """

    columns = ("kernel", "of", "layer", "t", "t_prime", "value")
    steps: tuple[int, ...]
    layers: tuple[int, ...]
    maps: Mapping[tuple[str, str, int], Float[np.ndarray, "T T"]]
    size: Size | None
    n_seeds: int

    @property
    def sides(self) -> list[str]:
        """Rows of one kernel: theory, and networks if there are any."""
        return list(dict.fromkeys(of for _, of, _ in self.maps))

    @property
    def shape(self) -> tuple[float, float]:
        """Width and height of the figure, in panels, such that maps are about square."""
        return len(self.layers) - 1, 0.9 * len(KERNELS) * len(self.sides)

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per map and pair of steps t >= t'; kernels are symmetric."""
        for place, values in self.maps.items():
            for row, t in enumerate(self.steps):
                for column, t_prime in enumerate(self.steps[: row + 1]):
                    yield *place, t, t_prime, float(values[row, column])


def data(theory: Trajectory, networks: Trajectory | None = None, size: Size | None = None) -> KernelsData:
    """Average the kernels over data.

    Args:
        theory: the limit, with kernels.
        networks: networks of one size; ignored if they have no kernels.
        size: size of the networks.
    """
    if theory.C_h is None or theory.C_g is None:
        raise ValueError("the limit has no kernels; solve it with kernels=True")
    layers, n_steps = some_layers(len(theory.C_h)), theory.C_h.shape[2]
    steps = range(0, n_steps, math.ceil(n_steps / MOST_STEPS))
    sides = {"theory": theory}
    if networks is not None and networks.C_h is not None:
        sides["networks"] = networks
    maps = {
        (kernel, of, layer): over_data[layer]
        for kernel in KERNELS
        for of, run in sides.items()
        for over_data in [_over_data(getattr(run, kernel))[:, steps][..., steps]]
        for layer in layers
    }
    n_seeds = len(networks.f_each) if networks is not None and "networks" in sides else 0
    return KernelsData(tuple(steps), tuple(layers), maps, size if n_seeds else None, n_seeds)


def _over_data(kernel: Float[np.ndarray, "layers P T P T"]) -> Float[np.ndarray, "layers T T"]:
    """Return the mean over x of C(x, x, t, t')."""
    return np.asarray(np.einsum("lptps->lts", kernel) / kernel.shape[1])


def draw(figure: Figure, found: KernelsData) -> None:
    """Draw one column per layer, and for each kernel a row of the theory and a row of the networks."""
    from matplotlib.ticker import MaxNLocator

    sides, steps = found.sides, found.steps
    labels = {"theory": "theory", "networks": f"networks (n = {found.n_seeds})"}
    if found.size:
        labels["networks"] = f"{found.size}\n({seeds_label([found.n_seeds])})"
    half = (steps[1] - steps[0] if len(steps) > 1 else 1) / 2
    ends = (steps[0] - half, steps[-1] + half)
    grid = figure.subplots(len(KERNELS) * len(sides), len(found.layers), squeeze=False, sharex=True, sharey=True)
    for ax in grid.flat:
        for spine in ax.spines.values():
            spine.set_visible(False)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(4, integer=True))
    for block, kernel in enumerate(KERNELS):
        rows = grid[block * len(sides) : (block + 1) * len(sides)]
        values = [each for (of, _, _), each in found.maps.items() if of == kernel]
        low, high = float(np.min(values)), float(np.max(values))
        for row, of in zip(rows, sides, strict=True):
            for ax, layer in zip(row, found.layers, strict=True):
                # Kernels are symmetric in t and t', so the orientation does not matter.
                image = ax.imshow(
                    found.maps[kernel, of, layer], origin="lower", extent=(*ends, *ends), vmin=low, vmax=high,
                    cmap=COLOURS, interpolation="nearest",
                )  # fmt: skip
            row[0].set_ylabel(f"{labels[of]}\nstep t′")
        for ax, layer in zip(rows[0], found.layers, strict=True):
            ax.set_title(f"{kernel}, layer {layer}")
        bar = figure.colorbar(image, ax=list(rows.flat), aspect=14 * len(sides), fraction=0.05, pad=0.02)
        bar.set_label(f"{kernel}(x, x, t, t′),\nmean over data")
        bar.outline.set_visible(False)
    for ax in grid[-1]:
        ax.set_xlabel("step t")
