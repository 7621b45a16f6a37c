"""The power of a power law."""

import math
import statistics
from collections.abc import Iterable


def fit_slope(points: Iterable[tuple[float, float]]) -> float:
    """Return the least-squares slope of log y against log x.

    >>> round(fit_slope([(1, 3.0), (2, 6.0), (4, 12.0)]), 9)
    1.0
    """
    logs = [(math.log(x), math.log(y)) for x, y in points]
    middle = statistics.fmean(x for x, _ in logs)
    return sum((x - middle) * y for x, y in logs) / sum((x - middle) ** 2 for x, _ in logs)
