"""Figure: distribution of the router preactivations p over experts and data at the last step, networks and theory.

At n_hid = inf, p varies between experts through b(0) only, and not at all with gate=soft0. Networks have the
distribution of the theory at their own n_hid, which is drawn if available. Most of the spread of p may be between data;
`centred` subtracts the mean over experts for each datum and leaves the spread between experts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from jaxtyping import Float

from expertp.figures import style
from expertp.figures.labels import seeds_label
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.figures.theory.sizes import FIELDS, THEORY_DASHES, size_handle, small_to_large, some_layers, theory_handle
from expertp.figures.theory.ticks import round_numbers
from expertp.theory.compare import Comparison
from expertp.theory.finite import Size
from expertp.theory.trajectory import Trajectory
from expertp.util.text import plural

BINS = 60
# Sizes with a number on their own base line.
MOST_NUMBERED = 6
# Fraction of the values outside the bins at either end; the tails are long and thin.
BEYOND = 0.01
# The theory is cut off at this multiple of the highest network histogram; a point mass has infinite density.
HIGHEST = 1.6


@dataclass(frozen=True)
class SizeLaw:
    """Histograms of p in networks of one size and in the theory.

    Args:
        size: size of the networks.
        networks: density in each bin; values outside all bins count towards the total of 1.
        theory: density of the theory.
        experts: seeds times experts.
        theory_experts: replicates times nodes.
    """

    size: Size
    networks: tuple[float, ...]
    theory: tuple[float, ...]
    experts: int
    theory_experts: int


@dataclass(frozen=True)
class LayerLaws(FigureData):
    """All sizes in one layer (counted from 0), with shared bins."""

    columns = (
        "layer", "centred", *FIELDS, "experts", "theory_experts", "p_from", "p_to", "density", "theory_density",
    )  # fmt: skip
    layer: int
    step: int
    is_centred: bool
    edges: tuple[float, ...]
    sizes: tuple[SizeLaw, ...]

    @property
    def top(self) -> float:
        """Height of the drawing of one size."""
        networks = max(max(law.networks) for law in self.sizes)
        return min(max(networks, self.top_of_theory), HIGHEST * networks) or 1.0

    @property
    def top_of_theory(self) -> float:
        """Largest density of the theory."""
        return max(max(law.theory) for law in self.sizes)

    @property
    def is_cut(self) -> bool:
        """Whether the theory is cut off."""
        return self.top_of_theory > self.top

    @property
    def of(self) -> str:
        """Label of the horizontal axis."""
        what = "p − its mean over experts,\n" if self.is_centred else "p "
        return f"{what}after {plural(self.step, 'step')}"

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per size and bin."""
        for law in self.sizes:
            labels = (self.layer + 1, self.is_centred, *astuple(law.size), law.experts, law.theory_experts)
            for ends, *densities in zip(itertools.pairwise(self.edges), law.networks, law.theory, strict=True):
                yield *labels, *ends, *densities


@dataclass(frozen=True)
class RouterData(FigureData):
    """Data of the figure.

    Args:
        n_seeds: networks per size (the smallest number if it varies).
        n_hid: n_hid of the theory; None: that of each size.
        layers: histograms of some layers, including the first and the last.
    """

    columns = LayerLaws.columns
    n_seeds: int
    n_hid: float | None
    layers: tuple[LayerLaws, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Width and height of the figure, in panels."""
        return max(2, len(self.layers)), 1.0 + 0.2 * len(self.layers[0].sizes)

    @property
    def theory_label(self) -> str:
        """Legend entry of the theory."""
        cut = " (highest peaks cut off)" if any(each.is_cut for each in self.layers) else ""
        if self.n_hid is None:
            return f"theory at the same n_hid{cut}"
        return ("limit, n_hid ∞" if math.isinf(self.n_hid) else f"theory, n_hid {self.n_hid:g}") + cut

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per layer, size and bin."""
        return itertools.chain.from_iterable(each.records() for each in self.layers)


def data(comparison: Comparison, centred: bool = False) -> RouterData:
    """Return histograms of p at the last step, of networks and of the theory at their n_hid (else of the limit).

    Args:
        comparison: networks and theory.
        centred: whether to subtract the mean over experts for each datum.
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
    """Return histograms of p in one layer (counted from 0) at the last step, with shared bins."""
    of_networks, of_theory = (
        {size: _last(runs[size], layer, centred) for size in networks} for runs in (networks, theory)
    )
    pooled = [*of_networks.values(), *of_theory.values()]
    low = min(float(np.quantile(p, BEYOND)) for p in pooled)
    high = max(float(np.quantile(p, 1 - BEYOND)) for p in pooled)
    # All values may be equal, as at the start of training.
    room = 0.02 * (high - low) or 1e-6
    edges = np.linspace(low - room, high + room, BINS + 1)
    laws = []
    for size, p in of_networks.items():
        densities = (_density(p, edges), _density(of_theory[size], edges))
        laws.append(SizeLaw(size, *densities, math.prod(p.shape[:2]), math.prod(of_theory[size].shape[:2])))
    step = next(iter(networks.values())).p.shape[-1] - 1
    return LayerLaws(layer, step, centred, tuple(edges.tolist()), tuple(laws))


def _last(run: Trajectory, layer: int, centred: bool) -> Float[np.ndarray, "R E P"]:
    """Return p at the last step."""
    p = run.p[:, layer, ..., -1]
    return p - p.mean(1, keepdims=True) if centred else p


def _density(p: Float[np.ndarray, "R E P"], edges: np.ndarray) -> tuple[float, ...]:
    counts, _ = np.histogram(p, edges)
    return tuple((counts / (p.size * np.diff(edges))).tolist())


def draw(figure: Figure, found: RouterData) -> None:
    """Draw one panel per layer."""
    grid = figure.subplots(1, len(found.layers), squeeze=False)[0]
    for ax, laws in zip(grid, found.layers, strict=True):
        ax.set_title(f"layer {laws.layer + 1}")
        draw_laws(ax, laws)
        ax.set_xlabel(laws.of)
    grid[0].set_ylabel("density over experts and data")
    labels = [f"{law.size} ({seeds_label([found.n_seeds])})" for law in found.layers[0].sizes]
    handles = {label: size_handle(place, len(labels)) for place, label in enumerate(labels)}
    style.figure_legend(figure, {**handles, found.theory_label: theory_handle()})


def draw_laws(ax: Axes, laws: LayerLaws) -> None:
    """Draw the histograms of a layer, one base line per size, with the smallest size on top."""
    from matplotlib.ticker import MaxNLocator

    edges, top, of = np.asarray(laws.edges), laws.top, len(laws.sizes)
    # A number above each base line shows the scale; with many sizes, above the first.
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
    numbered = bases if of <= MOST_NUMBERED else bases[:1]
    ticks = dict.fromkeys(bases, "0") | {base + number: f"{number:g}" for base in numbered}
    ax.set_yticks(list(ticks), list(ticks.values()))
    ax.xaxis.set_major_locator(MaxNLocator(3))
    ax.set_ylim(0, bases[0] + 1.08 * top)
    ax.set_xlim(edges[0], edges[-1])
