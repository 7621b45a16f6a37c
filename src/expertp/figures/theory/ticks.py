"""Ticks with plain numbers on logarithmic axes, which may span less than a decade or very many."""

from __future__ import annotations

import math
from collections.abc import Iterable

from expertp.figures.style import Axes, percentage

# Leading digits of ticks, from coarse to fine; a range of a factor of 1.3 contains three of the finest.
DIGITS = (
    (1,),
    (1, 3),
    (1, 2, 5),
    (1, 1.5, 2, 3, 5, 7),
    (*(n / 10 for n in range(10, 20)), *(n / 10 for n in range(20, 50, 2)), *(n / 10 for n in range(50, 100, 5))),
)


def round_numbers(low: float, high: float, least: int = 3) -> list[float]:
    """Return round numbers in a range for a logarithmic axis: powers of ten, and finer numbers in a short range.

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
    return spaced(found, low, high, most=8)


def spaced(values: Iterable[float], low: float, high: float, most: int) -> list[float]:
    """Return values, from the smallest, that are at least 1/most of a logarithmic axis apart.

    >>> spaced([48, 50, 56, 64], 40, 80, most=6)
    [48, 56, 64]
    """
    found: list[float] = []
    for value in sorted(values):
        if not found or value / found[-1] >= (high / low) ** (1 / most):
            found.append(value)
    return found


def log_ticks(ax: Axes, percent: bool = False) -> None:
    """Make the y axis logarithmic over its present range, with ticks at round numbers only."""
    from matplotlib.ticker import NullLocator

    ax.set_yscale("log")
    ticks = round_numbers(*ax.get_ylim())
    ax.set_yticks(ticks, [percentage(tick) if percent else f"{tick:g}" for tick in ticks])
    ax.yaxis.set_minor_locator(NullLocator())
