"""How often is the verdict right? Replays of recorded and synthetic loss curves with a known cost of zero-shot.

    python benchmarks/verdict_power.py [--surfaces 400] [--profile earlier] [--out docs/results/verdict]

A surface is a recorded curve of a larger model, interpolated, and moved along the learning rate (or init std) until
zero-shot costs a known multiple of the tolerance; or a synthetic curve of the same kind. Noise is drawn from what was
recorded: whole residual curves of seeds, so that neighbouring values stay as alike as they are, and the slope that a
seed has stays there. Every surface is judged as a study would be, with the values and seeds of the profile.

The surfaces of the present profile are the published tables of docs/results/paper. Their noise is as large as the
tolerance, so that a curve through the means over seeds would have bumps of noise: their loss is a cubic polynomial that
is fitted to these means (a parabola where there are two seeds), and goes on as a straight line. They are judged with a
fixed number of seeds, and as adaptive sweeps judge them: two seeds and five values first, then the cells that
`expertp.search.design` proposes, each look at the level of alpha spending, until the curve is decided.
"""

import argparse
import csv
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.recorded import present_studies, recorded_studies
from expertp.analysis.curve_fit import WINDOW, Noise, pooled_noise
from expertp.analysis.curves import Curve, curves
from expertp.analysis.judging import judge_curves, tail_of_look
from expertp.analysis.verdict import Verdict
from expertp.search.design import FIRST_OCTAVES, FIRST_SEEDS, MOST_SEEDS, next_choice
from expertp.spec import BaseHPs, ModelSpec, TrainSpec
from expertp.study.cells import Arm, Size
from expertp.study.spec import HP, HPS, AxisSpec, ChoiceSpec, GridSpec, StudySpec, VerdictSpec
from expertp.study.table import StudyTable

Floats = NDArray[np.float64]
# Octaves from the zero-shot value at which the cpu profile trains, and its seeds.
OCTAVES = {"log2_lr": (-1.0, -0.5, 0.0, 0.5, 1.0), "log2_init_std": (-1.0, -0.5, 0.0, 0.5, 1.0)}
SEEDS = 3
# True cost of zero-shot, as multiples of the tolerance.
MULTIPLES = (0.0, 0.5, 2.0, 4.0)
# Number of other curves of a study whose noise is pooled with that of a curve.
POOLED_WITH = 6
RATES = ("TRANSFERS", "FAILS", "UNDECIDED", "covered", "drift_covered")
# Centres of learning rate and init std of simulated curves, and the octaves around them that the profile's grids have.
CENTRE: Mapping[str, float] = {"log2_lr": -8.0, "log2_init_std": -4.0}
GRID = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)
# Seeds from which on residual curves of a recorded curve are used, and most looks at a curve.
FEWEST_SEEDS, MOST_LOOKS = 3, 12


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


@dataclass(frozen=True, eq=False)
class _AboutOptimum:
    loss: Callable[[Floats], Floats]
    lowest: float


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


def present_surfaces() -> list[Surface]:
    """Return the curves of the largest size of every axis of the published studies of the present profile."""
    return [surface for name, table in present_studies().items() for surface in _present_surfaces(name, table)]


def _present_surfaces(name: str, table: StudyTable) -> Iterator[Surface]:
    for hp in HPS:
        swept = {axis: (found[0], found[-1]) for axis in table.axes if (found := curves(table, axis, table.own, hp))}
        whole = {axis: [_complete(each) for each in found] for axis, found in swept.items()}
        # With two seeds, the residuals of one are those of the other; axes share the base.
        many = {each.size: each for found in whole.values() for each in found if each.n_seeds >= FEWEST_SEEDS}
        for axis, (base, largest) in whole.items():
            known = [base, largest] if {base.size, largest.size} <= {*many} else list(many.values())
            shared = sorted(set.intersection(*({*each.log2_values} for each in known)))
            residuals = np.concatenate([_residuals(_at(each, shared, range(each.n_seeds))) for each in known])
            lower, upper = _smoothed(largest), _smoothed(base)
            gain, places = upper.lowest - lower.lowest, np.array(shared) - base.centre
            yield Surface(name, axis, hp, lower.loss, upper.loss, gain, residuals, places)


