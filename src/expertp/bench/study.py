"""Speed of a small sweep: one worker per core, one worker with one thread, one worker with a thread per core."""

import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from expertp.bench.timing import interleaved
from expertp.spec import BaseHPs, ModelSpec, TrainSpec
from expertp.study.cells import expand, unique_runs
from expertp.study.executors.local import LocalExecutor
from expertp.study.spec import AxisSpec, GridSpec, StudySpec
from expertp.study.sweep import run_study
from expertp.util.machine import usable_cores

TOKENS = 200_000


@dataclass(frozen=True)
class StudyCase:
    """Speed of a sweep; `vs_...` are runs per minute with all workers over those with one worker."""

    name: str
    runs: int
    workers: int
    ms: dict[str, float]
    runs_per_minute: dict[str, float]
    vs_one_worker: float
    vs_one_with_all_threads: float


def compare_workers(rounds: int = 3, steps: int = 100) -> StudyCase:
    """Time sweeps of one small study into new directories, including the start of processes."""
    workers = usable_cores()
    executors = {
        "workers": LocalExecutor(workers, threads=1),
        "one": LocalExecutor(1, threads=1),
        "one_with_all_threads": LocalExecutor(1, threads=workers),
    }
    with tempfile.TemporaryDirectory() as folder:
        root, numbers = Path(folder), count()
        study = _study(_random_tokens(root / "tokens"), steps)

        def sweep(executor: LocalExecutor) -> None:
            run_study(study, root / str(next(numbers)), executor)

        contestants = {name: (lambda executor=executor: sweep(executor)) for name, executor in executors.items()}
        ms = interleaved(contestants, rounds, warm_up=0)
    runs = len(unique_runs(expand(study)))
    speed = {name: 6e4 * runs / value for name, value in ms.items()}
    return StudyCase(
        name=f"{runs} runs of {steps} steps",
        runs=runs,
        workers=workers,
        ms={name: round(value, 1) for name, value in ms.items()},
        runs_per_minute={name: round(value, 1) for name, value in speed.items()},
        vs_one_worker=round(speed["workers"] / speed["one"], 3),
        vs_one_with_all_threads=round(speed["workers"] / speed["one_with_all_threads"], 3),
    )


def _study(data: Path, steps: int) -> StudySpec:
    """Return a study with two widths, two learning rates and two seeds."""
    base = ModelSpec(n_embd=64, n_layer=2, d_head=32, n_exp=4, n_act=1, vocab_size=512, context=128)
    return StudySpec(
        name="bench",
        base=base,
        hps=BaseHPs(lr=1 / 64, init_std=1 / 16),
        train=TrainSpec(data=str(data), steps=steps, batch_tokens=1024),
        axes={"width": AxisSpec(sizes=(64, 128), sweep=("log2_lr",))},
        grids=GridSpec(log2_lr=(-7, -6)),
        seeds=(0, 1),
        verdict=None,
    )


def _random_tokens(path: Path) -> Path:
    """Write random tokens; speed does not depend on their content."""
    path.mkdir()
    tokens = np.random.default_rng(0).integers(0, 512, TOKENS).astype("<u2")
    tokens.tofile(path / "train.bin")
    tokens[: TOKENS // 10].tofile(path / "val.bin")
    return path
