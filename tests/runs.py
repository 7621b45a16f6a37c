"""Small data and small runs for tests of training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from expertp.config import build
from expertp.spec import RunSpec
from expertp.study.load import build_study
from expertp.study.spec import StudySpec

VOCAB = 64


def write_tokens(path: Path, train: int = 40_000, val: int = 6_000) -> Path:
    """Write a nanoGPT directory of tokens; a token determines the next one with probability 0.8."""
    path.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    rule = random.integers(0, VOCAB, VOCAB)
    ids = random.integers(0, VOCAB, train + val)
    surprise = random.random(train + val) < 0.2
    for place in range(1, train + val):
        if not surprise[place]:
            ids[place] = rule[ids[place - 1]]
    ids[:train].astype("<u2").tofile(path / "train.bin")
    ids[train:].astype("<u2").tofile(path / "val.bin")
    return path


def run_tree(data: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """Return the tree of a tiny run, with changes by section."""
    model = {"n_embd": 32, "d_head": 16, "n_layer": 2, "n_exp": 4, "n_act": 2, "vocab_size": VOCAB, "context": 16}
    hps = {"lr": 0.01, "init_std": 0.05, "bias_lr": 0.05}
    train = {"data": str(data), "steps": 12, "batch_tokens": 128, "eval_every": 4, "eval_tokens": 512}
    defaults = {"model": model, "hps": hps, "train": train}
    tree = {name: {**values, **sections.get(name, {})} for name, values in defaults.items()}
    return {"base": sections.get("base", tree["model"]), **tree}


def tiny_run(data: Path, **sections: dict[str, Any]) -> RunSpec:
    """Return a tiny run, with changes by section: tiny_run(data, train={"steps": 3})."""
    return build(RunSpec, run_tree(data, **sections), "run")


def study_tree(
    data: Path, grid: Sequence[float] = (-8, -6), seeds: Sequence[int] = (0, 1), **train: Any
) -> dict[str, Any]:
    """Return the tree of a tiny study: two widths, a few learning rates."""
    tree = run_tree(data, train={"steps": 3, "eval_every": 3, **train})
    return {
        "name": "test",
        **{section: tree[section] for section in ("base", "hps", "train")},
        "axes": {"width": {"sizes": [32, 64], "sweep": ["log2_lr"]}},
        "grids": {"log2_lr": list(grid)},
        "seeds": list(seeds),
    }


def tiny_study(data: Path, grid: Sequence[float] = (-8, -6), seeds: Sequence[int] = (0, 1), **train: Any) -> StudySpec:
    """Return a tiny study, with changes to its section `train`."""
    return build_study(study_tree(data, grid, seeds, **train), "study:")
