import json
import math
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
import yaml
from runs import run_tree, tiny_run, write_tokens

from expertp.data import open_dataset
from expertp.errors import InputError
from expertp.training import checkpoints
from expertp.training.checkpoints import newest_weights, resume
from expertp.training.loop import TrainingLoop
from expertp.training.ranks import Ranks
from expertp.training.records import CLOCK_FIELDS
from expertp.training.resolution import resolve_dtype
from expertp.training.store import read_run
from expertp.training.train import train


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def records(out):
    """Return a run's metrics without the fields that depend on the clock."""
    return [replace(record, **dict.fromkeys(CLOCK_FIELDS, 0.0)) for record in read_run(out).metrics()]


def weights(out):
    return newest_weights(read_run(out))


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.heavy
def test_a_run_learns_and_says_how_it_went(data, tmp_path):
    run = tiny_run(data, train={"steps": 150, "eval_every": 50, "batch_tokens": 512}, hps={"lr": 0.02})
    result = train(run, tmp_path / "run")
    history = records(tmp_path / "run")
    assert (result.status, result.step, len(history)) == ("finished", 150, 150)
    validations = [record.val_loss for record in history if record.val_loss is not None]
    assert len(validations) == 3
    assert validations == sorted(validations, reverse=True)
    assert history[0].loss == pytest.approx(math.log(64), abs=0.1)
    assert result.val_loss < math.log(64) - 0.3
    assert result.max_load_deviation < 0.25
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["val_loss"] == result.val_loss


@pytest.mark.heavy
def test_two_runs_are_the_same_to_the_bit(data, tmp_path):
    for name in ("a", "b"):
        train(tiny_run(data), tmp_path / name)
    assert records(tmp_path / "a") == records(tmp_path / "b")
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    train(tiny_run(data, train={"seed": 1}), tmp_path / "c")
    assert records(tmp_path / "a") != records(tmp_path / "c")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("dtype", "backend"),
    [
        ("float32", "fused"),
        ("float32", "loop"),
        ("float32", "grouped"),
        ("bfloat16", "fused"),
        ("bfloat16", "grouped"),
        ("float64", "fused"),
    ],
)
def test_a_stopped_run_goes_on_to_the_bit(data, tmp_path, dtype, backend):
    balance = "sign" if backend == "grouped" else "proportional"
    run = tiny_run(data, train={"dtype": dtype, "expert_backend": backend, "balance": balance})
    train(run, tmp_path / "whole")
    count = iter(range(100))
    stopped = train(run, tmp_path / "parts", should_stop=lambda: next(count) == 4)
    assert (stopped.status, stopped.step) == ("stopped", 5)
    assert train(run, tmp_path / "parts").status == "finished"
    assert records(tmp_path / "whole") == records(tmp_path / "parts")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


@pytest.mark.parametrize(
    ("wanted", "device", "model", "expected"),
    [
        ("auto", "cpu", {"n_embd": 256, "d_head": 64}, "bfloat16"),
        ("auto", "cpu", {"n_embd": 256, "d_head": 64, "alpha_ffn": 0.25}, "float32"),
        ("auto", "cpu", {"n_embd": 128, "d_head": 64, "alpha_ffn": 4}, "float32"),
        ("auto", "cuda", {}, "bfloat16"),
        ("float64", "cuda", {}, "float64"),
        ("float32", "cpu", {"n_embd": 256, "d_head": 64}, "float32"),
    ],
)
def test_auto_becomes_a_type_by_device_and_shape(data, wanted, device, model, expected):
    assert resolve_dtype(tiny_run(data, model=model, train={"dtype": wanted}), device) == expected


def test_auto_and_the_type_it_becomes_are_one_run(data, tmp_path):
    named = train(tiny_run(data, train={"dtype": "float32", "device": "cpu"}), tmp_path / "run")
    assert train(tiny_run(data, train={"dtype": "auto", "device": "cpu"}), tmp_path / "run") == named
    assert json.loads((tmp_path / "run" / "run.json").read_text())["run"]["train"]["dtype"] == "float32"


def test_a_finished_run_is_not_trained_again(data, tmp_path, monkeypatch):
    first = train(tiny_run(data), tmp_path / "run")
    monkeypatch.setattr(TrainingLoop, "step", None)
    assert train(tiny_run(data), tmp_path / "run") == first


