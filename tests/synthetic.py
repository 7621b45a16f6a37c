"""A study directory without training: runs are written by the store, with known losses."""

import math
from pathlib import Path
from unittest.mock import patch

import numpy as np
from runs import VOCAB, write_tokens

from expertp.coordcheck.slopes import EXPECTED, TOLERANCES, CoordinateCheck, Sizes, expected_slopes, judge
from expertp.data import open_dataset
from expertp.spec import RunSpec
from expertp.study.cells import scale_of
from expertp.study.cells import sizes as sizes_of
from expertp.study.load import build_study
from expertp.study.spec import StudySpec
from expertp.study.store import TRIES, StudyDirectory, open_study
from expertp.training.records import RunResult, StepMetrics
from expertp.training.resolution import resolved
from expertp.training.store import open_run

ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0", "device": "test machine", "threads": 1}
STEPS = 40
NOISE = 0.004


def study_spec(data: Path, **changes) -> StudySpec:
    """Return a small study with several axes, both grids and two arms."""
    tree = {
        "name": "synthetic",
        "base": {
            "n_embd": 32,
            "d_head": 16,
            "n_layer": 2,
            "n_exp": 4,
            "n_act": 1,
            "vocab_size": VOCAB,
            "context": 16,
        },
        "hps": {"lr": 2.0**-7, "init_std": 2.0**-4},
        "train": {"data": str(data), "steps": STEPS, "batch_tokens": 128, "eval_every": STEPS, "eval_tokens": 512},
        "axes": {
            "width": [32, 64, 128],
            "experts": {"sizes": [4, 8, 16], "sweep": ["log2_lr"]},
            "alpha": {"sizes": [1, 2, 4], "sweep": ["log2_lr"]},
        },
        "grids": {"log2_lr": [-10, -9, -8, -7, -6, -5, -4], "log2_init_std": [-6, -5, -4, -3, -2]},
        "seeds": [0, 1, 2],
        "arms": {
            "sp": {"axes": ["width"], "retune": {"width": [32, 128]}, "hps": {"init_std": 2.0**-3}},
            "fan_in_down": {"axes": ["alpha"]},
        },
        **changes,
    }
    return build_study(tree, "study:")


def final_loss(run: RunSpec) -> float:
    """Return a loss with its optimum at lr 2^-7 and init 2^-4; under sp it moves by an octave per doubling of scale."""
    scale = math.log2(scale_of(run.model, run.base))
    lr, init = math.log2(run.hps.lr), math.log2(run.hps.init_std)
    moved = -scale if run.hps.rules == "sp" else 0.0
    best_init = -3.0 + 0.5 * moved if run.hps.rules == "sp" else -4.0
    noise = NOISE * np.random.default_rng([run.train.seed, round(1000 * (lr + 50)), round(1000 * (init + 50))]).normal()
    return 3.0 - 0.08 * scale + 0.06 * (lr + 7 - moved) ** 2 + 0.03 * (init - best_init) ** 2 + float(noise)


def diverges(run: RunSpec) -> bool:
    """Return whether a run diverges: the widest model at the highest lr, two of three seeds."""
    return (
        run.hps.rules == "expertp"
        and run.model.n_embd == 128
        and run.hps.lr == 2.0**-4
        and run.hps.init_std == 2.0**-4
        and run.train.seed < 2
    )


def write_study(
    path: Path, study: StudySpec | None = None, skip=lambda _: False, loss=final_loss, diverges=diverges
) -> StudyDirectory:
    """Write a study's directory without the runs that `skip` selects; one run has failed."""
    data = write_tokens(path.parent / f"{path.name}-tokens")
    directory = open_study(path, study or study_spec(data))
    failed = False
    with patch("os.fsync"):  # hundreds of small files need not survive a power failure
        for identity, run in directory.runs.items():
            if skip(run):
                continue
            if not failed and run.model.n_exp == 16 and run.hps.lr == 2.0**-10:
                for _ in range(TRIES):
                    directory.note_failure(identity, "RuntimeError: the disk is on fire")
                failed = True
                continue
            _write_run(directory, identity, run, loss(run), diverges(run))
    directory.write_results()
    return directory


def _write_run(directory: StudyDirectory, identity: str, run: RunSpec, loss: float, diverged: bool) -> None:
    steps = 13 if diverged else run.train.steps
    run, dataset = resolved(run, directory.device), open_dataset(run.train.data)
    with open_run(directory.place(identity), run, dataset, ENVIRONMENT) as place:
        place.append_metrics(_record(run, step, steps, loss) for step in range(1, steps + 1))
        place.write_summary(
            RunResult(
                status="diverged" if diverged else "finished",
                step=steps,
                steps=run.train.steps,
                tokens=steps * run.train.batch_tokens,
                train_loss=None if diverged else loss,
                val_loss=None if diverged else loss,
                max_load_deviation=0.02,
                dead_experts=0,
                seconds=1.0,
            )
        )


def _record(run: RunSpec, step: int, steps: int, loss: float) -> StepMetrics:
    done = step / steps
    return StepMetrics(
        step=step,
        loss=loss + 1.2 * (1 - done) ** 2,
        val_loss=loss if step == steps else None,
        lr_factor=1.0,
        tokens=step * run.train.batch_tokens,
        max_load_deviation=(0.3 * (1 - done) + 0.02,) * run.model.n_layer,
        dead_experts=(1 if step < 5 else 0,) * run.model.n_layer,
        bias_range=(0.1,) * run.model.n_layer,
        seconds=0.01 * step,
        tokens_per_second=1000.0,
    )


DENSE_MODULES = ("ffn_up", "ffn_down", "ffn_output")


def synthetic_check(wrong: tuple[str, str] = ("attn_v", "size")) -> tuple[CoordinateCheck, Sizes]:
    """Return a coordinate check along two axes whose sizes follow the expected slopes, but for one module and check."""
    study = study_spec(Path("tokens"), axes={"width": [32, 64, 128], "alpha": [1, 2, 4]}, arms={})
    sizes, slopes = {}, []
    for axis in study.axes:
        on_axis = sizes_of(study, axis)
        for module, of_module in EXPECTED.items():
            for check in TOLERANCES:
                if module in DENSE_MODULES or (expected := getattr(of_module, check)) is None:
                    continue
                low, high = expected_slopes(expected, study.base, on_axis, study.hps)
                slope = 0.9 if (module, check) == wrong else (low + high) / 2 + 0.02 * len(module) - 0.15
                by_seed = {seed: {size.scale: (1 + seed) * size.scale**slope for size in on_axis} for seed in (0, 1)}
                sizes[axis, module, check] = by_seed
                slopes.append(judge(axis, module, check, by_seed, {size.scale for size in on_axis}, (low, high)))
    return CoordinateCheck("expertp", tuple(slopes), ()), sizes
