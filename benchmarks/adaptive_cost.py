"""What does a verdict cost? Adaptive sweeps replayed on recorded and synthetic studies, beside the full grid.

    python benchmarks/adaptive_cost.py [--studies 40] [--out docs/results/verdict]

Recorded: whole studies. Cells that were recorded have their results; values between them come from the interpolated
curve with the residuals of the same seed, further seeds from residuals of others. The sweep may spend a third of the
FLOPs of the full grid, and its verdicts are compared with those of the full grid. Synthetic: studies of one axis on the
surfaces of verdict_power.py, where the true cost of zero-shot is known, without a budget; the full grid has seven
values in half octaves at three sizes with four seeds.

Both are replayed with and without early stopping. Only runs of the base have recorded training curves: at larger sizes,
a run is taken to be behind its zero-shot run by the difference of their final losses, plus what the base's training
curve at the same value adds to that at the check. On synthetic surfaces it is the difference of final losses.
"""

import argparse
import itertools
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.interpolate import CubicSpline

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.early_stopping import behind_at, recorded_curves
from benchmarks.recorded import recorded_studies
from benchmarks.verdict_power import MULTIPLES, Surface, draw_noise, recorded_surfaces, synthetic_surfaces, write
from expertp.analysis.curves import curves
from expertp.analysis.transfer import judge
from expertp.analysis.verdict import StudyVerdict
from expertp.search.design import affordable, first_choice, propose, with_choices
from expertp.spec import BaseHPs, ModelSpec, RunSpec, TrainSpec
from expertp.study.cells import expand, swept_on, unique_runs, zero_shot_value
from expertp.study.cost import cost_of_runs
from expertp.study.early_stopping import CHECKS, Check, zero_shot_runs
from expertp.study.spec import HP, AxisSpec, GridSpec, StudySpec
from expertp.study.table import Result, StudyTable

# Most looks at a study, and the budget of recorded studies as a share of the full grid.
MOST_LOOKS, BUDGET = 12, 1 / 3


@dataclass(frozen=True, eq=False)
class Replay:
    """The end of an adaptive sweep.

    Args:
        verdict: its verdicts.
        looks: number of looks.
        share: its FLOPs as a share of those of the full grid.
        stopped: share of its runs that were stopped.
        saved: FLOPs that this saved, as a share of what its runs would have cost.
    """

    verdict: StudyVerdict
    looks: int
    share: float
    stopped: float
    saved: float


# By how much a run is behind at a check beyond the difference of final losses, nats.
Early = Callable[[RunSpec, Check], float]


def replay(
    study: StudySpec, oracle: Callable[[RunSpec], Result], budget: float = math.inf, early: Early | None = None
) -> Replay:
    """Run an adaptive sweep whose results come from an oracle.

    Args:
        study: the study.
        oracle: gives the result of a run that is trained to its end.
        budget: budget as a share of the full grid's FLOPs.
        early: how far runs are behind at checks; None: no run is stopped.
    """
    whole = cost_of_runs(unique_runs(expand(study.replace(chosen=None)))).flops
    study, looks = first_choice(study), 1
    while True:
        results = [oracle(run) for run in unique_runs(expand(study))]
        results = results if early is None else with_stops(study, results, early)
        spent = sum(each.run.flops * each.step / each.run.train.steps for each in results)
        table = StudyTable.join(study, results)
        found, left = judge(table), budget * whole - spent
        chosen = affordable(propose(table, found), left, lambda each: each.flops)
        if not chosen or looks == MOST_LOOKS:
            unstopped = cost_of_runs([each.run for each in results]).flops
            return Replay(found, looks, spent / whole, found.stopped / len(results), 1 - spent / unstopped)
        study, looks = with_choices(study, chosen), looks + 1


def with_stops(study: StudySpec, results: Sequence[Result], early: Early) -> list[Result]:
    """Return the results of a study with those runs stopped that are too far behind at a check."""
    by_run = {each.run: each for each in results}
    stopped = {}
    for run, zero_shot in zero_shot_runs(study, expand(study)).items():
        final = by_run[run].loss - by_run[zero_shot].loss
        found = [check for check in CHECKS if final + early(run, check) > check.margin]
        if found:
            stopped[run] = Result(run, "", "stopped", found[0].step(run.train))
    return [stopped.get(each.run, each) for each in results]


