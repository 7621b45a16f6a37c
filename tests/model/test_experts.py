import re

import pytest
import torch
import torch.nn.functional as F

from expertp.errors import InputError
from expertp.model import fused
from expertp.model.experts import BACKENDS, choose_backend
from expertp.model.fused import fused_experts
from expertp.model.router import Routing
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
    x = draw(tokens, n_embd)
    routing = Routing(expert, draw(tokens, n_act).sigmoid(), load, torch.zeros(()))
    return x, routing, draw(n_exp, n_embd, n_hid) / 4, draw(n_exp, n_hid, n_embd) / 4


def leaves_of(x, routing, up, down):
    """Return what gradients are taken of."""
    return [value.requires_grad_() for value in (x, routing.gate_TK, up, down)]


def every_expert_on_every_token(x, routing, up, down):
    """The definition, with nothing saved: all experts on all tokens, masked."""
    gate = routing.gate_TK
    weight = torch.zeros(len(x), len(up), dtype=gate.dtype).scatter(1, routing.expert_TK, gate)
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
        arguments = problem(empty_expert=empty_expert)
        leaves = leaves_of(*arguments)
        out = function(*arguments)
        weights = torch.linspace(-1, 1, out.numel()).view_as(out)
        gradients.append(torch.autograd.grad((out * weights).sum(), leaves))
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["loop", "fused"])
@pytest.mark.parametrize("empty_expert", [None, 1])
def test_gradcheck_passes_in_float64(backend, empty_expert):
    arguments = problem(tokens=5, n_embd=3, n_exp=4, n_hid=4, dtype=torch.float64, empty_expert=empty_expert)
    routing = arguments[1]
    assert torch.autograd.gradcheck(
        lambda x, g, u, d: BACKENDS[backend](x, routing._replace(gate_TK=g), u, d), leaves_of(*arguments)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_compute_in_bfloat16_under_autocast(backend):
    results = []
    for under_autocast in (True, False):
        arguments = problem(tokens=64)
        leaves = leaves_of(*arguments)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=under_autocast):
            out = BACKENDS[backend](*arguments)
        weights = torch.linspace(-1, 1, out.numel()).view_as(out)
        results.append([out, *torch.autograd.grad((out * weights).sum(), leaves)])
    for rounded, exact in zip(*results, strict=True):
        assert rounded.dtype == torch.float32
        assert not torch.equal(rounded, exact)
        assert (rounded - exact).norm() / exact.norm() < 0.02


@pytest.mark.heavy
def test_fused_works_in_a_compiled_block():
    arguments = problem()
    compiled = torch.compile(lambda *a: fused_experts(*a) * 2, backend="eager")
    torch.testing.assert_close(compiled(*arguments), 2 * fused_experts(*arguments))


def test_fused_keeps_no_row_per_visit_and_channel():
    """What is saved for the backward pass grows with visits times hidden units, not visits times n_embd."""
    x, routing, up, down = problem(tokens=50, n_embd=40, n_exp=8, n_act=8, n_hid=2)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        fused_experts(x.requires_grad_(), routing, up, down)
    assert max(sizes) == 50 * 40
    assert sizes.count(50 * 2) == 8


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_fused_shares_rows_between_threads(threads, dtype, monkeypatch):
    """The sums over rows by shares, with rows left over, are the plain ones."""
    monkeypatch.setattr(fused, "MIN_SHARE", 2)
    before = torch.get_num_threads()
    gradients = []
    try:
        for number in (threads, 1):
            torch.set_num_threads(number)
            arguments = problem(tokens=43, empty_expert=1, dtype=dtype)
            leaves = leaves_of(*arguments)
            gradients.append(torch.autograd.grad(fused_experts(*arguments).float().square().sum(), leaves))
    finally:
        torch.set_num_threads(before)
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected)


def test_backends_are_deterministic():
    for function in BACKENDS.values():
        assert torch.equal(function(*problem()), function(*problem()))


MODEL = ModelSpec(n_embd=32, d_head=16, n_layer=1, n_exp=4, n_act=1)
NARROW = MODEL.replace(alpha_ffn=12 / 32)


@pytest.mark.parametrize(
    ("wanted", "device", "model", "dtype", "expected"),
    [
        ("auto", "cpu", MODEL, "float32", "fused"),
        ("auto", "cuda", MODEL, "bfloat16", "grouped"),
        ("auto", "cuda", NARROW, "bfloat16", "fused"),
        ("auto", "cuda", MODEL, "float64", "fused"),
        ("grouped", "cpu", NARROW, "float32", "grouped"),
        ("loop", "cuda", MODEL, "float32", "loop"),
    ],
)
def test_the_backend_follows_from_device_shape_and_type(wanted, device, model, dtype, expected):
    assert choose_backend(wanted, device, model, dtype) == expected


@pytest.mark.parametrize(("model", "dtype"), [(NARROW, "bfloat16"), (MODEL, "float64")])
def test_what_grouped_cannot_do_is_refused(model, dtype):
    with pytest.raises(InputError, match=re.escape("set train.expert_backend=fused")):
        choose_backend("grouped", "cpu", model, dtype)
