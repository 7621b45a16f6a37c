"""What does a verdict cost? Adaptive sweeps replayed on recorded and synthetic studies, beside the full grid.

    python benchmarks/adaptive_cost.py [--studies 40] [--out docs/results/verdict]

Recorded: whole studies. Cells that were recorded have their results; values between them come from the interpolated
curve with the residuals of the same seed, further seeds from residuals of others. The sweep may spend a third of the
FLOPs of the full grid, and its verdicts are compared with those of the full grid. Synthetic: studies of one axis on the
surfaces of verdict_power.py, where the true cost of zero-shot is known, without a budget; the full grid has seven
values in half octaves at three sizes with four seeds.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.interpolate import CubicSpline

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.recorded import recorded_studies
from benchmarks.verdict_power import MULTIPLES, Surface, draw_noise, recorded_surfaces, synthetic_surfaces, write
from expertp.analysis.curves import curves
from expertp.analysis.transfer import judge
from expertp.analysis.verdict import StudyVerdict
from expertp.search.design import affordable, first_choice, propose, with_choices
from expertp.spec import BaseHPs, ModelSpec, RunSpec, TrainSpec
from expertp.study.cells import expand, swept_on, unique_runs
from expertp.study.cost import cost_of_runs
from expertp.study.spec import HP, AxisSpec, GridSpec, StudySpec
from expertp.study.table import Result, StudyTable

# Most looks at a study, and the budget of recorded studies as a share of the full grid.
MOST_LOOKS, BUDGET = 12, 1 / 3


@dataclass(frozen=True, eq=False)
class Replay:
    """The end of an adaptive sweep: verdicts, looks, and FLOPs as a share of those of the full grid."""

    verdict: StudyVerdict
    looks: int
    share: float


def replay(study: StudySpec, oracle: Callable[[RunSpec], Result], budget: float = math.inf) -> Replay:
    """Run an adaptive sweep whose results come from an oracle, with a budget as a share of the full grid's FLOPs."""
    whole = cost_of_runs(unique_runs(expand(study.replace(chosen=None)))).flops
    study, looks = first_choice(study), 1
    while True:
        runs = unique_runs(expand(study))
        table, spent = StudyTable.join(study, [oracle(run) for run in runs]), cost_of_runs(runs).flops
        found, left = judge(table), budget * whole - spent
        chosen = affordable(propose(table, found), left, lambda each: each.flops)
        if not chosen or looks == MOST_LOOKS:
            return Replay(found, looks, spent / whole)
        study, looks = with_choices(study, chosen), looks + 1


def recorded_oracle(table: StudyTable) -> Callable[[RunSpec], Result]:
    """Return the recorded result of a run, or one that is interpolated between recorded ones."""
    known = {result.run: result for result in table.results}
    swept = {
        (each.size.model, hp): each
        for axis in table.axes
        for hp in swept_on(table.study, axis)
        for each in curves(table, axis, table.own, hp)
    }

    def oracle(run: RunSpec) -> Result:
        if run in known:
            return known[run]
        hp: HP = "log2_init_std" if run.hps.lr == table.study.hps.lr else "log2_lr"
        curve, value = swept[run.model, hp], math.log2(run.hps.init_std if hp == "log2_init_std" else run.hps.lr)
        x, losses = np.array(curve.log2_values), np.array(curve.losses)
        rng = np.random.default_rng((run.train.seed, run.model.n_embd, run.model.n_layer, run.model.n_exp))
        is_recorded = run.train.seed in curve.seeds
        place = curve.seeds.index(run.train.seed) if is_recorded else int(rng.integers(len(curve.seeds)))
        sign = 1.0 if is_recorded else float(rng.choice([-1.0, 1.0]))
        off = sign * np.interp(value, x, losses[:, place] - losses.mean(1))
        return Result(run, "", "finished", val_loss=float(CubicSpline(x, losses.mean(1))(value) + off), seconds=1.0)

    return oracle


