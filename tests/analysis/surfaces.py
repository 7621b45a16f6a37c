"""Loss surfaces with a known optimum, as curves and as the results of a study."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from expertp.analysis.curves import Curve
from expertp.config import load_study
from expertp.spec import RunSpec
from expertp.study import StudySpec, expand, scale_of
from expertp.study_store import Result

EXAMPLE = Path(__file__).parents[2] / "configs/study.yaml"
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


def make_curve(shape, optimum, noise, rng, scale=1.0, grid=GRID, n_seeds=3, seed_shift=0.02):
    """Return a noisy curve; what a seed shifts in all cells is much larger than the noise of a cell."""
    shift = seed_shift * rng.standard_normal(n_seeds)
    cells = shape(np.array(grid) - optimum)[:, None] + shift + noise * rng.standard_normal((len(grid), n_seeds))
    losses = tuple(map(tuple, (3 + cells).tolist()))
    return Curve("width", scale, 64 * scale, "expertp", "log2_lr", tuple(grid), losses, -6.0, tuple(range(n_seeds)))


def make_axis(shape, optimum, drift, noise, rng, scales=(1.0, 2.0, 4.0), **changes):
    """Return the curves of an axis on which the optimum moves by `drift` octaves per doubling."""
    return {
        scale: make_curve(shape, optimum + drift * np.log2(scale), noise, rng, scale, **changes) for scale in scales
    }


def small_study(*overrides: str) -> StudySpec:
    """Return the example with one axis and no contrast."""
    return load_study(EXAMPLE, ["contrasts={}", "axes={width: {sizes: [64, 128, 256], sweep: [log2_lr]}}", *overrides])


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
    for place, run in enumerate(runs or expand(study)):
        doublings = np.log2(scale_of(run.model, study.base))
        loss = 4 - 0.1 * doublings + parabola(np.log2(run.hps.lr) - optimum - drift * doublings)
        loss += 0.01 * np.sin(run.train.seed) + noise * rng.standard_normal()
        state = status(run)
        results.append(Result(run, f"{place:x}", state, val_loss=float(loss) if state == "finished" else None))
    return results
