"""How often is the verdict right? Replays of recorded and synthetic loss curves with a known cost of zero-shot.

    python benchmarks/verdict_power.py [--surfaces 400] [--out docs/results/verdict]

A surface is a recorded curve of a larger model, interpolated, and moved along the learning rate (or init std) until
zero-shot costs a known multiple of the tolerance; or a synthetic curve of the same kind. Noise is drawn from what was
recorded: whole residual curves of seeds, so that neighbouring values stay as alike as they are. Every surface is judged
as a study would be, with the values and seeds of the profile.
"""

import argparse
import csv
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.recorded import recorded_studies
from expertp.analysis.curve_fit import Noise, pooled_noise
from expertp.analysis.curves import Curve, curves
from expertp.analysis.judging import judge_curves
from expertp.study.spec import HPS, VerdictSpec

Floats = NDArray[np.float64]
# Octaves from the zero-shot value at which the cpu profile trains, and its seeds.
OCTAVES = {"log2_lr": (-1.0, -0.5, 0.0, 0.5, 1.0), "log2_init_std": (-1.0, -0.5, 0.0, 0.5, 1.0)}
SEEDS = 3
# True cost of zero-shot, as multiples of the tolerance.
MULTIPLES = (0.0, 0.5, 2.0, 4.0)
# Number of other curves of a study whose noise is pooled with that of a curve.
POOLED_WITH = 6
RATES = ("TRANSFERS", "FAILS", "UNDECIDED", "covered", "drift_covered")


@dataclass(frozen=True, eq=False)
class Surface:
    """A larger model's loss over octaves from its optimum, and residual curves of seeds over octaves.

    Args:
        study: where it was recorded.
        axis: the axis.
        hp: the hyperparameter.
        loss: the loss above the minimum, at octaves from it.
        base: the same for the base.
        gain: minimum of the base minus minimum of the model.
        residuals: residual curves [seed, place] at `places`.
        places: octaves from the zero-shot value.
    """

    study: str
    axis: str
    hp: str
    loss: Callable[[Floats], Floats]
    base: Callable[[Floats], Floats]
    gain: float
    residuals: Floats
    places: Floats

    @property
    def tolerance(self) -> float:
        """The tolerance of a study with default settings."""
        rule = VerdictSpec()
        return max(rule.nats, rule.share * self.gain)

    def shift(self, cost: float, side: int) -> float:
        """Return by how many octaves the optimum must move for zero-shot to cost so much."""
        octaves = np.linspace(0, 2, 401)
        is_there = self.loss(-side * octaves) >= cost
        if not is_there.any():  # the curve is too flat on this side
            return self.shift(cost, -side)
        return side * float(octaves[int(np.argmax(is_there))])


def recorded_surfaces() -> Iterator[Surface]:
    """Return the curves of the largest size of every axis of the recorded studies."""
    for name, table in recorded_studies().items():
        for hp in HPS:
            swept = {axis: curves(table, axis, table.own, hp) for axis in table.axes}
            residuals = np.concatenate([_residuals(each) for found in swept.values() for each in found])
            for axis, found in swept.items():
                base, largest = (_about_optimum(each) for each in (found[0], found[-1]))
                places = np.array(found[0].log2_values) - found[0].centre
                gain = base.lowest - largest.lowest
                yield Surface(name, axis, hp, largest.loss, base.loss, gain, residuals, places)


def synthetic_surfaces() -> Iterator[Surface]:
    """Return parabolas and skewed curves with independent noise, from flat to sharp."""
    places = np.arange(-3.0, 3.5, 0.5)
    for curvature, skew, noise in ((0.02, 0.0, 0.005), (0.04, 0.3, 0.005), (0.04, -0.3, 0.01), (0.1, 0.5, 0.01)):

        def loss(x: Floats, curvature: float = curvature, skew: float = skew) -> Floats:
            # The exponential has b_3 / b_2 = skew.
            rate = 3 * skew if skew else 1e-3
            return 2 * curvature / rate**2 * (np.exp(rate * x) - rate * x - 1)

        rng = np.random.default_rng(7)
        residuals = noise * rng.standard_normal((400, places.size))
        yield Surface("synthetic", f"b2={curvature:g} skew={skew:g}", "log2_lr", loss, loss, 0.1, residuals, places)


@dataclass(frozen=True, eq=False)
class _AboutOptimum:
    loss: Callable[[Floats], Floats]
    lowest: float


def _about_optimum(curve: Curve) -> _AboutOptimum:
    x, means = np.array(curve.log2_values), np.array(curve.losses).mean(1)
    spline, fine = CubicSpline(x, means), np.linspace(curve.centre - 1.5, curve.centre + 1.5, 3001)
    at, lowest = float(fine[spline(fine).argmin()]), float(spline(fine).min())
    return _AboutOptimum(lambda octaves: spline(np.clip(at + octaves, x[0], x[-1])) - lowest, lowest)


def _residuals(curve: Curve) -> Floats:
    losses = np.array(curve.losses)
    n_seeds = losses.shape[1]
    return ((losses - losses.mean(1, keepdims=True)) * math.sqrt(n_seeds / (n_seeds - 1))).T


