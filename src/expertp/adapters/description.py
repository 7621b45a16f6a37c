"""Description of a model as the rules see it: the role of every parameter, and the sizes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from expertp.adapters.family import Family, Gate
from expertp.adapters.roles import RoleRow
from expertp.spec import Counts

ROUTED = ("expert_up", "expert_up_bias", "expert_down", "expert_down_bias")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model: of the axes of its tensors, its layers, and the experts that each token visits."""

    axes: Mapping[str, int]
    n_layer: int
    n_act: int

    @property
    def n_embd(self) -> int:
        """Width of the residual stream."""
        return self.axes["N"]

    @property
    def n_exp(self) -> int:
        """Experts per layer."""
        return self.axes["E"]

    @property
    def kappa(self) -> Fraction:
        """Sparsity: the fraction of experts that are active per token."""
        return Fraction(self.n_act, self.n_exp)


@dataclass(frozen=True)
class Tensor:
    """A parameter that is trained by Adam: its name, row and shape."""

    name: str
    row: RoleRow
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Description:
    """A model as the rules see it."""

    family: Family
    gate: Gate
    sizes: Sizes
    tensors: tuple[Tensor, ...]
    heads: frozenset[tuple[str, float]]
    config: Mapping[str, Any]

    def counts(self) -> Counts:
        """Count parameters, without selection biases; only routed experts can be idle."""
        total, idle = self._entries(), int((1 - self.sizes.kappa) * self._entries(*ROUTED))
        embedding = self._entries("embedding")
        return Counts(
            total=total,
            active=total - idle,
            non_embedding_total=total - embedding,
            non_embedding_active=total - embedding - idle,
            paper_total=total,
            paper_active=total - idle,
        )

    def flops_per_token(self, context: int) -> int:
        """Return training FLOPs per token: 6 per active parameter that multiplies, and attention scores and values."""
        axes = self.sizes.axes
        tied = 0 if self._entries("unembedding") else self._entries("embedding")
        attention = 6 * self.sizes.n_layer * (axes["Q"] + axes.get("O", axes["Q"])) * context
        return 6 * (self.counts().non_embedding_active + tied) + attention

    def _entries(self, *roles: str) -> int:
        """Count the entries of tensors with some roles; of all without roles."""
        return sum(tensor.numel for tensor in self.tensors if not roles or tensor.row.role in roles)