@pytest.mark.heavy
def test_accumulation_does_not_change_gradients_or_loads(data, tmp_path):
    """grad(accum=4) == grad(accum=1): in float64 whole runs agree to rounding, loads exactly."""
    for micro_batch in (8, 2):
        train(
            tiny_run(data, train={"dtype": "float64", "micro_batch": micro_batch, "steps": 8}),
            tmp_path / str(micro_batch),
        )
    whole, parts = records(tmp_path / "8"), records(tmp_path / "2")
    for one, four in zip(whole, parts, strict=True):
        assert one.loss == pytest.approx(four.loss, rel=1e-12)
        assert one.max_load_deviation == four.max_load_deviation
        assert one.bias_range == four.bias_range
    for name, tensor in weights(tmp_path / "8").items():
        torch.testing.assert_close(tensor, weights(tmp_path / "2")[name], rtol=1e-9, atol=1e-12)


@pytest.mark.heavy
def test_evaluation_between_steps_changes_nothing(data, tmp_path):
    for name, every in (("never", 0), ("always", 1)):
        train(tiny_run(data, train={"eval_every": every}), tmp_path / name)
    assert same(weights(tmp_path / "never"), weights(tmp_path / "always"))
    never, always = records(tmp_path / "never"), records(tmp_path / "always")
    assert all(record.val_loss is None for record in never)
    assert [record.max_load_deviation for record in never] == [record.max_load_deviation for record in always]


@pytest.mark.heavy
def test_activation_checkpointing_changes_nothing(data, tmp_path):
    for name in (False, True):
        train(tiny_run(data, train={"activation_checkpointing": name}), tmp_path / str(name))
    assert same(weights(tmp_path / "False"), weights(tmp_path / "True"))


@pytest.mark.heavy
@pytest.mark.parametrize("balance", ["proportional", "sign"])
def test_the_mean_bias_stays_zero_and_the_biases_move(data, tmp_path, balance):
    train(tiny_run(data, train={"balance": balance, "steps": 40}), tmp_path / "run")
    for name, tensor in weights(tmp_path / "run").items():
        if name.endswith("router.bias"):
            assert tensor.dtype == torch.float32
            assert tensor.abs().max() > 1e-3
            assert abs(tensor.mean().item()) < 1e-6


@pytest.mark.heavy
def test_balancing_balances(data, tmp_path):
    deviations = {}
    for balance in ("none", "proportional", "sign", "aux_loss"):
        run = tiny_run(
            data,
            model={"n_exp": 8, "n_act": 1},
            hps={"lr": 0.02, "bias_lr": 0.02 if balance == "sign" else 0.2, "constants": {"router_lr": 4}},
            train={"balance": balance, "steps": 80, "batch_tokens": 512, "eval_every": 0, "aux_weight": 0.1},
        )
        train(run, tmp_path / balance)
        tail = records(tmp_path / balance)[-20:]
        deviations[balance] = sum(max(record.max_load_deviation) for record in tail) / len(tail)
    for balance in ("proportional", "sign", "aux_loss"):
        assert deviations[balance] < 0.8 * deviations["none"], deviations


def test_a_zero_router_does_not_collapse(data, tmp_path):
    train(tiny_run(data, model={"n_exp": 8, "n_act": 2}, hps={"gamma": math.inf}), tmp_path / "run")
    first = records(tmp_path / "run")[0]
    assert first.max_load_deviation == (0.0, 0.0)
    assert first.dead_experts == (0, 0)
    in_use = [8 - max(record.dead_experts) for record in records(tmp_path / "run")]
    assert min(in_use) > 2, "collapse would be onto n_act = 2 experts"
    assert in_use[-1] == 8


def test_a_diverged_run_is_a_status_with_its_step(data, tmp_path):
    run = tiny_run(data, hps={"lr": 1e4}, train={"steps": 50})
    result = train(run, tmp_path / "run")
    assert (result.status, result.val_loss) == ("diverged", None)
    assert 1 < result.step < 50
    assert train(run, tmp_path / "run") == result
    again = tiny_run(data, train={"diverge_above": 1.0})
    assert train(again, tmp_path / "bound").step == 1


