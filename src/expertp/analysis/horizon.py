"""How far the base's optimal learning rate moves when training gets longer, from the training curves of its sweep.

With a constant schedule, the first half of a run is the run of half the length. The optimum of the training loss over
the last tenth of all steps, minus that over the last tenth of the first half, is the shift per doubling of steps. A
study whose larger models train for longer must not take this shift for an effect of size.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from expertp.analysis.curve_fit import fit_curve, pooled_noise
from expertp.analysis.curves import Curve, curve
from expertp.study.table import StudyTable
from expertp.util.statistics import UNKNOWN, Estimate

# Share of the steps before a horizon over which the training loss is averaged.
WINDOW = 0.1
# Number of records in this window below which a horizon is not judged.
FEWEST_RECORDS = 3


def horizon_drift(table: StudyTable) -> Estimate:
    """Return octaves by which the base's optimal learning rate moves per doubling of steps.

    An end of the interval is infinite where an optimum may lie beyond the values of the grid.

    Unknown with another schedule than a constant one, where warm-up takes more than a quarter of the steps, or where
    the base's learning rates are not swept or have no training curves.
    """
    train = table.study.train
    if train.schedule != "constant" or 4 * train.warmup_steps > train.steps:
        return UNKNOWN
    for axis in table.axes:
        swept = curve(table, axis, table.base(axis), table.own, "log2_lr")
        if swept is not None:
            break
    else:
        return UNKNOWN
    fits = []
    for place, steps in enumerate((train.steps // 2, train.steps)):
        at = _training_curve(table, axis, swept, steps)
        fits.append(fit_curve(at, pooled_noise([at]), seed=place))
    half, whole = fits
    if half is None or whole is None:
        return UNKNOWN
    return whole.shift_from(half)


def _training_curve(table: StudyTable, axis: str, swept: Curve, steps: int) -> Curve:
    """Return the base's curve with the training losses before a step in place of final validation losses."""
    rows = []
    for value, losses in zip(swept.log2_values, swept.losses, strict=True):
        cells = table.where(axis=axis, size=swept.size, arm=swept.arm, hp="log2_lr", value=value)
        if value == swept.centre:
            cells = (*cells, *table.where(axis=axis, size=swept.size, arm=swept.arm, hp=None))
        records = table.records(cells)
        found = {
            seed: [each.loss for each in of_seed if (1 - WINDOW) * steps < each.step <= steps]
            for seed, of_seed in records.items()
        }
        means = {seed: float(np.mean(values)) for seed, values in found.items() if len(values) >= FEWEST_RECORDS}
        finite = [means.get(seed, math.nan) for seed in swept.seeds]
        rows.append(tuple(math.inf if loss == math.inf else mean for loss, mean in zip(losses, finite, strict=True)))
    return replace(swept, losses=tuple(rows))
