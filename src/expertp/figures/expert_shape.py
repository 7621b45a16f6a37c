"""More experts or larger experts: zero-shot loss along both axes, at equal numbers of expert parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from expertp.figures import style
from expertp.figures.labels import LOSS, LOSS_COLUMNS, LossSummary, seeds_label, summarize
from expertp.figures.losses import draw_losses, strip_of_diverged
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Figure
from expertp.study.cells import AXIS_FIELD, Size
from expertp.study.table import StudyTable

# Both axes multiply total and active expert parameters by the scale.
WAYS = {"experts": "more experts", "alpha": "larger experts"}
LOOKS = {"experts": (style.OURS, "o", "-"), "alpha": (style.OTHER, "s", "--")}


@dataclass(frozen=True)
class ShapePoint:
    """One model of one of the two axes, and its zero-shot losses."""

    axis: str
    size: Size
    losses: LossSummary

    @property
    def label(self) -> str:
        """The size in the unit of the axis."""
        return self.size.label_on(self.axis)


@dataclass(frozen=True)
class ExpertShapeData(FigureData):
    """Models along both axes."""

    columns = ("grown", "size", "scale", "parameters", *LOSS_COLUMNS)
    shape = (2, 1.1)
    points: tuple[ShapePoint, ...]

    @property
    def is_comparable(self) -> bool:
        """Whether both axes have a common scale other than the base's."""
        ended = [[each for each in self.of(axis) if each.losses.n and not each.size.is_base] for axis in WAYS]
        one, other = ({each.size.scale for each in points} for points in ended)
        return bool(one & other)

    def of(self, axis: str) -> list[ShapePoint]:
        """Return the models of one axis, by scale."""
        return [each for each in self.points if each.axis == axis]

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per model."""
        for each in self.points:
            parameters = each.size.model.counts().total
            yield WAYS[each.axis], each.label, each.size.scale, parameters, *each.losses.numbers.values()


def data(table: StudyTable) -> ExpertShapeData:
    """Gather the zero-shot losses of both axes, as far as the study has them."""
    sizes = [(axis, size) for axis in WAYS if axis in table.axes for size in table.sizes(axis)]
    points = [ShapePoint(axis, size, summarize(table.zero_shot(axis, size, table.own))) for axis, size in sizes]
    return ExpertShapeData(tuple(points))


def draw(figure: Figure, shapes: ExpertShapeData) -> None:
    """Draw loss over scale, one line per axis."""
    ax = figure.subplots()
    style.faint_grid(ax)
    for level, (axis, way) in enumerate(WAYS.items()):
        colour, marker, line = LOOKS[axis]
        found = [each for each in shapes.of(axis) if each.losses.runs]
        label = f"{way} ({AXIS_FIELD[axis]} {', '.join(each.label for each in found)})"
        x, losses = [each.size.scale for each in found], [each.losses for each in found]
        draw_losses(ax, x, losses, level, color=colour, marker=marker, linestyle=line, label=label)
    if any(each.losses.diverged for each in shapes.points):
        strip_of_diverged([ax], len(WAYS))
    style.scale_ticks(ax, [each.size.scale for each in shapes.points])
    ax.set_xlabel("expert parameters, total and active (times the base)")
    seeds = seeds_label(each.losses.runs for each in shapes.points if each.losses.runs)
    ax.set_ylabel(f"{LOSS},\nmedian of {seeds}")
    # Above the panel, where it hides nothing.
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