@pytest.mark.parametrize("lr", [1e4, 1e30])
def test_a_validation_that_explodes_is_a_divergence_too(data, tmp_path, lr):
    result = train(tiny_run(data, hps={"lr": lr}, train={"steps": 1}), tmp_path / "run")
    assert (result.status, result.step, result.val_loss) == ("diverged", 1, None)


def test_a_validation_loss_before_the_divergence_does_not_make_it_look_good(data, tmp_path, monkeypatch):
    validations = iter([3.0, math.nan])
    monkeypatch.setattr(TrainingLoop, "evaluate", lambda _: next(validations))
    result = train(tiny_run(data), tmp_path / "run")
    assert (result.status, result.step, result.val_loss) == ("diverged", 8, None)
    assert [record.val_loss for record in records(tmp_path / "run")][3::4] == [3.0, None]


@pytest.mark.heavy
def test_clipping_acts_only_when_asked(data, tmp_path):
    train(tiny_run(data), tmp_path / "off")
    train(tiny_run(data, hps={"clip": 1e9}), tmp_path / "never reached")
    assert same(weights(tmp_path / "off"), weights(tmp_path / "never reached"))
    # Adam forgets the size of gradients unless eps is large: then a clipped run moves less than an unclipped one.
    moved = {}
    for clip in (None, 1e-3):
        out = tmp_path / f"clip {clip}"
        train(tiny_run(data, hps={"clip": clip, "adam_eps": 1e-2}, train={"steps": 1}), out)
        start = TrainingLoop(tiny_run(data), open_dataset(data), "cpu").weights()
        moved[clip] = sum((value - start[name]).norm() for name, value in weights(out).items())
    assert moved[1e-3] < 0.1 * moved[None]


def test_a_dense_model_trains_too(data, tmp_path):
    dense = {"ffn": "dense", "n_exp": 1, "n_act": 1, "alpha_ffn": 2, "linear_bias": True, "tied_embeddings": False}
    result = train(tiny_run(data, model=dense), tmp_path / "run")
    assert (result.status, result.max_load_deviation, result.dead_experts) == ("finished", None, None)


def test_another_runs_directory_is_refused_and_left_alone(data, tmp_path):
    train(tiny_run(data), tmp_path / "run")
    before = weights(tmp_path / "run")
    with pytest.raises(InputError, match=re.escape("train.seed=0 there, 9 here")):
        train(tiny_run(data, train={"seed": 9}), tmp_path / "run")
    assert same(before, weights(tmp_path / "run"))


