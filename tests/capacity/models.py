"""Reference models for tests of capacity."""

from typing import Any

from torch import nn

from expertp.model.transformer import MoETransformer
from expertp.plan import plan
from expertp.spec import BaseHPs, ModelSpec


def reference(model: ModelSpec, **options: Any) -> MoETransformer:
    """Return a reference model with random weights."""
    built = MoETransformer(model, plan(model, model, BaseHPs(lr=0.01)).forward, **options)
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.02)
    return built