def simulate(surface: Surface, shift: float, seed: int, octaves: Sequence[float], n_seeds: int) -> list[Curve]:
    """Return curves of base and larger model, the optimum of the latter `shift` octaves from the zero-shot value."""
    rng, made = np.random.default_rng((seed, 11)), []
    template = _template(surface, octaves, n_seeds)
    x = np.array(octaves)
    for place, (loss, moved) in enumerate(((surface.base, 0.0), (surface.loss, shift))):
        level = 3.0 - place * surface.gain
        noise = draw_noise(surface, x, n_seeds, rng)
        losses = level + loss(x - moved)[:, None] + noise
        made.append(template(place, losses))
    return made


def draw_noise(surface: Surface, x: Floats, n_seeds: int, rng: np.random.Generator) -> Floats:
    """Return noise [value, seed] from residual curves, with random signs."""
    picked = surface.residuals[rng.integers(len(surface.residuals), size=n_seeds)]
    signs = rng.choice([-1.0, 1.0], size=n_seeds)
    return np.stack([sign * np.interp(x, surface.places, each) for sign, each in zip(signs, picked, strict=True)], 1)


def _template(surface: Surface, octaves: Sequence[float], n_seeds: int) -> Callable[[int, Floats], Curve]:
    from expertp.spec import BaseHPs, ModelSpec
    from expertp.study.cells import Arm, Size

    base = ModelSpec(n_embd=64, n_layer=2, n_exp=4)
    sizes = (Size(base, 1.0, True), Size(base.replace(n_embd=256), 4.0, False))
    arm, hp = Arm("expertp", BaseHPs(lr=2.0**-8, init_std=2.0**-4)), surface.hp
    centre = -8.0 if hp == "log2_lr" else -4.0

    def make(place: int, losses: Floats) -> Curve:
        values = tuple(centre + octave for octave in octaves)
        rows = tuple(map(tuple, losses.tolist()))
        return Curve("width", sizes[place], arm, hp, values, rows, tuple(range(n_seeds)), (0,) * len(values))  # type: ignore[arg-type]

    return make


def pooled(surface: Surface, judged: Sequence[Curve], seed: int, octaves: Sequence[float], n_seeds: int) -> Noise:
    """Return the noise as a study pools it: with curves of other axes and hyperparameters."""
    others = [
        each for n in range(POOLED_WITH // 2) for each in simulate(surface, 0.0, seed * 100 + n + 1, octaves, n_seeds)
    ]
    return pooled_noise([*judged, *others])


def characteristics(surface: Surface, multiple: float, surfaces: int, n_seeds: int = SEEDS) -> dict[str, object]:
    """Judge surfaces with a known cost; return one row of the table."""
    counts, covered, drift_covered, octaves = Counter[str](), 0, 0, OCTAVES[surface.hp]
    cost = multiple * surface.tolerance
    for number in range(surfaces):
        shift = surface.shift(cost, 1 if number % 2 else -1)
        judged = simulate(surface, shift, number, octaves, n_seeds)
        verdict = judge_curves(judged, VerdictSpec(), pooled(surface, judged, number, octaves, n_seeds))
        counts[str(verdict.conclusion)] += 1
        found, true = verdict.cost, float(surface.loss(np.array(-shift)))
        covered += found.low <= true + 1e-9 and found.high >= true - 1e-9
        drift_covered += verdict.drift.low - 1e-9 <= shift / 2 <= verdict.drift.high + 1e-9
    noise = pooled_noise([each for n in range(20) for each in simulate(surface, 0.0, n, octaves, n_seeds)])
    return {
        "study": surface.study, "hp": surface.hp, "axis": surface.axis, "tolerance": f"{surface.tolerance:.4f}",
        "noise": f"{noise.sd:.4f}", "true_cost_over_tolerance": multiple, "surfaces": surfaces,
        **{name: f"{counts[name] / surfaces:.3f}" for name in ("TRANSFERS", "FAILS", "UNDECIDED")},
        "covered": f"{covered / surfaces:.3f}", "drift_covered": f"{drift_covered / surfaces:.3f}",
    }  # fmt: skip


def drift_cost(surface: Surface) -> dict[str, object]:
    """Return what a drift of half an octave per doubling costs at two and at four times the base, nats."""
    at = {f"cost_at_{scale}x": np.mean([float(surface.loss(np.array(side * octaves))) for side in (-1, 1)])
          for scale, octaves in ((2, 0.5), (4, 1.0))}  # fmt: skip
    return {
        "study": surface.study, "hp": surface.hp, "axis": surface.axis, "tolerance": f"{surface.tolerance:.4f}",
        **{name: f"{value:.4f}" for name, value in at.items()},
    }  # fmt: skip


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--surfaces", type=int, default=400, help="surfaces per row (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds per value (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder for power.csv")
    args = parser.parse_args()
    rows = []
    for surface in (*recorded_surfaces(), *synthetic_surfaces()):
        for multiple in MULTIPLES:
            rows.append(characteristics(surface, multiple, args.surfaces, args.seeds))
            print(*rows[-1].values(), flush=True)
    for multiple in MULTIPLES:
        mine = [row for row in rows if row["true_cost_over_tolerance"] == multiple]
        means = {name: np.mean([float(str(row[name])) for row in mine]) for name in RATES}
        print(f"true cost {multiple:g} x tolerance:", ", ".join(f"{name} {mean:.3f}" for name, mean in means.items()))
    if args.out:
        write(args.out / "power.csv", rows)
        write(args.out / "drift-cost.csv", [drift_cost(surface) for surface in recorded_surfaces()])


if __name__ == "__main__":
    main()
