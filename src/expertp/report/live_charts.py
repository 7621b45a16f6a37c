"""Small charts of live pages as SVG: they are drawn again every few seconds, so they do not use matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from expertp.figures.labels import minus

WIDTH, HEIGHT = 360, 150
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 22
# Points of a line, and cells of a heat map, that a chart shows at most.
MOST_POINTS, MOST_CELLS = 240, 2400
MOST_TICKS = 4

Point = tuple[float, float]
Number = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """A line of a chart; lines that are not finite have gaps."""

    points: Sequence[Point]
    style: Literal["main", "faint", "other"] = "main"


@dataclass(frozen=True)
class Chart:
    """A chart with its title and a sentence that says how to read it."""

    title: str
    svg: Markup
    caption: str


def line_chart(
    lines: Sequence[Line], x_end: float, described: str, is_log: bool = False, number: Number = "{:g}".format
) -> Markup:
    """Return lines over steps from 0 to `x_end`.

    Args:
        lines: the lines, drawn in this order.
        x_end: last step of the horizontal axis.
        described: what a screen reader says.
        is_log: whether the vertical axis is logarithmic.
        number: writes the numbers of the vertical axis.
    """
    shown = [thinned([point for point in line.points if _is_drawn(point, is_log)]) for line in lines]
    heights = [y for points in shown for _, y in points]
    if not heights:
        return _svg(described, Markup('<text x="{}" y="{}" class="tick">no record yet</text>').format(LEFT, HEIGHT / 2))
    scale = math.log if is_log else float
    ticks = _log_ticks(min(heights), max(heights)) if is_log else nice_ticks(min(heights), max(heights))
    low, high = scale(min(*ticks, *heights)), scale(max(*ticks, *heights))

    def place(x: float, y: float) -> str:
        return f"{_x(x / max(x_end, 1)):.1f},{_y((scale(y) - low) / ((high - low) or 1)):.1f}"

    parts = [_grid(_y((scale(tick) - low) / ((high - low) or 1)), minus(number(tick))) for tick in ticks]
    parts += [_x_ticks(x_end)]
    for line, points in zip(lines, shown, strict=True):
        if len(points) == 1:
            x, y = place(*points[0]).split(",")
            parts.append(Markup('<circle class="{}" cx="{}" cy="{}" r="2"/>').format(line.style, x, y))
        elif points:
            path = " ".join(place(*point) for point in points)
            parts.append(Markup('<polyline class="{}" points="{}"/>').format(line.style, path))
    return _svg(described, Markup("").join(parts))


def heat_map(columns: Sequence[tuple[int, Sequence[float]]], x_end: float, top: float, described: str) -> Markup:
    """Return rows of cells over steps from 0 to `x_end`; a cell has full colour at `top` and none at 0.

    Neighbouring columns share a cell where there are more than `MOST_CELLS`; it shows the largest of their values.

    Args:
        columns: step and one value per row, in the order of steps.
        x_end: last step of the horizontal axis.
        top: value of full colour.
        described: what a screen reader says.
    """
    rows = len(columns[0][1]) if columns else 0
    if not rows:
        return _svg(described, Markup(""))
    most = max(8, MOST_CELLS // rows)
    bins = [columns[at : at + -(-len(columns) // most)] for at in range(0, len(columns), -(-len(columns) // most))]
    height, edges = (HEIGHT - TOP - BOTTOM) / rows, [0, *(each[-1][0] for each in bins)]
    parts = [_x_ticks(x_end)]
    for row in range(rows):
        y = TOP + row * height
        if row in (0, rows - 1):
            parts.append(_label(LEFT - 6, y + height / 2 + 4, str(row + 1)))
        for start, end, group in zip(edges, edges[1:], bins, strict=False):
            strength = min(1.0, max(0.0, max(values[row] for _, values in group) / top)) if top else 0.0
            x, width = _x(start / max(x_end, 1)), _x(end / max(x_end, 1)) - _x(start / max(x_end, 1))
            parts.append(
                Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill-opacity="{:.2f}"/>').format(
                    x, y, width + 0.15, max(height - 0.6, 0.4), strength
                )
            )
    return _svg(described, Markup('<g class="heat">{}</g>').format(Markup("").join(parts)))


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most so many points: means of neighbours, and the last point itself.

    >>> thinned([(1, 2.0), (2, 4.0), (3, 6.0)], most=2)
    [(1.5, 3.0), (3, 6.0)]
    """
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // most)
    groups = [points[at : at + size] for at in range(0, len(points) - 1, size)]
    means = [(sum(x for x, _ in each) / len(each), sum(y for _, y in each) / len(each)) for each in groups]
    return [*means, points[-1]]


def nice_ticks(low: float, high: float, most: int = MOST_TICKS) -> list[float]:
    """Return round numbers within a range, or two that enclose it.

    >>> nice_ticks(2.13, 4.9), nice_ticks(3.0, 3.0)
    ([3.0, 4.0], [3.0])
    """
    span = high - low
    if not span > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most)
    found = [round(step * place, 12) for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return found or [low, high]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [each for each in found if low <= each <= high] or [low, high]
    return inside[:: -(-len(inside) // MOST_TICKS)]


def _is_drawn(point: Point, is_log: bool) -> bool:
    return math.isfinite(point[1]) and (point[1] > 0 or not is_log)


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _grid(y: float, text: str) -> Markup:
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, WIDTH - RIGHT, y, y)
    return line + _label(LEFT - 6, y + 4, text)


def _x_ticks(x_end: float) -> Markup:
    labels: Iterable[tuple[float, str]] = ((0, "0"), (0.5, f"{x_end / 2:g}"), (1, f"{x_end:g}"))
    return Markup("").join(
        Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
            _x(share), HEIGHT - 6, "end" if share == 1 else "middle", text
        )
        for share, text in labels
    )


def _label(x: float, y: float, text: str) -> Markup:
    return Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(x, y, text)


def _svg(described: str, content: Markup) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, escape(described), content
    )