def recorded_rows() -> list[dict[str, object]]:
    """Compare with the full grid of every recorded study."""
    rows = []
    for name, table in recorded_studies().items():
        full, found = judge(table), replay(table.study, recorded_oracle(table), BUDGET)
        for ours, theirs in zip(found.verdict.axes, full.axes, strict=True):
            rows.append(
                {"study": name, "axis": ours.axis, "hp": ours.hp, "full grid": theirs.conclusion,
                 "adaptive": ours.conclusion, "cost, full grid": f"{theirs.cost:.4f}",
                 "cost, adaptive": f"{ours.cost:.4f}", "seeds": ours.n_seeds,
                 "looks": found.looks, "share of FLOPs": f"{found.share:.3f}"}
            )  # fmt: skip
    return rows


def synthetic_study(surface: Surface, shift: float, seed: int) -> tuple[StudySpec, Callable[[RunSpec], Result]]:
    """Return a study of one axis, and its oracle."""
    centre = (-8.0, -4.0)
    study = StudySpec(
        name="synthetic",
        base=ModelSpec(n_embd=64, n_layer=2, n_exp=4, d_head=32, vocab_size=512, context=128),
        hps=BaseHPs(lr=2.0 ** centre[0], init_std=2.0 ** centre[1]),
        train=TrainSpec(data="tokens", steps=100, batch_tokens=1024),
        axes={"width": AxisSpec(sizes=(64, 128, 256), sweep=("log2_lr",))},
        grids=GridSpec(log2_lr=tuple(centre[0] + octave for octave in (-1.5, -1, -0.5, 0, 0.5, 1, 1.5))),
        seeds=(0, 1, 2, 3),
    )

    def oracle(run: RunSpec) -> Result:
        doublings, octave = math.log2(run.model.n_embd / 64), math.log2(run.hps.lr) - centre[0]
        rng = np.random.default_rng((seed, run.model.n_embd, run.train.seed))
        noise = float(draw_noise(surface, np.array([octave]), 1, rng)[0, 0])
        loss = surface.loss if doublings else surface.base
        level = 3.0 - surface.gain * doublings / 2
        value = level + float(loss(np.array(octave - shift * doublings / 2))) + noise
        return Result(run, "", "finished", val_loss=value, seconds=1.0)

    return study, oracle


def synthetic_rows(studies: int) -> list[dict[str, object]]:
    """Replay studies with a known cost of zero-shot."""
    rows = []
    for surface in (*recorded_surfaces(), *synthetic_surfaces()):
        for multiple in MULTIPLES:
            counts, shares, looks = Counter[str](), [], []
            for number in range(studies):
                shift = surface.shift(multiple * surface.tolerance, 1 if number % 2 else -1)
                found = replay(*synthetic_study(surface, shift, number))
                counts[str(found.verdict.axes[0].conclusion)] += 1
                shares.append(found.share)
                looks.append(found.looks)
            rows.append(
                {"study": surface.study, "hp": surface.hp, "axis": surface.axis, "true_cost_over_tolerance": multiple,
                 **{name: f"{counts[name] / studies:.3f}" for name in ("TRANSFERS", "FAILS", "UNDECIDED")},
                 "share of FLOPs": f"{np.mean(shares):.3f}", "median": f"{np.median(shares):.3f}",
                 "looks": f"{np.mean(looks):.2f}"}
            )  # fmt: skip
            print(*rows[-1].values(), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=40, help="synthetic studies per row (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder for adaptive.csv and adaptive-synthetic.csv")
    args = parser.parse_args()
    recorded = recorded_rows()
    for row in recorded:
        print(*row.values(), flush=True)
    synthetic = synthetic_rows(args.studies)
    for multiple in MULTIPLES:
        mine = [row for row in synthetic if row["true_cost_over_tolerance"] == multiple]
        names = ("TRANSFERS", "FAILS", "UNDECIDED", "share of FLOPs", "looks")
        means = ", ".join(f"{name} {np.mean([float(str(row[name])) for row in mine]):.3f}" for name in names)
        print(f"true cost {multiple:g} x tolerance: {means}")
    if args.out:
        write(args.out / "adaptive.csv", recorded)
        write(args.out / "adaptive-synthetic.csv", synthetic)


if __name__ == "__main__":
    main()
