"""The paper's figure of soft routers: loss and distribution of p along three ways of scaling, with the theory.

The distribution of p is compared with the theory at the n_hid of the networks; in the limit it is one point per datum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from expertp.figures import style
from expertp.figures.labels import seeds_label
from expertp.figures.save import Row
from expertp.figures.style import Figure
from expertp.figures.theory.loss import LossData, draw_losses, loss_data
from expertp.figures.theory.router import LayerLaws, draw_laws, layer_laws
from expertp.figures.theory.sizes import FIELDS, changing, size_handle, size_label, theory_handle
from expertp.theory.compare import Comparison
from expertp.theory.finite import Size
from expertp.theory.soft_router import Way


@dataclass(frozen=True)
class WayPanels:
    """One way of scaling: loss curves, and distributions of p in the last layer at the last step."""

    title: str
    sizes: tuple[Size, ...]
    loss: LossData
    laws: LayerLaws

    @property
    def labels(self) -> list[str]:
        """The fields that vary, for each size."""
        return [size_label(size, changing(self.sizes)) for size in self.sizes]

    @property
    def fixed(self) -> str:
        """The fields that are fixed."""
        fields = [field for field in FIELDS if field not in changing(self.sizes)]
        return size_label(self.sizes[0], fields)


@dataclass(frozen=True)
class SoftRouterData:
    """Data of the figure: one column per way of scaling."""

    ways: tuple[WayPanels, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Width and height of the figure, in panels."""
        return len(self.ways), 2.4

    def rows(self) -> list[Row]:
        """Return one row per point of a loss curve and per bin of a histogram."""
        rows: list[Row] = [{"way": way.title, **row} for way in self.ways for row in way.loss.rows()]
        rows += [{"way": way.title, **row} for way in self.ways for row in way.laws.rows()]
        names = dict.fromkeys(name for row in rows for name in row)
        return [{name: row.get(name) for name in names} for row in rows]


def data(ways: Sequence[Way], found: Sequence[Comparison]) -> SoftRouterData:
    """Return the data of the comparisons that `soft_router` makes.

    The mean of p over experts is subtracted for each datum, because the differences between data would hide the spread
    between experts.
    """
    panels = []
    for way, each in zip(ways, found, strict=True):
        laws = layer_laws(each.theory.p.shape[1] - 1, each.networks, each.laws_by_size, centred=True)
        panels.append(WayPanels(way.title, way.sizes, loss_data(each.theory, each.networks), laws))
    return SoftRouterData(tuple(panels))


def draw(figure: Figure, found: SoftRouterData) -> None:
    """Draw loss curves above and distributions of p below, one column per way of scaling."""
    grid = figure.subplots(2, len(found.ways), squeeze=False)
    for upper in grid[0][1:]:
        upper.sharey(grid[0][0])
    for (upper, lower), way in zip(grid.T, found.ways, strict=True):
        upper.set_title(f"{way.title}\n{way.fixed}")
        draw_losses(upper, way.loss)
        upper.set_xlabel("step")
        draw_laws(lower, way.laws)
        lower.set_xlabel(f"{way.laws.of}, layer {way.laws.layer + 1}")
        handles = [size_handle(place, len(way.sizes)) for place in range(len(way.sizes))]
        upper.legend(handles, way.labels, loc="upper right", handlelength=1.4)
    grid[0][0].set_ylabel("loss")
    grid[1][0].set_ylabel("density over experts and data")
    n_seeds = min(way.loss.n_seeds for way in found.ways)
    label = f"theory: limit above, n_hid of the networks below; {seeds_label([n_seeds])} per size, orthonormal frame"
    style.figure_legend(figure, {label: theory_handle()})
