"""`expertp train`, `generate` and `doctor` as a user meets them; above all, what bad input looks like."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import run_tree, write_tokens

from expertp.cli.train import describe_step
from expertp.config import load_run
from expertp.data import PrepareOptions, prepare
from expertp.training.records import StepMetrics
from expertp.util.text import duration

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(run_tree(write_tokens(tmp_path / "data"))))
    return path


def prepared(tmp_path: Path, **options: Any) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text("to be or not to be " * 200)
    prepare(str(folder), tmp_path / "prepared", PrepareOptions(val_fraction=0.25, **options))
    return tmp_path / "prepared"


def test_training_shows_progress_and_the_result(run_file: Path, tmp_path: Path, say: Say) -> None:
    code, out, err = say("train", run_file, "--out", tmp_path / "run", "train.steps=8")
    assert code == 0
    assert "E4A2" in err
    assert "step 8" in err
    assert "validation loss" in err
    assert out.startswith("finished: 8 steps in ")


def test_json_is_one_object_and_a_second_call_repeats_it(run_file: Path, tmp_path: Path, say: Say) -> None:
    first = json.loads(say("train", run_file, "--out", tmp_path / "run", "--json")[1])
    assert first["status"] == "finished"
    assert json.loads(say("train", run_file, "--out", tmp_path / "run", "--json")[1]) == first
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == first
    assert say("train", run_file, "--out", tmp_path / "run")[1].startswith("already finished: 12 steps")


def test_a_diverged_run_exits_with_1_and_says_where(run_file: Path, tmp_path: Path, say: Say) -> None:
    code, out, _ = say("train", run_file, "--out", tmp_path / "run", "hps.lr=10000")
    assert code == 1
    assert out.startswith("diverged at step ")


def test_tensorboard_has_the_losses(run_file: Path, tmp_path: Path, say: Say) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert say("train", run_file, "--out", tmp_path / "run", "--track", "tensorboard")[0] == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert len(events.Scalars("loss/train")) == 12
    assert len(events.Scalars("loss/validation")) == 3


def break_shard(data: Path) -> None:
    shard = next(data.glob("train_*.bin"))
    shard.write_bytes(shard.read_bytes()[:-2] + b"\x07\x00")


def test_a_corrupt_shard_is_refused(tmp_path: Path, run_file: Path, say: Say) -> None:
    data = prepared(tmp_path, tokenizer="bytes")
    break_shard(data)
    code, out, err = say(
        "train", run_file, "--out", tmp_path / "run", f"train.data={data}", "model.vocab_size=320", "model.context=16"
    )
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "train_00000.bin" in err
    assert "prepare" in err
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path: Path, run_file: Path, say: Say) -> None:
    data = prepared(tmp_path, tokenizer="bytes")
    code, _, err = say("train", run_file, "--out", tmp_path / "run", f"train.data={data}")
    assert code == 2
    assert "vocab_size 64 is too small" in err
    assert "vocab_size=320" in err


BAD = {
    "unknown key": (["train.step=3"], "train.step=3': step: unknown key; did you mean 'steps'?"),
    "unknown section": (["trian.steps=3"], "'trian.steps=3' is not an override"),
    "n_act > n_exp": (["model.n_act=9"], "n_act=9 is more than n_exp=4"),
    "n_embd and d_head": (["model.n_embd=40"], "n_embd=40 is not a multiple of d_head=16; set n_embd=32"),
    "alpha": (["model.alpha_ffn=0.3"], "alpha_ffn*n_embd=9.6 is not an integer"),
    "batch": (["train.batch_tokens=100"], "train.batch_tokens=100 is not a multiple of model.context=16; set 96"),
    "micro-batch": (["train.micro_batch=3"], "train.micro_batch=3 does not divide the batch of 8 sequences"),
    "kappa": (["base.n_act=1"], "kappa=n_act/n_exp=1/2 in the target but 1/4 in the base"),
    "missing data": (["train.data=nowhere"], "/nowhere' does not exist; make one: expertp prepare"),
    "vocabulary": (["model.vocab_size=32"], "vocab_size 32 is too small"),
    "schedule": (["train.schedule=wsd"], "give both or neither"),
    "choice": (["train.schedule=cosin"], "train.schedule: input should be 'constant', 'cosine' or 'wsd', not 'cosin'"),
    "cuda": (["train.device=cuda"], "no CUDA device; set train.device=cpu"),
    "backend": (["train.expert_backend=grouped", "train.dtype=float64"], "set train.expert_backend=fused"),
    "tau": (["hps.decay=tau", "hps.weight_decay=0.1"], "hps.tuned_steps is missing"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case: str, run_file: Path, tmp_path: Path, say: Say) -> None:
    overrides, message = BAD[case]
    code, out, err = say("train", run_file, "--out", tmp_path / "run", *overrides)
    assert (code, out) == (2, "")
    assert err.startswith("expertp: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "run").exists(), "bad input must leave nothing behind"


def test_an_out_directory_of_another_run_is_refused(run_file: Path, tmp_path: Path, say: Say) -> None:
    assert say("train", run_file, "--out", tmp_path / "run")[0] == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    code, _, err = say("train", run_file, "--out", tmp_path / "run", "hps.lr=0.02")
    assert code == 2
    assert "holds another run (hps.lr=0.01 there, 0.02 here); choose another --out" in err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.filterwarnings("default")  # the command line prints warnings; here others are errors
def test_a_damaged_checkpoint_is_a_one_line_warning(run_file: Path, tmp_path: Path, say: Say) -> None:
    arguments = ("train", run_file, "--out", tmp_path / "run", "train.checkpoint_steps=4")
    expected = json.loads(say(*arguments, "--json")[1])
    (tmp_path / "run" / "summary.json").unlink()
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    (newest / "weights.safetensors").write_bytes(b"")
    code, out, err = say(*arguments, "--json")
    assert code == 0
    (warning,) = [line for line in err.splitlines() if "warning" in line]
    assert warning.startswith("expertp: warning: ")
    assert f"{newest.name}: damaged checkpoint (weights.safetensors does not have the hash" in warning
    assert "using the one before; kept as damaged-step-00000012-1 and metrics.damaged-1.jsonl" in warning
    assert json.loads(out)["train_loss"] == expected["train_loss"]


def test_the_shipped_run_file_trains(tmp_path: Path, say: Say) -> None:
    data = write_tokens(tmp_path / "data")
    shrink = ("train.steps=2", "train.warmup_steps=1", "train.eval_tokens=256", "train.batch_tokens=256")
    code, out, _ = say("train", "configs/run.yaml", "--out", tmp_path / "run", f"train.data={data}", *shrink)
    assert code == 0, out


def test_doctor_says_what_there_is(say: Say) -> None:
    code, out, _ = say("doctor", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["gpt2 vocabulary"] == "found"
    assert facts["cores"] >= 1
    assert "torch" in say("doctor")[1]


def test_generate_refuses_nonsense(tmp_path: Path, say: Say) -> None:
    for arguments in (
        ["--tokens", "-1"],
        ["--tokens", "many"],
        ["--temperature", "nan"],
        ["--temperature", "inf"],
        ["--seed", "99999999999999999999"],
        ["--prompt", "\udcff"],
    ):
        code, out, err = say("generate", tmp_path, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"expertp: {arguments[0]}") or "argument --tokens" in err


@pytest.mark.heavy
def test_the_base_is_named_and_follows_the_model(run_file: Path, tmp_path: Path, say: Say) -> None:
    tree = yaml.safe_load(run_file.read_text())
    del tree["base"]
    run_file.write_text(yaml.safe_dump(tree))
    assert "its own base" in say("train", run_file, "--out", tmp_path / "own", "model.n_embd=64")[2]
    for order in (["base.n_embd=16", "model.n_layer=4"], ["model.n_layer=4", "base.n_embd=16"]):
        run = load_run(run_file, order)
        assert (run.base.n_embd, run.base.n_layer, run.model.n_layer) == (16, 4, 4)
    code, _, err = say("train", run_file, "--out", tmp_path / "planned", "base.n_embd=16")
    assert code == 0
    assert "rules expertp, hps from a base with m_N 2, m_L 1, m_E 1, m_a 1" in err


def test_a_step_is_described_by_its_numbers(run_file: Path) -> None:
    run = load_run(run_file)
    step = StepMetrics(
        step=4, loss=2.5, lr_factor=0.5, max_load_deviation=(0.1, 0.25), tokens_per_second=64.0, product_share=0.123
    )
    numbers = describe_step(run, step, 2.75)
    assert {name: numbers[name] for name in ("loss", "smoothed", "imbalance", "tok/s", "of products")} == {
        "loss": "2.500", "smoothed": "2.750", "imbalance": "0.250", "tok/s": "64", "of products": "12%",
    }  # fmt: skip
    assert float(numbers["lr"]) == pytest.approx(run.hps.lr / 2, rel=1e-2)
    assert numbers["left"] == duration((run.train.steps - 4) * run.train.batch_tokens / 64)
    assert numbers["step"] == f"4/{run.train.steps}"
