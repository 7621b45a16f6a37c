import re

import pytest
import torch
import torch.nn.functional as F

from expertp.errors import InputError
from expertp.model.experts import BACKENDS, choose_backend, grouped_experts, loop_experts
from expertp.spec import ModelSpec


def problem(tokens=40, n_embd=16, n_exp=6, n_act=2, n_hid=24, dtype=torch.float32, empty_expert=None):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    scores = torch.rand(tokens, n_exp, generator=generator)
    if empty_expert is not None:
        scores[:, empty_expert] = -1
    expert = scores.topk(n_act).indices
    load = torch.bincount(expert.flatten(), minlength=n_exp)
    return (
        draw(tokens, n_embd),
        expert,
        draw(tokens, n_act).sigmoid(),
        load,
        draw(n_exp, n_embd, n_hid) / 4,
        draw(n_exp, n_hid, n_embd) / 4,
    )


def every_expert_on_every_token(x, expert, gate, load, up, down):
    """The definition, with nothing saved: all experts on all tokens, masked."""
    weight = torch.zeros(len(x), len(up), dtype=gate.dtype).scatter(1, expert, gate)
    outputs = torch.einsum("teh,ehn->ten", F.gelu(torch.einsum("tn,enh->teh", x, up)), down)
    return torch.einsum("te,ten->tn", weight.to(x.dtype), outputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("empty_expert", [None, 0, 5])
def test_backends_compute_the_definition(backend, empty_expert):
    arguments = problem(empty_expert=empty_expert)
    torch.testing.assert_close(
        BACKENDS[backend](*arguments), every_expert_on_every_token(*arguments), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("empty_expert", [None, 0, 5])
def test_gradients_agree_with_the_definition(backend, empty_expert):
    gradients = []
    for function in (BACKENDS[backend], every_expert_on_every_token):
        x, expert, gate, load, up, down = problem(empty_expert=empty_expert)
        leaves = [value.requires_grad_() for value in (x, gate, up, down)]
        out = function(x, expert, gate, load, up, down)
        weights = torch.linspace(-1, 1, out.numel()).view_as(out)
        gradients.append(torch.autograd.grad((out * weights).sum(), leaves))
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_the_loop_passes_gradcheck_in_float64():
    x, expert, gate, load, up, down = problem(tokens=5, n_embd=3, n_exp=3, n_hid=4, dtype=torch.float64)
    leaves = [value.requires_grad_() for value in (x, gate, up, down)]
    assert torch.autograd.gradcheck(lambda x, g, u, d: loop_experts(x, expert, g, load, u, d), leaves)


def test_backends_agree_in_bfloat16_under_autocast():
    arguments = problem(tokens=64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loop, grouped = loop_experts(*arguments), grouped_experts(*arguments)
    assert loop.dtype == grouped.dtype == torch.float32
    exact = every_expert_on_every_token(*arguments)
    for ours in (loop, grouped):
        assert not torch.equal(ours, exact)
        assert (ours - exact).norm() / exact.norm() < 0.01


def test_backends_are_deterministic():
    for function in BACKENDS.values():
        assert torch.equal(function(*problem()), function(*problem()))


MODEL = ModelSpec(n_embd=32, d_head=16, n_layer=1, n_exp=4, n_act=1)
NARROW = MODEL.replace(alpha_ffn=12 / 32)


@pytest.mark.parametrize(
    ("wanted", "device", "model", "dtype", "expected"),
    [
        ("auto", "cpu", MODEL, "float32", "loop"),
        ("auto", "cuda", MODEL, "bfloat16", "grouped"),
        ("auto", "cuda", NARROW, "bfloat16", "loop"),
        ("auto", "cuda", MODEL, "float64", "loop"),
        ("grouped", "cpu", NARROW, "float32", "grouped"),
        ("loop", "cuda", MODEL, "float32", "loop"),
    ],
)
def test_the_backend_follows_from_device_shape_and_type(wanted, device, model, dtype, expected):
    assert choose_backend(wanted, device, model, dtype) == expected


@pytest.mark.parametrize(("model", "dtype"), [(NARROW, "bfloat16"), (MODEL, "float64")])
def test_what_grouped_cannot_do_is_refused(model, dtype):
    with pytest.raises(InputError, match=re.escape("so set train.expert_backend=loop")):
        choose_backend("grouped", "cpu", model, dtype)
