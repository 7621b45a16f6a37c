"""A model of transformers by its plan: what `expertp plan --hf ... --json` has written, without transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from expertp.adapters.description import Description, Sizes, Tensor
from expertp.adapters.families import FAMILIES
from expertp.adapters.fit import TensorPlan
from expertp.adapters.keys import check_family
from expertp.adapters.roles import match_rows
from expertp.spec import Counts, Model
from expertp.util.records import read_record


class PlannedModelSpec(Model):
    """The target of a plan; it can be counted, but not built or grown."""

    marker: ClassVar[str] = "planned"
    path_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {"planned": ()}

    planned: str = Field(description="path of the plan of a model of transformers, as JSON")
    context: int = Field(1024, gt=0, description="tokens per sequence")

    def described(self) -> Description:
        """Return the roles and shapes of all parameters."""
        return _described(self.planned, os.stat(self.planned).st_mtime_ns)

    @property
    def n_embd(self) -> int:
        """Width of the residual stream."""
        return self.described().sizes.n_embd

    @property
    def n_layer(self) -> int:
        """Depth."""
        return self.described().sizes.n_layer

    @property
    def n_exp(self) -> int:
        """Experts per layer."""
        return self.described().sizes.n_exp

    @property
    def n_act(self) -> int:
        """Experts per token."""
        return self.described().sizes.n_act

    @property
    def n_hid(self) -> int:
        """Hidden units of one routed expert."""
        return self.described().sizes.axes["H"]

    @property
    def alpha_ffn(self) -> float:
        """Hidden units of a routed expert divided by the width."""
        return self.n_hid / self.n_embd

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self.described().sizes.axes["V"]

    @property
    def is_moe(self) -> bool:
        """All families have experts."""
        return True

    @property
    def variant(self) -> str:
        """Name of the family."""
        return self.described().family.model_type

    def counts(self) -> Counts:
        """Count parameters, as for a model that is given by its configuration."""
        return self.described().counts()

    def flops_per_token(self) -> int:
        """Return training FLOPs per token, forward and backward."""
        return self.described().flops_per_token(self.context)


@dataclass(frozen=True)
class _Plan:
    """What the file of a plan says of its target."""

    family: str
    target: Sizes
    tensors: tuple[TensorPlan, ...]


@lru_cache(maxsize=16)
def _described(path: str, changed_at: int) -> Description:
    """Return the description in a file, which is read once, and again after a change."""
    del changed_at
    plan = read_record(Path(path), _Plan, "write it again with expertp plan --hf BASE TARGET --json")
    family = FAMILIES[check_family(plan.family)]
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    rows = match_rows(shapes, family.rows, family.model_type)
    tensors = tuple(Tensor(name, row, shapes[name]) for name, row in rows.items())
    # A plan does not have the gate, the heads and the configuration; no count depends on them.
    return Description(family, "mean", plan.target, tensors, heads=frozenset(), config={})
