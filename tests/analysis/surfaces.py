"""Loss surfaces with a known optimum, as curves and as the results of a study."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from expertp.analysis.curves import Curve
from expertp.spec import BaseHPs, ModelSpec, RunSpec
from expertp.study.cells import Arm, Size, expand, scale_of, unique_runs
from expertp.study.load import load_study
from expertp.study.spec import StudySpec
from expertp.study.table import Result, StudyTable

EXAMPLE = Path(__file__).parents[1] / "fixtures/study.yaml"
# Half octaves around the zero-shot value, as an override.
FINE = "grids.log2_lr=[-7, -6.5, -6, -5.5, -5]"
BASE = ModelSpec(n_embd=64, n_layer=2, n_exp=4)
ARM = Arm("expertp", BaseHPs(lr=2.0**-6))
GRID = (-9.0, -8.0, -7.0, -6.0, -5.0, -4.0)
# Nats by which the loss rises one octave from the optimum.
RISE = 0.04


def parabola(x):
    return RISE * x**2


def skewed(x):
    """Steeper towards large values, as learning rates are."""
    return RISE * (x**2 + 0.12 * x**3)


def exponential(x):
    """No polynomial: a straight line on one side, an exponential on the other."""
    return 2 * RISE / 0.7**2 * (np.exp(0.7 * x) - 0.7 * x - 1)


def size_of(scale: float) -> Size:
    """Return a size of the axis `width`."""
    return Size(BASE.replace(n_embd=round(64 * scale)), scale, scale == 1)


def make_curve(shape, optimum, noise, rng, scale=1.0, grid=GRID, n_seeds=3, seed_shift=0.02):
    """Return a noisy curve; the shift that a seed causes at all points is much larger than the noise of a point."""
    shift = seed_shift * rng.standard_normal(n_seeds)
    points = shape(np.array(grid) - optimum)[:, None] + shift + noise * rng.standard_normal((len(grid), n_seeds))
    losses = tuple(map(tuple, (3 + points).tolist()))
    none = (0,) * len(grid)
    return Curve("width", size_of(scale), ARM, "log2_lr", tuple(grid), losses, tuple(range(n_seeds)), none)


def make_axis(shape, optimum, drift, noise, rng, scales=(1.0, 2.0, 4.0), **changes):
    """Return the curves of an axis on which the optimum moves by `drift` octaves per doubling."""
    return [make_curve(shape, optimum + drift * np.log2(scale), noise, rng, scale, **changes) for scale in scales]


def small_study(*overrides: str) -> StudySpec:
    """Return the example with one axis and no other arm."""
    return load_study(EXAMPLE, ["arms={}", "axes={width: {sizes: [64, 128, 256], sweep: [log2_lr]}}", *overrides])


def results_of(
    study: StudySpec,
    drift: float = 0.0,
    noise: float = 0.001,
    optimum: float = -6.3,
    status: Callable[[RunSpec], str] = lambda _: "finished",
    runs: Iterable[RunSpec] | None = None,
) -> list[Result]:
    """Return results in which larger models are better and the optimum drifts."""
    rng, results = np.random.default_rng(8), []
    for place, run in enumerate(runs or unique_runs(expand(study))):
        doublings = np.log2(scale_of(run.model, study.base))
        loss = 4 - 0.1 * doublings + parabola(np.log2(run.hps.lr) - optimum - drift * doublings)
        loss += 0.01 * np.sin(run.train.seed) + noise * rng.standard_normal()
        state = status(run)
        results.append(Result(run, f"{place:x}", state, val_loss=float(loss) if state == "finished" else None))
    return results


def table_of(study: StudySpec, **changes) -> StudyTable:
    """Return the same results joined with their cells."""
    return StudyTable.join(study, results_of(study, **changes))


def at_scale(seen, scale):
    """Return the cost at a size."""
    return next(each for each in seen.costs if each.size.scale == scale)
