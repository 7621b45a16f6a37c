"""The law of the routers' p over experts and data at the last step, in networks and in theory.

With infinitely many neurons to an expert, p varies between experts by their b(0) only, and with gate=soft0 not at all.
Networks have the law of the theory at their own Ne, which is drawn where it is given. Much of the spread of p may be
between data; `centred` takes each datum's mean over experts away, and leaves the spread between experts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.figures import style
from expertp.figures.theory.sizes import (
    THEORY_DASHES,
    size_handle,
    size_label,
    small_to_large,
    some_layers,
    theory_handle,
)
from expertp.figures.theory.ticks import round_numbers
from expertp.theory.compare import Comparison
from expertp.theory.finite import Size
from expertp.theory.problem import Floats
from expertp.theory.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 60
# The bins leave out so much of the values of each law at either end: tails are long and thin.
BEYOND = 0.01
# A law of the theory is cut off at this times the highest of all networks': a point mass has no height.
HIGHEST = 1.6


@dataclass(frozen=True)
class SizeLaw:
    """The histogram of p in networks of one size, and that of the theory beside it.

    Args:
        size: of the networks.
        networks: density in each bin, such that all values, also those outside of all bins, make 1.
        theory: likewise.
        experts: seeds times experts.
        theory_experts: replicates times nodes.
    """

    size: Size
    networks: tuple[float, ...]
    theory: tuple[float, ...]
    experts: int
    theory_experts: int


@dataclass(frozen=True)
class LayerLaws:
    """All sizes in one layer, counted from 0, on the same bins."""

    layer: int
    step: int
    is_centred: bool
    edges: tuple[float, ...]
    sizes: tuple[SizeLaw, ...]

    @property
    def top(self) -> float:
        """How high the drawing of one size is."""
        networks, theory = self._highest
        return min(max(networks, theory), HIGHEST * networks) or 1.0

    @property
    def is_cut(self) -> bool:
        """Whether the theory is higher than what is drawn of it."""
        return self._highest[1] > self.top

    @property
    def _highest(self) -> tuple[float, float]:
        return max(max(law.networks) for law in self.sizes), max(max(law.theory) for law in self.sizes)

    @property
    def of(self) -> str:
        """What the horizontal axis shows."""
        what = "p − its mean over experts,\n" if self.is_centred else "p "
        return f"{what}after {self.step} steps"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per size and bin."""
        return [
            {
                "layer": self.layer + 1,
                "centred": self.is_centred,
                "N": law.size.N,
                "E": law.size.E,
                "n_hid": law.size.n_hid,
                "experts": law.experts,
                "theory_experts": law.theory_experts,
                "p_from": low,
                "p_to": high,
                "density": networks,
                "theory_density": theory,
            }
            for law in self.sizes
            for (low, high), networks, theory in zip(
                itertools.pairwise(self.edges), law.networks, law.theory, strict=True
            )
        ]


