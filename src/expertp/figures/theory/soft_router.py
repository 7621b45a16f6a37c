"""The paper's figure of soft routers: loss and the law of p along three ways of scaling, with theory over both.

The law of p is that of the theory at the networks' own Ne: it has no limit of its own but a point for each datum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from expertp.figures import style
from expertp.figures.theory.loss import LossData, draw_losses, loss_data
from expertp.figures.theory.router import LayerLaws, draw_laws, layer_laws
from expertp.figures.theory.sizes import changing, size_handle, size_label, theory_handle
from expertp.theory.compare import Comparison
from expertp.theory.finite import Size
from expertp.theory.soft_router import Way

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class WayPanels:
    """One way of scaling: its loss curves, and the laws of p in the last layer after the last step."""

    title: str
    sizes: tuple[Size, ...]
    loss: LossData
    laws: LayerLaws

    @property
    def labels(self) -> list[str]:
        """What changes from size to size."""
        return [size_label(size, changing(self.sizes)) for size in self.sizes]

    @property
    def fixed(self) -> str:
        """What does not."""
        fields = [field for field in ("N", "E", "n_hid") if field not in changing(self.sizes)]
        return size_label(self.sizes[0], fields)


@dataclass(frozen=True)
class SoftRouterData:
    """A column per way of scaling."""

    ways: tuple[WayPanels, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(self.ways), 2.4

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per point of a loss curve and per bin of a law."""
        of_loss = [{"way": way.title, **row} for way in self.ways for row in way.loss.rows()]
        of_laws = [{"way": way.title, **row} for way in self.ways for row in way.laws.rows()]
        names = dict.fromkeys(name for rows in (of_loss, of_laws) for row in rows[:1] for name in row)
        return [{name: row.get(name) for name in names} for row in (*of_loss, *of_laws)]


def data(ways: Sequence[Way], found: Sequence[Comparison]) -> SoftRouterData:
    """Take curves and laws from what `soft_router` returns for some ways of scaling.

    Each datum's mean of p over experts is taken away: pooled over data, their differences would hide the spread between
    experts.
    """
    return SoftRouterData(tuple(_panels(*each) for each in zip(ways, found, strict=True)))


def _panels(way: Way, found: Comparison) -> WayPanels:
    last_layer = found.theory.p.shape[1] - 1
    return WayPanels(
        title=way.title,
        sizes=way.sizes,
        loss=loss_data(found.theory, found.networks),
        laws=layer_laws(last_layer, found.networks, found.laws_by_size, centred=True),
    )


def draw(figure: Figure, found: SoftRouterData) -> None:
    """Draw loss curves above and laws of p below, a column per way of scaling."""
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
    label = f"theory: limit above, the networks' Ne below; n = {n_seeds} seeds a size, which start with its kernels"
    style.figure_legend(figure, {label: theory_handle()})