def _at(curve: Curve, values: Sequence[float], places: Sequence[int]) -> Curve:
    """Return a curve at some values, and with the seeds at some places."""
    losses = dict(zip(curve.log2_values, curve.losses, strict=True))
    rows = tuple(tuple(losses[value][place] for place in places) for value in values)
    seeds = tuple(curve.seeds[place] for place in places)
    return replace(curve, log2_values=tuple(values), losses=rows, seeds=seeds, n_missing=(0,) * len(values))


def _complete(curve: Curve) -> Curve:
    """Return a curve with the seeds that have all of the first values, at the values that all of these have."""
    losses = dict(zip(curve.log2_values, curve.losses, strict=True))
    first = [value for value in losses if any(abs(value - curve.centre - each) < 1e-9 for each in FIRST_OCTAVES)]
    places = [place for place in range(curve.n_seeds) if all(math.isfinite(losses[value][place]) for value in first)]
    values = [
        value
        for value, found in losses.items()
        if abs(value - curve.centre) <= WINDOW and all(math.isfinite(found[place]) for place in places)
    ]
    return _at(curve, values, places)


def _smoothed(curve: Curve) -> _AboutOptimum:
    """Return a polynomial through the means over seeds; beyond the values, it goes on as a straight line."""
    x, means = np.array(curve.log2_values) - curve.centre, np.array(curve.losses).mean(1)
    shape = np.polynomial.Polynomial.fit(x, means, 3 if curve.n_seeds >= FEWEST_SEEDS else 2)
    slope, fine = shape.deriv(), np.linspace(x[0], x[-1], 3001)
    at, lowest = float(fine[shape(fine).argmin()]), float(shape(fine).min())

    def loss(octaves: Floats) -> Floats:
        place = at + np.asarray(octaves)
        inside = np.clip(place, x[0], x[-1])
        rise = np.where(place < x[0], min(float(slope(x[0])), 0.0), max(float(slope(x[-1])), 0.0))
        return np.asarray(shape(inside) - lowest + rise * (place - inside))

    return _AboutOptimum(loss, lowest)


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


_BASE = ModelSpec(n_embd=64, n_layer=2, n_exp=4)


def _template(surface: Surface, octaves: Sequence[float], n_seeds: int) -> Callable[[int, Floats], Curve]:
    sizes = (Size(_BASE, 1.0, True), Size(_BASE.replace(n_embd=256), 4.0, False))
    arm, hp = Arm("expertp", BaseHPs(lr=2.0 ** CENTRE["log2_lr"], init_std=2.0 ** CENTRE["log2_init_std"])), surface.hp

    def make(place: int, losses: Floats) -> Curve:
        values = tuple(CENTRE[hp] + octave for octave in octaves)
        rows = tuple(map(tuple, losses.tolist()))
        return Curve("width", sizes[place], arm, hp, values, rows, tuple(range(n_seeds)), (0,) * len(values))  # type: ignore[arg-type]

    return make


def pooled(
    surfaces: Sequence[Surface], judged: Sequence[Curve], seed: int, octaves: Sequence[float], n_seeds: int
) -> Noise:
    """Return the noise as a study pools it: with curves of other axes and hyperparameters."""
    others = [
        each
        for n, surface in enumerate(surfaces)
        for each in simulate(surface, 0.0, seed * 100 + n + 1, octaves, n_seeds)
    ]
    return pooled_noise([*judged, *others])


@dataclass(frozen=True, eq=False)
class Ended:
    """The end of an adaptive sweep of one curve: its verdict, and the cells that it has trained."""

    verdict: Verdict
    choice: ChoiceSpec


