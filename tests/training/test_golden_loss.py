"""Recorded loss curves of tiny runs: refactorings must not change them."""

import json
from pathlib import Path

import numpy as np
import pytest
from runs import tiny_run

from expertp.training.store import read_run
from expertp.training.train import train

GOLDEN = Path(__file__).parents[1] / "golden" / "loss_curve.json"
CASES = {
    "moe": {"hps": {"constants": "paper", "lr": 0.02}},
    "planned": {
        "base": {"n_embd": 16, "d_head": 16, "n_layer": 1, "n_exp": 2, "n_act": 1, "vocab_size": 64, "context": 16},
        "model": {"gate": "softmax", "alpha_ffn": 2.0},
        "hps": {"weight_decay": 0.1, "adam_eps": 1e-8},
        "train": {"schedule": "cosine", "warmup_steps": 5, "micro_batch": 2},
    },
}
CASES["planned"]["base"]["gate"] = "softmax"


def write_formula(path: Path) -> Path:
    """Write tokens from a formula, so that they do not depend on a library."""
    path.mkdir()
    place = np.arange(8000, dtype=np.int64)
    ids = (place * place // 7 + 13 * (place % 11)) % 61
    ids[:6000].astype("<u2").tofile(path / "train.bin")
    ids[6000:].astype("<u2").tofile(path / "val.bin")
    return path


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
def test_the_loss_curve_has_not_moved(case, tmp_path, request):
    sections = {name: dict(values) for name, values in CASES[case].items()}
    sections["train"] = {"steps": 20, "eval_every": 20, **sections.get("train", {})}
    train(tiny_run(write_formula(tmp_path / "data"), **sections), tmp_path / "run")
    records = read_run(tmp_path / "run").metrics()
    curve = {"loss": [record.loss for record in records], "val_loss": records[-1].val_loss}
    recorded = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if request.config.getoption("--update-golden"):
        recorded[case] = curve
        GOLDEN.write_text(json.dumps(recorded, indent=1) + "\n")
    assert curve["loss"] == pytest.approx(recorded[case]["loss"], rel=1e-5)
    assert curve["val_loss"] == pytest.approx(recorded[case]["val_loss"], rel=1e-5)
    assert curve["loss"][-1] < curve["loss"][0] - 0.05
