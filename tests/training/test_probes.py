"""Gradient entries scale as the `consistent` column of Adam eps says, and not as the `paper` column does.

The quick version takes tiny models, one seed and steps 20..40. The full one (`pytest -m slow`, a quarter of an hour) is
that of `benchmarks/eps_exponents.py`; its table is in docs/results/eps-exponents.md.
"""

import pytest
import torch
from runs import VOCAB, tiny_run, write_tokens

from expertp.data import open_dataset
from expertp.training.loop import TrainingLoop
from expertp.training.probes import gradient_rms, mean_gradient_rms, scaling_exponents

BASE = {
    "n_embd": 32, "d_head": 16, "n_layer": 4, "n_exp": 8, "n_act": 2, "context": 32, "vocab_size": VOCAB,
    "linear_bias": True,
}  # fmt: skip
FOUR_TIMES = {
    "N": {"n_embd": 128},
    "L": {"n_layer": 16},
    "E": {"n_exp": 32, "n_act": 8},
    "a": {"alpha_ffn": 4.0},
}
# Exponents in N, L, E, a of what a gradient entry must do, and of what the paper prints where that differs.
CONSISTENT = {
    "embedding": (-1, 0, 0, 0),
    "norm": (-1, -1, 0, 0),
    "final_norm": (-1, 0, 0, 0),
    "attn_v": (-1, -1, 0, 0),
    "attn_o": (-1, -1, 0, 0),
    "linear_bias": (-1, -1, 0, 0),
    "router": (0, -1, -1, 0),
    "expert_up": (-1, -1, -1, -1),
    "expert_down": (-1, -1, -1, 0),
}
PAPER = {
    "norm": (0, 0, 0, 0),
    "final_norm": (0, 0, 0, 0),
    "linear_bias": (0, -1, 0, 0),
    "router": (-1, -1, 0, 0),
    "expert_up": (-1, -1, 0, -1),
    "expert_down": (-1, -1, 0, -2),
}
AXES = tuple(FOUR_TIMES)
TOLERANCE = 0.3


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return open_dataset(write_tokens(tmp_path_factory.mktemp("tokens"), train=100_000))


def run_of(changes, dataset):
    hps = {"lr": 2**-6, "init_std": 0.05, "bias_lr": 0.05, "constants": "paper"}
    train = {"steps": 61, "batch_tokens": 1024, "eval_every": 0}
    return tiny_run(dataset.path, base=BASE, model={**BASE, **changes}, hps=hps, train=train)


@pytest.fixture(scope="module")
def at_base(dataset):
    return mean_gradient_rms(run_of({}, dataset), dataset, first_step=20, last_step=40)


@pytest.mark.heavy
@pytest.mark.parametrize("axis", AXES)
def test_gradient_entries_scale_as_the_consistent_column_says(axis, at_base, dataset):
    larger = mean_gradient_rms(run_of(FOUR_TIMES[axis], dataset), dataset, first_step=20, last_step=40)
    measured = scaling_exponents([1, 4], [at_base, larger])
    place = AXES.index(axis)
    for group, exponents in CONSISTENT.items():
        assert measured[group] == pytest.approx(exponents[place], abs=TOLERANCE), (group, measured)
        printed = PAPER.get(group, exponents)[place]
        if printed != exponents[place]:
            assert abs(measured[group] - exponents[place]) < abs(measured[group] - printed), (group, measured)


def test_looking_at_gradients_does_not_change_training(dataset):
    run = run_of({}, dataset)
    seen = []
    watched = TrainingLoop(run, dataset, "cpu", on_gradients=lambda model: seen.append(gradient_rms(model)))
    plain = TrainingLoop(run, dataset, "cpu")
    for _ in range(3):
        watched.step()
        plain.step()
    assert len(seen) == 3
    assert all(torch.equal(value, plain.weights()[name]) for name, value in watched.weights().items())


def test_gradient_rms_is_over_all_entries_of_a_group(dataset):
    loop = TrainingLoop(run_of({}, dataset), dataset, "cpu")
    for parameter in loop.model.module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for block in loop.model.module.blocks[:2]:
        block.attn.o.weight.grad.fill_(3.0)
    assert gradient_rms(loop.model)["attn_o"] == pytest.approx(3 / 2**0.5)
    assert gradient_rms(loop.model)["attn_v"] == 0


def test_a_diverged_run_has_no_exponents(dataset):
    run = tiny_run(dataset.path, hps={"lr": 1e4}, train={"steps": 61})
    with pytest.raises(ArithmeticError, match="diverged"):
        mean_gradient_rms(run, dataset, first_step=0, last_step=60)


@pytest.mark.slow
def test_the_full_table_agrees_with_the_consistent_column(tmp_path):
    from benchmarks.eps_exponents import AXES, measure, summarise
    from expertp.data import PrepareOptions, prepare

    prepare("builtin", tmp_path / "data", PrepareOptions(tokenizer="bpe", vocab_size=1024))
    text = open_dataset(tmp_path / "data")
    for axis in AXES:
        for entry in summarise(axis, measure(text, axis, seeds=3, vocab_size=1024)):
            assert entry.measured == pytest.approx(entry.consistent, abs=TOLERANCE), entry
            if entry.consistent != entry.paper:
                assert abs(entry.measured - entry.consistent) < abs(entry.measured - entry.paper), entry
