"""Routers of models of others compute in the dtype of their weights: autocast would round logits, gates and top-k."""

from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from expertp.adapters.roles import RoleRow, clean_name, pattern_of


def keep_routers_wide(model: nn.Module, rows: Sequence[RoleRow]) -> None:
    """Let every module that owns a router's weight compute without autocast, on inputs of the dtype of its weights."""
    patterns = {row.pattern for row in rows if row.role == "router"}
    for name, _ in list(model.named_parameters()):
        if pattern_of(clean_name(name)) in patterns:
            router = model.get_submodule(name.rpartition(".")[0])
            router.forward = MethodType(_without_autocast, router)  # a method, so that a copy has its own


def _without_autocast(router: nn.Module, *inputs: Any, **options: Any) -> Any:
    weight = next(router.parameters())
    with torch.autocast(weight.device.type, enabled=False):
        wide = [each.to(weight.dtype) if _is_floating(each) else each for each in inputs]
        return type(router).forward(router, *wide, **options)


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
