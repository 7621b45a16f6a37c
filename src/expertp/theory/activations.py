"""The experts' nonlinearity phi with its first two derivatives, and the derivative of the gate's sigmoid."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Activation:
    """A smooth elementwise function with its first (`slope`) and second (`bend`) derivative."""

    value: Function
    slope: Function
    bend: Function


def _normal_density(x: Tensor) -> Tensor:
    return torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _normal_cdf(x: Tensor) -> Tensor:
    return (1 + torch.erf(x / math.sqrt(2))) / 2


def _tanh_slope(x: Tensor) -> Tensor:
    return 1 - torch.tanh(x) ** 2


# Only smooth functions: the response functions R_g contain the second derivative.
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": Activation(
        torch.nn.functional.gelu,
        lambda x: _normal_cdf(x) + x * _normal_density(x),
        lambda x: (2 - x * x) * _normal_density(x),
    ),
    "tanh": Activation(torch.tanh, _tanh_slope, lambda x: -2 * torch.tanh(x) * _tanh_slope(x)),
    "erf": Activation(
        torch.erf,
        lambda x: 2 / math.sqrt(math.pi) * torch.exp(-x * x),
        lambda x: -4 / math.sqrt(math.pi) * x * torch.exp(-x * x),
    ),
    "linear": Activation(lambda x: x, torch.ones_like, torch.zeros_like),
}


def sigmoid_slope(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the derivative of the sigmoid, s (1 - s)."""
    value = torch.sigmoid(x)
    return value * (1 - value)