@dataclass(frozen=True)
class RouterData:
    """Some layers, the first and the last among them.

    Args:
        n_seeds: networks of each size; where they differ, the fewest.
        n_hid: Ne of the theory; None: that of each size.
        layers: with the laws of each.
    """

    n_seeds: int
    n_hid: float | None
    layers: tuple[LayerLaws, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return max(2, len(self.layers)), 1.0 + 0.15 * len(self.layers[0].sizes)

    @property
    def theory_label(self) -> str:
        """What the drawn theory is."""
        cut = " (highest peaks cut off)" if any(each.is_cut for each in self.layers) else ""
        if self.n_hid is None:
            return f"theory at the same Ne{cut}"
        return ("limit, Ne ∞" if math.isinf(self.n_hid) else f"theory, Ne {self.n_hid:g}") + cut

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per layer, size and bin."""
        return [row for each in self.layers for row in each.rows()]


def data(comparison: Comparison, centred: bool = False) -> RouterData:
    """Count p at the last step, of networks and of the theory at their Ne; of the limit where that is not known.

    Args:
        comparison: networks and theory.
        centred: whether each datum's mean over experts is taken away, in each network.
    """
    networks = {size: comparison.networks[size] for size in small_to_large(comparison.networks, comparison.problem)}
    theory = comparison.laws_by_size or dict.fromkeys(networks, comparison.theory)
    layers = some_layers(comparison.theory.p.shape[1])
    return RouterData(
        n_seeds=min(len(each.p) for each in networks.values()),
        n_hid=None if comparison.laws_by_size else comparison.problem.n_hid,
        layers=tuple(layer_laws(layer, networks, theory, centred) for layer in layers),
    )


def layer_laws(
    layer: int, networks: Mapping[Size, Trajectory], theory: Mapping[Size, Trajectory], centred: bool = False
) -> LayerLaws:
    """Count p of one layer, from 0, at the last step, on bins that networks and theory share."""
    seen = {size: _last(each, layer, centred) for size, each in networks.items()}
    said = {size: _last(theory[size], layer, centred) for size in networks}
    edges = _edges([*seen.values(), *said.values()])
    return LayerLaws(
        layer=layer,
        step=next(iter(networks.values())).p.shape[-1] - 1,
        is_centred=centred,
        edges=tuple(edges.tolist()),
        sizes=tuple(
            SizeLaw(
                size,
                _density(seen[size], edges),
                _density(said[size], edges),
                math.prod(seen[size].shape[:2]),
                math.prod(said[size].shape[:2]),
            )
            for size in networks
        ),
    )


def _last(run: Trajectory, layer: int, centred: bool) -> Floats:
    """Return p at the last step [R, E, P]."""
    p = run.p[:, layer, ..., -1]
    return p - p.mean(1, keepdims=True) if centred else p


def _edges(each: Sequence[Floats]) -> Floats:
    """Return the edges of bins that hold almost all of each law."""
    low = min(float(np.quantile(p, BEYOND)) for p in each)
    high = max(float(np.quantile(p, 1 - BEYOND)) for p in each)
    # Values may all be the same, as at the start of training.
    room = 0.02 * (high - low) or 1e-6
    return np.linspace(low - room, high + room, BINS + 1)


def _density(p: Floats, edges: Floats) -> tuple[float, ...]:
    counts, _ = np.histogram(p, edges)
    return tuple((counts / (p.size * np.diff(edges))).tolist())


def draw(figure: Figure, found: RouterData) -> None:
    """Draw a panel per layer."""
    grid = figure.subplots(1, len(found.layers), squeeze=False)[0]
    for ax, laws in zip(grid, found.layers, strict=True):
        ax.set_title(f"layer {laws.layer + 1}")
        draw_laws(ax, laws)
        ax.set_xlabel(laws.of)
    grid[0].set_ylabel("density over experts and data")
    sizes = [law.size for law in found.layers[0].sizes]
    handles = {
        f"{size_label(size)} (n = {found.n_seeds} seeds)": size_handle(place, len(sizes))
        for place, size in enumerate(sizes)
    }
    style.figure_legend(figure, {**handles, found.theory_label: theory_handle()})


def draw_laws(ax: Axes, laws: LayerLaws) -> None:
    """Draw the outlines of all histograms of a layer, each size on a base line of its own, the smallest on top."""
    edges, top, of = np.asarray(laws.edges), laws.top, len(laws.sizes)
    # One number above each base line tells the unit.
    number = max(round_numbers(top / 20, 0.75 * top))
    bases = [(of - 1 - place) * 1.15 * top for place in range(of)]
    for place, (law, base) in enumerate(zip(laws.sizes, bases, strict=True)):
        colour = style.size_colour(place, of)
        networks, theory = (base + np.minimum(side, top) for side in (law.networks, law.theory))
        ax.axhline(base, color=style.INK, alpha=style.FAINT, linewidth=0.7)
        ax.stairs(networks, edges, baseline=base, color=colour, alpha=style.BAND, fill=True)
        ax.stairs(networks, edges, baseline=base, color=colour, linewidth=1.5)
        peak = int(np.argmax(networks))
        ax.plot(edges[peak : peak + 2].mean(), networks[peak], color=colour, marker=style.marker(place), markersize=4.5)
        ax.stairs(theory, edges, baseline=base, color=style.INK, linewidth=1.1, linestyle=THEORY_DASHES)
    ax.set_yticks([base + shown for base in bases for shown in (0.0, number)])
    ax.set_yticklabels([text for _ in bases for text in ("0", f"{number:g}")])
    ax.set_ylim(0, bases[0] + 1.08 * top)
    ax.set_xlim(edges[0], edges[-1])
