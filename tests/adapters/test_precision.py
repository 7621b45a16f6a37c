"""Routers under autocast: all of them compute in float32, and the model still trains."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from adapters.tiny import build
from torch import Tensor, nn

from expertp.adapters.adapted import adapt
from expertp.adapters.families import FAMILIES
from expertp.adapters.precision import keep_routers_wide
from expertp.adapters.roles import pattern_of
from expertp.spec import BaseHPs

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")


def routers(model: nn.Module, model_type: str) -> dict[str, nn.Module]:
    patterns = {row.pattern for row in FAMILIES[model_type].rows if row.role == "router"}
    names = [name for name, _ in model.named_parameters() if pattern_of(name) in patterns]
    return {name: model.get_submodule(name.rpartition(".")[0]) for name in names}


@pytest.mark.heavy
@pytest.mark.parametrize("model_type", FAMILIES)
def test_routers_compute_in_float32_under_autocast(model_type: str) -> None:
    torch.manual_seed(0)
    model = build(model_type).train()
    keep_routers_wide(model, FAMILIES[model_type].rows)
    found = routers(model, model_type)
    seen: dict[str, tuple[Tensor, tuple[Tensor, ...]]] = {}

    def remember(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
            del module
            outputs = output if isinstance(output, tuple) else (output,)
            seen[name] = (inputs, tuple(each for each in outputs if each.is_floating_point()))

        return hook

    for name, router in found.items():
        router.register_forward_hook(remember(name))
    tokens = torch.arange(3, 27).view(2, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    assert seen.keys() == found.keys()
    for name, (inputs, outputs) in seen.items():
        assert found[name].weight.grad is not None
        assert outputs
        assert {each.dtype for each in outputs} == {torch.float32}
        wide = [each.float() if each.is_floating_point() else each for each in inputs]
        again = type(found[name]).forward(found[name], *wide)
        exact = [each for each in (again if isinstance(again, tuple) else (again,)) if each.is_floating_point()]
        if model_type != "phimoe":  # it draws random numbers
            assert all(torch.equal(one, other) for one, other in zip(outputs, exact, strict=True)), name


def test_a_copy_of_a_model_computes_with_its_own_routers() -> None:
    model = build("olmoe")
    keep_routers_wide(model, FAMILIES["olmoe"].rows)
    other = copy.deepcopy(model)
    for router in routers(other, "olmoe").values():
        assert router.forward.__self__ is router


@pytest.mark.heavy
def test_the_trainer_keeps_routers_in_float32_under_autocast(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    model = build("olmoe")
    adapted = adapt(model, build("olmoe", "meta"), BaseHPs(lr=0.01))
    args = TrainingArguments(output_dir=str(tmp_path), max_grad_norm=0, bf16=True, use_cpu=True, report_to=[])
    optimizer = torch.optim.AdamW(adapted.param_groups(model))
    dtypes: set[torch.dtype] = set()
    for router in routers(model, "olmoe").values():
        router.register_forward_hook(lambda module, inputs, output: dtypes.add(output[0].dtype))  # noqa: ARG005
    tokens = torch.arange(3, 27).view(2, 12)
    for expected in (torch.bfloat16, torch.float32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(input_ids=tokens)
        assert dtypes == {expected}
        dtypes.clear()
        start = {"model": model, "optimizer": optimizer}
        adapted.callback().on_train_begin(args, SimpleNamespace(global_step=0), None, **start)
