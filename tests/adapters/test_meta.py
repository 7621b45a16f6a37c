"""A model that is built on the meta device and gets memory by to_empty, as large models do."""

import pytest
import torch
from adapters.tiny import build, wider
from torch import nn

from expertp.adapters.adapted import adapt
from expertp.adapters.hub import on_meta
from expertp.errors import InputError
from expertp.spec import BaseHPs

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")

HPS = BaseHPs(lr=2**-7, init_std=0.05)


def empty(model: nn.Module) -> nn.Module:
    """Return the model of the same configuration with memory whose content is arbitrary."""
    other = on_meta(model.config).to_empty(device="cpu")
    for tensor in (*other.parameters(), *other.buffers()):
        tensor.detach().fill_(7)
    return other


@pytest.mark.parametrize("model_type", ["olmoe", "deepseek_v3", "gpt_oss"])
def test_init_fills_what_to_empty_has_left(model_type: str) -> None:
    model = build(model_type, **wider(model_type))
    adapted = adapt(model, build(model_type, "meta"), HPS)
    adapted.init_(model, seed=3)
    other = empty(model)
    before = torch.random.get_rng_state()
    adapted.init_(other, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    expected = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
    assert any(name.endswith("inv_freq") for name in found)


def test_a_model_without_memory_is_refused() -> None:
    model = build("olmoe", "meta")
    adapted = adapt(model, model, HPS)
    with pytest.raises(InputError, match=r"is on the meta device; call model\.to_empty\(device=\.\.\.\) before init_"):
        adapted.init_(model)
