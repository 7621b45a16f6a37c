"""More experts or larger experts: zero-shot loss along both axes, which at one scale have as many parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from expertp.analysis.curves import StudyTable
from expertp.figures import style
from expertp.figures.cells import draw_cells, strip_of_diverged
from expertp.figures.labels import LOSS, Cell, cell, seeds_label, size_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Both multiply the experts' parameters by the scale, all of them and the active ones alike.
WAYS = {"experts": "more experts", "alpha": "larger experts"}
LOOKS = {"experts": (style.OURS, "o", "-"), "alpha": (style.CONTRAST, "s", "--")}


@dataclass(frozen=True)
class ShapePoint:
    """One model: which way it grew, to what, and its zero-shot losses."""

    axis: str
    label: str
    scale: float
    parameters: int
    losses: Cell


@dataclass(frozen=True)
class ExpertShapeData:
    """Models along both axes."""

    points: tuple[ShapePoint, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return 2, 1.1

    @property
    def is_comparable(self) -> bool:
        """Whether both ways have a size beside the base, and the same one."""
        sizes = [{each.scale for each in self.of(axis) if each.losses.n and each.scale != 1} for axis in WAYS]
        return bool(sizes[0] & sizes[1])

    def of(self, axis: str) -> list[ShapePoint]:
        """Return the models of one way, by scale."""
        return [each for each in self.points if each.axis == axis]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per model."""
        return [
            {
                "grown": WAYS[each.axis],
                "size": each.label,
                "scale": each.scale,
                "parameters": each.parameters,
                **each.losses.numbers,
            }
            for each in self.points
        ]


def data(table: StudyTable) -> ExpertShapeData:
    """Gather the zero-shot losses of both axes, those that the study has."""
    study = table.study
    return ExpertShapeData(
        tuple(
            ShapePoint(
                axis,
                size_label(study, axis, scale),
                scale,
                model.counts().total,
                cell(table.zero_shot(axis, scale, study.hps.rules)),
            )
            for axis in WAYS
            if axis in study.axes
            for scale, model in study.models(axis).items()
        )
    )


def draw(figure: Figure, shapes: ExpertShapeData) -> None:
    """Draw loss over scale, one line per way."""
    ax = figure.subplots()
    style.faint_grid(ax)
    for axis, way in WAYS.items():
        colour, marker, line = LOOKS[axis]
        found = [each for each in shapes.of(axis) if each.losses.runs]
        field = "n_exp" if axis == "experts" else "alpha_ffn"
        draw_cells(
            ax, [each.scale for each in found], [each.losses for each in found], level=list(WAYS).index(axis),
            color=colour, marker=marker, linestyle=line,
            label=f"{way} ({field} {', '.join(each.label for each in found)})",
        )  # fmt: skip
    if any(each.losses.diverged for each in shapes.points):
        strip_of_diverged([ax], len(WAYS))
    style.scale_ticks(ax, [each.scale for each in shapes.points])
    ax.set_xlabel("expert parameters, total and active (times the base)")
    seeds = seeds_label(each.losses.runs for each in shapes.points if each.losses.runs)
    ax.set_ylabel(f"{LOSS},\nmedian and range of {seeds}")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)  # above, where no bar can reach
