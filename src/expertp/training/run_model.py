"""The model of a run in torch: what the training loop, checkpoints, sampling and probes need of it.

The reference model and the models of other families are two implementations; `build.py` chooses.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer

from expertp.model.cache import KeyValueCache
from expertp.spec import Dtype

Quantity = Literal["size", "effective", "propagated"]
# (module, quantity) -> root mean square
Measured = Mapping[tuple[str, Quantity], float]


class BatchLoss(NamedTuple):
    """Mean cross-entropy of a batch, loads per MoE layer, and the weighted balance loss; L is 0 in a dense model."""

    loss: Float[Tensor, ""]
    load_LE: Int[Tensor, "L E"]
    auxiliary: Float[Tensor, ""]


@runtime_checkable
class Probe(Protocol):
    """Sizes of the activations of a model on a fixed batch, and of their changes since the probe was made."""

    def measure(self) -> Measured:
        """Return sizes by module and quantity."""


class RunModel(ABC):
    """The model of a run.

    Args:
        module: the model itself; its weights are those of `init_` once that was called.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @abstractmethod
    def init_(self, seed: int) -> None:
        """Initialize every parameter in place according to the plan."""

    @abstractmethod
    def param_groups(self) -> list[dict[str, Any]]:
        """Return torch parameter groups with the settings of the plan."""

    @abstractmethod
    def group_of(self, name: str) -> str:
        """Return the parameter group of a parameter."""

    @abstractmethod
    def loss(self, tokens_BS: Int[Tensor, "B S"], targets_BS: Int[Tensor, "B S"]) -> BatchLoss:
        """Return the loss of a batch."""

    @abstractmethod
    def next_logits(self, tokens_BS: Int[Tensor, "B S"], cache: KeyValueCache | None = None) -> Float[Tensor, "B V"]:
        """Return the logits of the token after the last one; with a cache, the tokens follow those that it holds."""

    def empty_cache(self) -> KeyValueCache | None:
        """Return a cache for `next_logits`; None if the model computes all tokens afresh."""
        return None

    def prepare_generation(self, dtype: Dtype) -> None:
        """Make the model ready to generate in a compute dtype."""
        del dtype
        self.module.eval()

    @abstractmethod
    def clip_(self, optimizer: Optimizer, max_norm: float) -> None:
        """Clip the gradients to a global norm."""

    @abstractmethod
    def balance_(self, load_LE: Int[Tensor, "L E"]) -> None:
        """Update the expert biases after an optimizer step, given the loads of the step."""

    @abstractmethod
    def bias_ranges(self) -> Sequence[float]:
        """Return the largest minus the smallest expert bias per MoE layer; empty without biases."""

    @abstractmethod
    def probe(self, tokens_BS: Int[Tensor, "B S"]) -> Probe:
        """Return a probe that compares the model with how it is now."""

    def weights(self) -> dict[str, Tensor]:
        """Return parameters and expert biases by name; a tied parameter has its first name only."""
        return {name: value.contiguous() for name, value in self.state().items()}

    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Restore what `weights` returned."""
        own = self.state()
        if own.keys() != weights.keys():
            raise RuntimeError(f"other tensors than those of the model: {sorted(own.keys() ^ weights.keys())[0]}")
        with torch.no_grad():
            for name, value in own.items():
                if value.shape != weights[name].shape:
                    raise RuntimeError(f"{name} has another shape than that of the model")
                value.copy_(weights[name])

    def state(self) -> dict[str, Tensor]:
        """Return parameters and expert biases themselves, each under its first name."""
        first: dict[int, str] = {}
        state = self.module.state_dict(keep_vars=True)
        names = [name for name, value in state.items() if first.setdefault(id(value), name) == name]
        return {name: state[name].detach() for name in names}