def test_too_little_data_says_so_before_anything_is_written(tmp_path):
    data = write_tokens(tmp_path / "data", train=100, val=50)
    with pytest.raises(InputError):
        train(tiny_run(data), tmp_path / "run")
    with pytest.raises(InputError):
        train(tiny_run(write_tokens(tmp_path / "more", val=5)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.heavy
def test_a_run_with_a_base_uses_its_plan(data, tmp_path):
    base = run_tree(data)["model"]
    wide = {**base, "n_embd": 64}
    train(tiny_run(data, base=base, model=wide), tmp_path / "planned")
    train(tiny_run(data, base=wide, model=wide), tmp_path / "own base")
    assert not same(weights(tmp_path / "planned"), weights(tmp_path / "own base"))
    with pytest.raises(InputError, match="kappa"):
        train(tiny_run(data, base=base, model={**base, "n_act": 1}), tmp_path / "other kappa")


def test_the_share_of_product_speed_is_that_of_all_ranks(data, tmp_path, monkeypatch):
    class OneOfTwo(Ranks):
        """The slower one of two ranks, which trains alone."""

        def gathered(self, value):
            return [value, 3 * value] if isinstance(value, float) else [value]

    run = tiny_run(data)
    monkeypatch.setattr("expertp.training.train.product_speed", lambda *_: 1e6)
    train(run, tmp_path, ranks=OneOfTwo())
    last = read_run(tmp_path).metrics()[-1]
    share = last.tokens_per_second * run.model.flops_per_token() / 4e6
    assert last.product_share == pytest.approx(share, rel=1e-3)


@pytest.mark.heavy
def test_a_sparse_log_resumes_to_the_bit_and_trackers_see_every_step(data, tmp_path):
    class Listener:
        """Records the calls of a tracker."""

        def __init__(self):
            self.told = []

        def begin(self, run, steps_done):
            self.told.append(f"of {run.train.steps} from {steps_done}")

        def log(self, metrics):
            self.told.append(metrics.step)

        def end(self):
            self.told.append("end")

    run, listener = tiny_run(data, train={"log_every": 5, "eval_every": 8}), Listener()
    train(run, tmp_path / "whole")
    count = iter(range(100))
    train(run, tmp_path / "parts", [listener], should_stop=lambda: next(count) == 6)
    train(run, tmp_path / "parts", [listener])
    train(run, tmp_path / "parts", [listener])
    assert [record.step for record in records(tmp_path / "whole")] == [1, 5, 8, 10, 12]
    assert records(tmp_path / "whole") == records(tmp_path / "parts")
    assert listener.told == ["of 12 from 0", *range(1, 8), "end", "of 12 from 7", *range(8, 13), "end"]


def test_no_step_is_saved_twice(data, tmp_path, monkeypatch):
    """A second save of one step would have to remove the first, and a crash there would lose both."""
    steps, save = [], checkpoints.save

    def remember(directory, checkpoint, ranks):
        steps.append(checkpoint.step)
        save(directory, checkpoint, ranks)

    monkeypatch.setattr("expertp.training.train.save", remember)
    run = tiny_run(data, train={"checkpoint_steps": 4})
    count = iter(range(100))
    train(run, tmp_path / "run", should_stop=lambda: next(count) == 3)
    train(run, tmp_path / "run")
    assert steps == [4, 8, 12]


def test_a_model_that_cannot_fit_is_refused(data, tmp_path):
    with pytest.raises(InputError, match="GiB"):
        train(tiny_run(data, model={"vocab_size": 10**12}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def start(run_file, out, *overrides):
    command = [sys.executable, "-m", "expertp.cli.main", "train", str(run_file), "--out", str(out), *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    process.communicate()
    return process.returncode


def progress(out):
    """Return the size of metrics.jsonl and all checkpoints."""
    path = out / "metrics.jsonl"
    return path.stat().st_size if path.exists() else 0, sorted((out / "checkpoints").glob("step-*"))


def wait_for(condition, process):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.slow
def test_kill_9_at_random_points_and_resume_is_the_uninterrupted_run(data, tmp_path):
    """Killed twice during start-up, and five times after a new checkpoint; the quick version is in tests/crash."""
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(run_tree(data, train={"steps": 300, "checkpoint_steps": 7})))
    assert ended(start(run_file, tmp_path / "whole")) == 0
    chance = random.Random(0)
    out, killed_at = tmp_path / "killed", []
    for _ in range(2):
        process = start(run_file, out)
        time.sleep(chance.uniform(0, 2.5))
        process.kill()
        ended(process)
    for _ in range(5):
        process = start(run_file, out)
        _, before = progress(out)
        wait_for(lambda before=before: progress(out)[1] not in ([], before), process)
        time.sleep(chance.uniform(0, 0.15))
        process.kill()
        assert ended(process) == -signal.SIGKILL, "the run must still have been going"
        killed_at.append(progress(out)[1][-1].name)
    assert len(set(killed_at)) == 5, killed_at
    assert ended(start(run_file, out)) == 0
    assert records(out) == records(tmp_path / "whole")
    assert same(weights(out), weights(tmp_path / "whole"))


@pytest.mark.heavy
def test_sigterm_saves_and_exits_143(data, tmp_path):
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(run_tree(data, train={"steps": 100_000})))
    process = start(run_file, tmp_path / "run", "train.checkpoint_seconds=0.2")
    wait_for(lambda: progress(tmp_path / "run")[1], process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    directory = read_run(tmp_path / "run")
    assert directory.summary().status == "stopped"
    assert resume(directory).step == directory.summary().step == len(directory.metrics())
    assert "run the same command" in out


def test_several_ranks_do_not_each_train_the_run(data, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(
        InputError, match="a launcher has started 2 processes, but a run without `ranks` is trained by one"
    ):
        train(tiny_run(data), tmp_path / "run")
    assert not (tmp_path / "run").exists()
