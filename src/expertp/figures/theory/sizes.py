"""Labels, order and legend handles of sizes in all figures of the theory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from expertp.figures import style
from expertp.theory.finite import Size
from expertp.theory.problem import Problem

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

FIELDS = ("N", "E", "n_hid")
# The theory is drawn over the networks; dashes keep these visible.
THEORY_DASHES = (0, (4, 2))


def size_label(size: Size, fields: Iterable[str] = FIELDS) -> str:
    """Return a size, or some of its fields, as text.

    >>> size_label(Size(64, 32, 16)), size_label(Size(64, 32, 16), ["n_hid"])
    ('N 64, E 32, n_hid 16', 'n_hid 16')
    """
    return ", ".join(f"{field} {getattr(size, field)}" for field in fields)


def changing(sizes: Sequence[Size]) -> list[str]:
    """Return the fields in which sizes differ; all fields if there is one size.

    >>> changing([Size(32, 64, 16), Size(64, 64, 32)])
    ['N', 'n_hid']
    """
    return [field for field in FIELDS if len({getattr(size, field) for size in sizes}) > 1] or list(FIELDS)


def small_to_large(sizes: Iterable[Size], problem: Problem) -> list[Size]:
    """Return sizes sorted by number of parameters, which is the order of their colours."""
    return sorted(sizes, key=lambda size: size.parameters(problem))


def some_layers(n: int, most: int = 4) -> list[int]:
    """Return at most `most` of n layers, evenly spaced, including the first and the last.

    >>> some_layers(3), some_layers(9)
    ([0, 1, 2], [0, 3, 5, 8])
    """
    if n <= most:
        return list(range(n))
    return [round(place * (n - 1) / (most - 1)) for place in range(most)]


def size_handle(place: int, of: int) -> Line2D:
    """Return the legend handle of the size at `place` among `of` sizes."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=style.size_colour(place, of), marker=style.marker(place), markersize=4.5)


def theory_handle() -> Line2D:
    """Return the legend handle of the theory."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=style.INK, linewidth=1.3, linestyle=THEORY_DASHES)