def sweep_adaptively(surface: Surface, others: Sequence[Surface], shift: float, number: int) -> Ended:
    """Judge a curve as an adaptive sweep does, until it is decided or nothing more would help.

    Args:
        surface: the surface.
        others: surfaces of the other curves of the study; their noise at the first cells is pooled with that of this
            curve.
        shift: octaves from the zero-shot value to the optimum.
        number: seeds the noise.
    """
    hp: HP = "log2_lr" if surface.hp == "log2_lr" else "log2_init_std"
    study, centre = _study(hp), CENTRE[hp]
    first = tuple(centre + octave for octave in FIRST_OCTAVES)
    choice = ChoiceSpec(axis="width", hp=hp, values=first, seeds=tuple(range(FIRST_SEEDS)))
    pooled_with = [
        each
        for place, other in enumerate(others)
        for each in simulate(other, 0.0, 100 * number + place + 1, FIRST_OCTAVES, FIRST_SEEDS)
    ]
    while True:
        octaves, n_seeds = [value - centre for value in choice.values], len(choice.seeds)
        # Noise is drawn for all seeds that there may be, so that runs keep theirs.
        judged = [
            _at(each, each.log2_values, range(n_seeds))
            for each in simulate(surface, shift, 100 * number, octaves, MOST_SEEDS)
        ]
        noise = pooled_noise([*judged, *pooled_with])
        verdict = judge_curves(judged, study.verdict, noise, tail=tail_of_look(choice.looks))
        following = next_choice(study, verdict, choice, judged)
        if following is None or choice.looks == MOST_LOOKS:
            return Ended(verdict, choice)
        choice, _ = following


def _study(hp: HP) -> StudySpec:
    """Return a study of one curve with the profile's grid."""
    grid = tuple(CENTRE[hp] + octave for octave in GRID)
    return StudySpec(
        name="power",
        base=_BASE,
        hps=BaseHPs(lr=2.0 ** CENTRE["log2_lr"], init_std=2.0 ** CENTRE["log2_init_std"]),
        train=TrainSpec(data="tokens", steps=300, batch_tokens=1024),
        axes={"width": AxisSpec(sizes=(64, 256), sweep=(hp,))},
        grids=GridSpec(log2_lr=grid) if hp == "log2_lr" else GridSpec(log2_lr=(-8.0,), log2_init_std=grid),
        seeds=tuple(range(SEEDS)),
    )


def adaptive_characteristics(
    surface: Surface, others: Sequence[Surface], multiple: float, surfaces: int
) -> dict[str, object]:
    """Sweep surfaces with a known cost adaptively; return one row of the table."""
    cost = multiple * surface.tolerance
    shifts = [surface.shift(cost, 1 if number % 2 else -1) for number in range(surfaces)]
    ends = [sweep_adaptively(surface, others, shift, number) for number, shift in enumerate(shifts)]
    seeds = [len(each.choice.seeds) for each in ends]
    return {
        **_row(surface, multiple, shifts, [each.verdict for each in ends]),
        "seeds": f"{np.mean(seeds):.1f}", "most_seeds": max(seeds),
        "runs": f"{np.mean([2 * len(each.choice.values) * len(each.choice.seeds) for each in ends]):.0f}",
        "looks": f"{np.mean([each.choice.looks for each in ends]):.2f}",
    }  # fmt: skip


def _row(surface: Surface, multiple: float, shifts: Sequence[float], verdicts: Sequence[Verdict]) -> dict[str, object]:
    """Return how often verdicts on a surface are right."""
    counts, n = Counter(str(each.conclusion) for each in verdicts), len(verdicts)
    covered, drift_covered = 0, 0
    for shift, verdict in zip(shifts, verdicts, strict=True):
        found, true = verdict.cost, float(surface.loss(np.array(-shift)))
        covered += found.low <= true + 1e-9 and found.high >= true - 1e-9
        drift_covered += verdict.drift.low - 1e-9 <= shift / 2 <= verdict.drift.high + 1e-9
    return {
        "study": surface.study, "hp": surface.hp, "axis": surface.axis, "tolerance": f"{surface.tolerance:.4f}",
        "noise": f"{noise_of(surface):.4f}", "true_cost_over_tolerance": multiple, "surfaces": n,
        **{name: f"{counts[name] / n:.3f}" for name in ("TRANSFERS", "FAILS", "UNDECIDED")},
        "covered": f"{covered / n:.3f}", "drift_covered": f"{drift_covered / n:.3f}",
    }  # fmt: skip


