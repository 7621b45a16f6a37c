"""Hugging Face's experts are contestants where they are installed: same tokens, same routing, as many parameters."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from expertp.bench.experts import SHAPES, Shape, compare_experts
from expertp.bench.hugging_face import gated_hidden, hugging_face_experts

OURS = {"fused", "loop", "grouped", "bmm", "dense"}
THEIRS = {"mixtral", "mixtral-eager", "olmoe", "olmoe-eager"}
SMALL = Shape(4, 2, 0.5)

installed = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed; pip install -e '.[hf]'",
)


def sum_of_gated(x, expert, gate, gate_up, down):
    """Go through the tokens one by one."""
    out = []
    for token in range(len(x)):
        total = torch.zeros_like(x[token])
        for slot, number in enumerate(expert[token].tolist()):
            opening, value = (gate_up[number] @ x[token]).chunk(2)
            total = total + gate[token, slot].to(x.dtype) * (down[number] @ (F.silu(opening) * value))
        out.append(total)
    return torch.stack(out)


class FakeExperts(nn.Module):
    """Takes a config and a routing the way the library's experts do, and notes what happens to it."""

    events: ClassVar[list[str]] = []

    def __init__(self, config):
        super().__init__()
        n_exp = getattr(config, "num_local_experts", None) or config.num_experts
        self.implementation = config.experts_implementation
        self.gate_up_proj = nn.Parameter(torch.empty(n_exp, 2 * config.intermediate_size, config.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(n_exp, config.hidden_size, config.intermediate_size))

    def forward(self, x, expert, gate):
        clean = all(leaf.grad is None for leaf in (x, gate, *self.parameters()))
        self.events.append("forward" if clean else "forward with old gradients")
        out = sum_of_gated(x, expert, gate, self.gate_up_proj, self.down_proj)
        out.register_hook(lambda _: self.events.append("backward"))
        return out


@pytest.fixture
def fake_library(monkeypatch):
    FakeExperts.events.clear()
    contents = {
        "transformers": {"MixtralConfig": SimpleNamespace, "OlmoeConfig": SimpleNamespace},
        "transformers.models": {},
        "transformers.models.mixtral": {},
        "transformers.models.mixtral.modeling_mixtral": {"MixtralExperts": FakeExperts},
        "transformers.models.olmoe": {},
        "transformers.models.olmoe.modeling_olmoe": {"OlmoeExperts": FakeExperts},
    }
    for name, members in contents.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)


def test_without_the_extra_they_do_not_take_part(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert hugging_face_experts(4, 32, 16, torch.float32) == {}
    assert set(compare_experts(SMALL, n_embd=32, tokens=64, rounds=1).ms) == OURS


def test_a_library_without_stacked_experts_does_not_take_part(monkeypatch, fake_library):
    monkeypatch.delattr(sys.modules["transformers.models.mixtral.modeling_mixtral"], "MixtralExperts")
    assert hugging_face_experts(4, 32, 16, torch.float32) == {}


def test_each_is_asked_for_in_both_ways(fake_library):
    modules = hugging_face_experts(4, 32, 16, torch.bfloat16)
    assert {name: module.implementation for name, module in modules.items()} == {
        "mixtral": "grouped_mm", "mixtral-eager": "eager", "olmoe": "grouped_mm", "olmoe-eager": "eager",
    }  # fmt: skip
    for module in modules.values():
        assert [tuple(weight.shape) for weight in module.parameters()] == [(4, 16, 32), (4, 32, 8)]
        assert all(weight.dtype == torch.bfloat16 and weight.float().std() > 0.1 for weight in module.parameters())


def check_contestants(dtype):
    case = compare_experts(SMALL, n_embd=32, tokens=64, dtype=dtype, rounds=1)
    assert set(case.ms) == OURS | THEIRS
    assert list(case.ms)[-1] == "dense", "fused follows the same contestant with and without the extra"
    best = min(case.ms[name] for name in ("loop", "grouped", "bmm"))
    assert case.vs_best_peer == pytest.approx(case.ms["fused"] / best, rel=0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_take_part_and_are_no_best_peer(dtype, fake_library):
    check_contestants(dtype)


def test_every_run_of_theirs_goes_both_ways_and_starts_without_gradients(fake_library):
    compare_experts(SMALL, n_embd=16, tokens=8, rounds=1)
    assert FakeExperts.events == ["forward", "backward"] * len(THEIRS) * 3, "two rounds warm up, one counts"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_active_parameters_agree(shape, dtype):
    n_hid = round(256 * shape.alpha_ffn)
    ratio = 3 * gated_hidden(n_hid, dtype) / (2 * n_hid)
    if n_hid < 64:
        assert ratio == {torch.float32: 1.125, torch.bfloat16: 0.75}[dtype]
    else:
        assert ratio == pytest.approx(1, abs={torch.float32: 0.032, torch.bfloat16: 0.063}[dtype])


@installed
@pytest.mark.parametrize("name", sorted(THEIRS))
def test_theirs_compute_what_is_said(name):
    n_embd = 24
    experts = hugging_face_experts(SMALL.n_exp, n_embd, 12, torch.float32)[name]
    generator = torch.Generator().manual_seed(0)
    x, gate = torch.randn(40, n_embd, generator=generator), torch.rand(40, SMALL.n_act, generator=generator)
    expert = torch.rand(40, SMALL.n_exp, generator=generator).topk(SMALL.n_act).indices
    wanted = sum_of_gated(x, expert, gate, experts.gate_up_proj, experts.down_proj)
    torch.testing.assert_close(experts(x, expert, gate), wanted)


@installed
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_theirs_take_part(dtype):
    check_contestants(dtype)


@installed
@pytest.mark.parametrize("kind", ["Mixtral", "Olmoe"])
def test_what_is_called_default_is_the_librarys_default(kind):
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        vocab_size=8, pad_token_id=0,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}Model")(config)
    assert model.config._experts_implementation == "grouped_mm"
