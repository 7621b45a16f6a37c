"""Plain numbers on axes that may span less than a decade."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from expertp.figures.style import percentage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Ever finer: a range of a factor of 1.3 has three of the finest.
DIGITS = (
    (1,),
    (1, 3),
    (1, 2, 5),
    (1, 1.5, 2, 3, 5, 7),
    (*(n / 10 for n in range(10, 20)), *(n / 10 for n in range(20, 50, 2)), *(n / 10 for n in range(50, 100, 5))),
)


def round_numbers(low: float, high: float, least: int = 3) -> list[float]:
    """Return round numbers in a range for a logarithmic axis: powers of ten, and more of them in a short range.

    >>> round_numbers(0.01, 3.0), round_numbers(0.06, 0.16), round_numbers(0.11, 0.14)
    ([0.01, 0.1, 1.0], [0.07, 0.1, 0.15], [0.11, 0.12, 0.13, 0.14])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for digits in DIGITS:
        numbers = (float(f"{digit}e{power}") for power in powers for digit in digits)
        found = [number for number in numbers if low <= number <= high]
        if len(found) >= least:
            break
    return found


def log_ticks(ax: Axes, percent: bool = False) -> None:
    """Make the y axis logarithmic over the range that it has, with round numbers and nothing between them."""
    from matplotlib.ticker import NullLocator

    ax.set_yscale("log")
    ticks = round_numbers(*ax.get_ylim())
    ax.set_yticks(ticks)
    ax.set_yticklabels([percentage(tick) if percent else f"{tick:g}" for tick in ticks])
    ax.yaxis.set_minor_locator(NullLocator())
