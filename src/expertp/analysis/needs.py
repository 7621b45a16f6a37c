"""Which runs would settle an axis that is INCONCLUSIVE; `expertp sweep --refine` trains them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from expertp.analysis.curves import Curve
from expertp.analysis.optimum import FittedCurve, Optimum

COMMAND = "expertp sweep STUDY.yaml --out DIR"
REFINE = f"{COMMAND} --refine MINUTES"
# A finer grid than this says more about noise than about the curve.
FINEST = 0.25


@dataclass(frozen=True)
class Need:
    """Runs that would settle an axis.

    Args:
        kind: a wider grid, a finer one, more seeds, or only the runs that are missing.
        values: to be added to the grid, log2.
        seeds: to be added to the seeds.
        text: the same as a sentence, with the command for a study in DIR.
    """

    kind: Literal["wider", "finer", "seeds", "runs"]
    values: tuple[float, ...]
    seeds: tuple[int, ...]
    text: str

    def told(self, directory: Path) -> str:
        """Return the sentence for a study in a directory."""
        return self.text.replace("--out DIR", f"--out {shlex.quote(str(directory))}")


def missing_runs(n: int) -> Need:
    """Return the need of runs that the study means and that have not come to an end."""
    return Need("runs", (), (), f"`{COMMAND}` trains the {n} runs that have no result")


def wider_grid(curves: Sequence[Curve], optima: Mapping[float, Optimum], is_open: bool = False) -> tuple[Need, ...]:
    """Return two further values beyond each end of the grid at which an optimum may lie; none where none does.

    `is_open` asks for both ends, whatever the single optima say.
    """
    grid = curves[0].log2_values
    low = any(optimum.edge == "low" or optimum.ci[0] == -math.inf for optimum in optima.values())
    high = any(optimum.edge == "high" or optimum.ci[1] == math.inf for optimum in optima.values())
    low, high = low or is_open, high or is_open
    # Where all runs of the base diverge, only smaller values can help.
    low = low or curves[0].scale not in optima
    below, above = (grid[1] - grid[0], grid[-1] - grid[-2]) if len(grid) > 1 else (1.0, 1.0)
    values = [grid[0] - 2 * below, grid[0] - below] if low else []
    values += [grid[-1] + above, grid[-1] + 2 * above] if high else []
    if not values:
        return ()
    text = f"`{REFINE}` widens the grid of {curves[0].hp} by {_listed(values)}"
    return (Need("wider", tuple(values), (), text),)


def to_be_surer(curves: Sequence[Curve], fitted: Mapping[float, FittedCurve], narrower: float) -> tuple[Need, ...]:
    """Return what makes intervals so many times narrower: cells between, where the curve's shape is the doubt; seeds.

    An interval shrinks as 1 / sqrt(seeds); three times the seeds are the most that one step asks for.
    """
    needs = []
    values = sorted({value for fit in fitted.values() if _shape_is_the_doubt(fit) for value in _midpoints(fit)})
    if values:
        text = f"`{REFINE}` refines the grid of {curves[0].hp} by {_listed(values)}"
        needs.append(Need("finer", tuple(values), (), text))
    seeds, n = curves[0].seeds, curves[0].n_seeds
    more = min(max(math.ceil(n * (narrower**2 - 1)), 1), max(2 * n, 2))
    first = max(seeds, default=-1) + 1
    added = tuple(range(first, first + more))
    needs.append(Need("seeds", (), added, f"`{REFINE}` adds seeds {_listed(added)}"))
    return tuple(needs)


def _shape_is_the_doubt(fit: FittedCurve) -> bool:
    """Whether the optimum is uncertain because of the cells' places rather than their noise."""
    low, high = fit.optimum.ci
    beside_a_wall = bool(fit.found.low[0] != fit.found.high[0])
    return beside_a_wall or 2 * fit.model_error > (high - low) / 4


def _midpoints(fit: FittedCurve) -> list[float]:
    """Return the middles between the best cell and what lies on both sides of it."""
    cell = fit.found.cell[0]
    best, sides = float(fit.cells.x[cell]), (float(fit.cells.left[cell]), float(fit.cells.right[cell]))
    return [(best + side) / 2 for side in sides if 2 * FINEST <= abs(side - best) < math.inf]


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