def noise_of(surface: Surface) -> float:
    """Return the noise of a run as studies measure it, nats."""
    octaves = OCTAVES[surface.hp]
    return pooled_noise([each for n in range(20) for each in simulate(surface, 0.0, n, octaves, SEEDS)]).sd


def characteristics(
    surface: Surface, multiple: float, surfaces: int, n_seeds: int = SEEDS, others: Sequence[Surface] = ()
) -> dict[str, object]:
    """Judge surfaces with a known cost and a fixed number of seeds; return one row of the table.

    Args:
        surface: the surface.
        multiple: the cost as a multiple of the tolerance.
        surfaces: how many are judged.
        n_seeds: seeds per value.
        others: surfaces of the other curves of the study, whose noise is pooled; none: curves like this one.
    """
    octaves, cost = OCTAVES[surface.hp], multiple * surface.tolerance
    shifts = [surface.shift(cost, 1 if number % 2 else -1) for number in range(surfaces)]
    verdicts = []
    for number, shift in enumerate(shifts):
        judged = simulate(surface, shift, number, octaves, n_seeds)
        noise = pooled(others or (surface,) * (POOLED_WITH // 2), judged, number, octaves, n_seeds)
        verdicts.append(judge_curves(judged, VerdictSpec(), noise))
    return _row(surface, multiple, shifts, verdicts)


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


def earlier_rows(surfaces: int, n_seeds: int) -> Iterator[dict[str, object]]:
    """Judge the surfaces of an earlier profile, and synthetic ones."""
    for surface in (*recorded_surfaces(), *synthetic_surfaces()):
        for multiple in MULTIPLES:
            yield characteristics(surface, multiple, surfaces, n_seeds)


def present_rows(surfaces: int, n_seeds: int, multiples: Sequence[float] = MULTIPLES) -> Iterator[dict[str, object]]:
    """Judge the surfaces of the present profile with a fixed number of seeds, and adaptively."""
    found = present_surfaces()
    for surface in found:
        others = [each for each in found if each.study == surface.study and each is not surface]
        for multiple in multiples:
            fixed = characteristics(surface, multiple, surfaces, n_seeds, others)
            runs = 2 * len(OCTAVES[surface.hp]) * n_seeds
            yield {
                "design": f"{n_seeds} seeds",
                **fixed,
                "seeds": n_seeds,
                "most_seeds": n_seeds,
                "runs": runs,
                "looks": 1,
            }
            yield {"design": "adaptive", **adaptive_characteristics(surface, others, multiple, surfaces)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--surfaces", type=int, default=400, help="surfaces per row (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="seeds per value of fixed designs (default: %(default)s)"
    )
    parser.add_argument("--profile", choices=("present", "earlier"), default="present", help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="folder for power-present.csv and drift-cost.csv, or for power.csv")
    args = parser.parse_args()
    is_present, rows = args.profile == "present", list[dict[str, object]]()
    for row in (present_rows if is_present else earlier_rows)(args.surfaces, args.seeds):
        rows.append(row)
        print(*row.values(), flush=True)
    for design in dict.fromkeys(str(row.get("design", "")) for row in rows):
        for multiple in MULTIPLES:
            mine = [
                row for row in rows if (row.get("design", ""), row["true_cost_over_tolerance"]) == (design, multiple)
            ]
            means = [f"{name} {np.mean([float(str(row[name])) for row in mine]):.3f}" for name in RATES]
            print(f"{design} true cost {multiple:g} x tolerance: {', '.join(means)}")
    if args.out and is_present:
        write(args.out / "power-present.csv", rows)
        write(args.out / "drift-cost.csv", [drift_cost(surface) for surface in present_surfaces()])
    elif args.out:
        write(args.out / "power.csv", rows)


if __name__ == "__main__":
    main()
