"""Description of a model as the rules see it: the role of every parameter, and the sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from expertp.adapters.family import Family, Gate
from expertp.adapters.roles import RoleRow


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


@dataclass(frozen=True)
class Description:
    """A model as the rules see it."""

    family: Family
    gate: Gate
    sizes: Sizes
    tensors: tuple[Tensor, ...]
    heads: frozenset[tuple[str, float]]
    config: Mapping[str, Any]