def recorded_early(name: str, table: StudyTable) -> Early:
    """Return what the training curves of a recorded base add at a check to the difference of final losses."""
    added: dict[tuple[HP, Check], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for curve in recorded_curves(name):
        zero_shot = curve.runs.get(zero_shot_value(table.own, curve.hp))
        if curve.arm != table.own.name or zero_shot is None:
            continue
        for check, (value, run) in itertools.product(CHECKS, curve.runs.items()):
            behind = behind_at(check.step(table.study.train), run, zero_shot)
            added[curve.hp, check][value].append(behind - (run.loss - zero_shot.loss))

    def early(run: RunSpec, check: Check) -> float:
        hp, value = swept_value(table, run)
        means = sorted((each, float(np.mean(found))) for each, found in added[hp, check].items())
        return float(np.interp(value, *zip(*means, strict=True)))

    return early


def swept_value(table: StudyTable, run: RunSpec) -> tuple[HP, float]:
    """Return the hyperparameter of a run that differs from zero-shot, and its value, log2."""
    if run.hps.lr == table.study.hps.lr:
        return "log2_init_std", math.log2(run.hps.init_std)
    return "log2_lr", math.log2(run.hps.lr)


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
        hp, value = swept_value(table, run)
        curve = swept[run.model, hp]
        x, losses = np.array(curve.log2_values), np.array(curve.losses)
        rng = np.random.default_rng((run.train.seed, run.model.n_embd, run.model.n_layer, run.model.n_exp))
        is_recorded = run.train.seed in curve.seeds
        place = curve.seeds.index(run.train.seed) if is_recorded else int(rng.integers(len(curve.seeds)))
        sign = 1.0 if is_recorded else float(rng.choice([-1.0, 1.0]))
        off = sign * np.interp(value, x, losses[:, place] - losses.mean(1))
        loss = float(CubicSpline(x, losses.mean(1))(value) + off)
        return Result(run, "", "finished", run.train.steps, val_loss=loss, seconds=1.0)

    return oracle


def recorded_rows() -> list[dict[str, object]]:
    """Compare with the full grid of every recorded study."""
    rows = []
    for name, table in recorded_studies().items():
        full, oracle = judge(table), recorded_oracle(table)
        found = replay(table.study, oracle, BUDGET, recorded_early(name, table))
        whole = replay(table.study, oracle, BUDGET)
        for ours, theirs, unstopped in zip(found.verdict.axes, full.axes, whole.verdict.axes, strict=True):
            rows.append(
                {"study": name, "axis": ours.axis, "hp": ours.hp, "full grid": theirs.conclusion,
                 "adaptive": ours.conclusion, "cost, full grid": f"{theirs.cost:.4f}",
                 "cost, adaptive": f"{ours.cost:.4f}", "seeds": ours.n_seeds,
                 "looks": found.looks, "share of FLOPs": f"{found.share:.3f}",
                 "stopped": f"{found.stopped:.3f}", "saved": f"{found.saved:.3f}",
                 "adaptive, none stopped": unstopped.conclusion, "share, none stopped": f"{whole.share:.3f}"}
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
        return Result(run, "", "finished", run.train.steps, val_loss=value, seconds=1.0)

    return study, oracle


def synthetic_rows(studies: int) -> list[dict[str, object]]:
    """Replay studies with a known cost of zero-shot."""
    rows = []
    for surface in (*recorded_surfaces(), *synthetic_surfaces()):
        for multiple in MULTIPLES:
            counts, shares, looks, stopped, saved, unstopped = Counter[str](), [], [], [], [], []
            for number in range(studies):
                shift = surface.shift(multiple * surface.tolerance, 1 if number % 2 else -1)
                study, oracle = synthetic_study(surface, shift, number)
                found = replay(study, oracle, early=lambda _run, _check: 0.0)
                unstopped.append(replay(study, oracle).share)
                stopped.append(found.stopped)
                saved.append(found.saved)
                counts[str(found.verdict.axes[0].conclusion)] += 1
                shares.append(found.share)
                looks.append(found.looks)
            rows.append(
                {"study": surface.study, "hp": surface.hp, "axis": surface.axis, "true_cost_over_tolerance": multiple,
                 "studies": studies,
                 **{name: f"{counts[name] / studies:.3f}" for name in ("TRANSFERS", "FAILS", "UNDECIDED")},
                 "share of FLOPs": f"{np.mean(shares):.3f}", "median": f"{np.median(shares):.3f}",
                 "looks": f"{np.mean(looks):.2f}", "stopped": f"{np.mean(stopped):.4f}",
                 "saved": f"{np.mean(saved):.4f}", "share, none stopped": f"{np.mean(unstopped):.3f}"}
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
        names = (
            "TRANSFERS",
            "FAILS",
            "UNDECIDED",
            "share of FLOPs",
            "looks",
            "stopped",
            "saved",
            "share, none stopped",
        )
        means = ", ".join(f"{name} {np.mean([float(str(row[name])) for row in mine]):.3f}" for name in names)
        print(f"true cost {multiple:g} x tolerance: {means}")
    if args.out:
        write(args.out / "adaptive.csv", recorded)
        write(args.out / "adaptive-synthetic.csv", synthetic)


if __name__ == "__main__":
    main()
