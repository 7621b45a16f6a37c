"""The anatomy of models: weights of the reference model and the bytes that its passes keep are exact."""

from typing import Any

import pytest
import torch
from capacity.models import reference
from torch import Tensor, nn

from expertp.capacity.anatomy import CHUNK_LOGITS, anatomy
from expertp.capacity.job import JobSpec, WorkSpec
from expertp.model import loss
from expertp.model.experts import Experts
from expertp.spec import ModelSpec

BATCH, CONTEXT = 2, 32
MODEL = {"n_embd": 64, "n_layer": 2, "d_head": 16, "n_exp": 8, "n_act": 2, "alpha_ffn": 2, "vocab_size": 64}
DENSE = {"ffn": "dense", "n_exp": 1, "n_act": 1}


def kept_bytes(model: ModelSpec, work: WorkSpec) -> int:
    """Return the bytes that a forward pass keeps beside weights, which are rounded before it as under FSDP2."""
    built = reference(model, backend=work.expert_backend, activation_checkpointing=work.activation_checkpointing)
    built = built.double() if work.dtype == "float64" else built
    for module in built.modules():
        if work.dtype == "bfloat16" and isinstance(module, nn.Linear | Experts):
            module.to(torch.bfloat16)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*built.parameters(), *built.buffers())}
    found: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    tokens = torch.zeros(BATCH, CONTEXT, dtype=torch.int64)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=work.dtype == "bfloat16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        built(tokens, tokens)
    return sum(size for size, _ in found.values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embeddings": False, "linear_bias": True},
        {"ffn": "dense", "n_exp": 1, "n_act": 1, "linear_bias": True},
    ],
)
def test_the_weights_are_those_of_the_reference_model(changes: dict[str, Any]) -> None:
    model = ModelSpec(**{**MODEL, "context": CONTEXT, **changes})
    found = anatomy(JobSpec(model=model))
    weights = {each.name.replace("#", str(number)): each for each, times in found.weights() for number in range(times)}
    expected = {name: tuple(parameter.shape) for name, parameter in reference(model).named_parameters()}
    assert {name: weight.shape for name, weight in weights.items()} == expected
    assert found.numel == model.counts().total
    products = {
        f"{name}.{inner}" if inner else name
        for name, module in reference(model).named_modules()
        if isinstance(module, nn.Linear | Experts) and name != "head"
        for inner, _ in module.named_parameters()
    }
    assert {name for name, weight in weights.items() if weight.kind != "wide"} == products


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["fused", "grouped", "loop"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"n_embd": 128, "alpha_ffn": 0.5, "n_act": 3, "n_exp": 16, "d_head": 32}, DENSE],
    ids=["narrow", "wide", "dense"],
)
def test_the_kept_bytes_are_those_of_a_forward_pass(dtype: str, backend: str, changes: dict[str, Any]) -> None:
    work = WorkSpec(dtype=dtype, expert_backend=backend)
    shallow, deep = (ModelSpec(**{**MODEL, "context": CONTEXT, "n_layer": layers, **changes}) for layers in (1, 2))
    measured = kept_bytes(deep, work) - kept_bytes(shallow, work)
    # The offsets of the grouped product are one number per expert, whatever the tokens.
    offsets = 4 * deep.n_exp if backend == "grouped" and deep.is_moe else 0
    [block] = anatomy(JobSpec(model=deep, train=work)).blocks
    assert measured == BATCH * CONTEXT * block.kept + offsets


def test_the_bytes_that_the_root_and_recomputed_blocks_keep() -> None:
    model = ModelSpec(**{**MODEL, "context": CONTEXT})
    tokens, table = BATCH * CONTEXT, 4 * model.vocab_size * model.n_embd
    recomputed = kept_bytes(model, WorkSpec(dtype="float32", expert_backend="fused", activation_checkpointing=True))
    found = anatomy(JobSpec(model=model, train=WorkSpec(dtype="float32")))
    assert recomputed == tokens * (4 * model.n_embd * model.n_layer + found.kept) + table
    assert loss.CHUNK_LOGITS == CHUNK_LOGITS


def test_float64_keeps_twice_the_numbers_of_float32() -> None:
    model = ModelSpec(**{**MODEL, "context": CONTEXT, "n_layer": 1})
    wide, narrow = (
        anatomy(JobSpec(model=model, train=WorkSpec(dtype=dtype, expert_backend="fused"))).blocks[0].kept
        for dtype in ("float64", "float32")
    )
    deep = model.replace(n_layer=2)
    work = WorkSpec(dtype="float64", expert_backend="fused")
    assert kept_bytes(deep, work) - kept_bytes(model, work) == BATCH * CONTEXT * wide
    assert narrow < wide < 2 * narrow
