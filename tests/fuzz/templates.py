"""Valid inputs of every kind, made once: text, token shards, files of settings, runs and studies."""

import gzip
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet

from expertp.cli.main import main
from expertp.study.load import build_study
from expertp.study.store import open_study, read_study
from expertp.study.sweep import InProcess, sweep
from expertp.util.leases import Holder
from expertp.util.machine import host, process_space

TEXT = "To tune a small model is to train a large one.\n"
MODEL = {"n_embd": 16, "d_head": 8, "n_layer": 1, "n_exp": 4, "n_act": 1, "vocab_size": 320, "context": 8}
HPS = {"lr": 0.01, "init_std": 0.05, "bias_lr": 0.05}
TRAIN = {"data": "tokens", "steps": 6, "batch_tokens": 32, "eval_every": 3, "eval_tokens": 64, "checkpoint_steps": 2}
STUDY = {
    "name": "fuzz",
    "base": MODEL,
    "hps": HPS,
    "train": {**TRAIN, "steps": 2, "eval_every": 1},
    "axes": {"width": {"sizes": [16, 32], "sweep": ["log2_lr"]}},
    "grids": {"log2_lr": [-8, -6]},
    "seeds": [0, 1],
    "arms": {"sp": {"axes": ["width"], "hps": {"lr": 0.004}}},
}
THEORY = {
    **{"name": "fuzz", "data": "gaussian", "P": 3, "D": 4, "T": 3, "eta": 0.1, "L": 1, "gate": "soft", "n_hid": 8},
    "solver": {"nodes": 4, "neurons": 8, "replicates": 1},
    "networks": {"sizes": [{"N": 8, "E": 4, "n_hid": 4}], "seeds": 1},
}
# Name of a file of settings -> its tree.
SETTINGS: dict[str, dict[str, Any]] = {
    "base.yaml": {"model": MODEL, "hps": HPS},
    "target.yaml": {"model": {**MODEL, "n_embd": 32}},
    "run.yaml": {"model": MODEL, "hps": HPS, "train": TRAIN},
    "study.yaml": STUDY,
    "theory.yaml": THEORY,
}
# Configurations of transformers: a base and a model of twice the width.
CONFIGURATION = {
    "model_type": "olmoe",
    **{"vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 40},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64},
    **{"num_experts": 8, "num_experts_per_tok": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
LARGE = {"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 80}
CONFIGURATIONS: dict[str, dict[str, Any]] = {"config.json": CONFIGURATION, "large.json": {**CONFIGURATION, **LARGE}}


@dataclass(frozen=True)
class Templates:
    """A directory with one valid input of each kind."""

    path: Path

    def copy(self, root: Path, *names: str) -> None:
        """Copy inputs to a directory."""
        for name in names:
            source = self.path / name
            shutil.copytree(source, root / name) if source.is_dir() else shutil.copy(source, root / name)


def make_templates(path: Path) -> Templates:
    """Write all inputs; a few seconds of training."""
    documents = [TEXT * (1 + n % 3) for n in range(40)]
    (path / "text.txt").write_text(TEXT * 100)
    lines = "".join(json.dumps({"text": text, "n": n}) + "\n" for n, text in enumerate(documents))
    (path / "rows.jsonl").write_text(lines)
    (path / "rows.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    parquet.write_table(arrow.table({"text": documents, "n": list(range(40))}), path / "rows.parquet")
    (path / "folder" / "inner").mkdir(parents=True)
    for n, text in enumerate(documents[:6]):
        (path / "folder" / ("inner" if n % 2 else ".") / f"{n}.txt").write_text(text)
    ids = np.random.default_rng(0).integers(0, 300, 2000).astype("<u2")
    (path / "nano").mkdir()
    ids[:1600].tofile(path / "nano" / "train.bin")
    ids[1600:].tofile(path / "nano" / "val.bin")
    (path / "llmc").mkdir()
    for split, part in (("train", ids[:1600]), ("val", ids[1600:])):
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, len(part)
        (path / "llmc" / f"x_{split}_000.bin").write_bytes(header.tobytes() + part.tobytes())
    (path / "prompts.txt").write_text("To tune\n\nTo train a large one\r\n")
    (path / "prompts.jsonl").write_text('"To tune"\n{"prompt": "To\\ntrain"}\n')
    for name, tree in (SETTINGS | CONFIGURATIONS).items():
        (path / name).write_text(json.dumps(tree))
    options = ("--val-fraction", "0.2", "--shard-tokens", "2000")
    _run("prepare", path / "rows.jsonl", "--out", path / "tokens", "--tokenizer", "bytes", *options)
    _run("prepare", path / "rows.jsonl", "--out", path / "bpe", "--tokenizer", "bpe", "--vocab-size", "300", *options)
    if find_spec("transformers"):  # its import takes as long as a case may
        _run("plan", "--hf", *(path / name for name in CONFIGURATIONS), "hps.lr=0.01")
    _run("train", path / "run.yaml", "--out", path / "done")
    _make_stopped_run(path)
    study = build_study({**STUDY, "train": {**STUDY["train"], "data": str(path / "tokens")}}, "study:")
    sweep(open_study(path / "study", study), InProcess())
    shutil.copytree(path / "study", path / "half")
    half = read_study(path / "half")
    first = next(iter(half.runs))
    shutil.rmtree(half.place(first))
    # What a worker leaves that was killed: no process has this number.
    (half.leases.folder / first).mkdir(parents=True)
    dead = Holder(host(), 99_999_999, process_space())
    (half.leases.folder / first / "1.json").write_text(json.dumps(asdict(dead)))
    (path / "half" / "workers" / "0.log").write_text("Killed\n")
    (path / "study" / "failures" / "0123456789abcdef.json").write_text('{"error": "no space", "tries": 2}')
    _run("coordcheck", path / "study.yaml", "--out", path / "study" / "coordcheck", "--steps", "3")
    return Templates(path)


def _make_stopped_run(path: Path) -> None:
    """Make a run that was stopped after its fourth step, with two checkpoints."""
    from expertp.config import load_run
    from expertp.training.train import train

    looks = iter(range(100))
    train(load_run(path / "run.yaml"), path / "run", should_stop=lambda: next(looks) >= 3)


def _run(*argv: object) -> None:
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main([str(each) for each in argv])
    assert code in (0, 1), (argv, out.getvalue())
