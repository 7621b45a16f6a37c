"""Looks into training without changing it: the size of gradient entries per parameter group, and how it scales."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from expertp.data import Dataset
from expertp.loop import TrainingLoop, deterministic, resolve_device
from expertp.model.transformer import MoETransformer, group_of
from expertp.spec import RunSpec


def gradient_rms(model: MoETransformer) -> dict[str, float]:
    """Return the root mean square of the gradient's entries, by parameter group."""
    squares: dict[str, float] = defaultdict(float)
    sizes: dict[str, int] = defaultdict(int)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        group = group_of(name)
        squares[group] += parameter.grad.double().square().sum().item()
        sizes[group] += parameter.numel()
    return {group: math.sqrt(squares[group] / sizes[group]) for group in squares}


def mean_gradient_rms(run: RunSpec, dataset: Dataset, first_step: int, last_step: int) -> dict[str, float]:
    """Train in memory and return each group's gradient RMS, averaged over steps first..last (geometric mean)."""
    logs: dict[str, list[float]] = defaultdict(list)

    def remember(model: MoETransformer) -> None:
        if loop.steps_done >= first_step:
            for group, size in gradient_rms(model).items():
                if size == 0:
                    raise ArithmeticError(f"the gradient of group '{group}' is zero; there is no scale to measure")
                logs[group].append(math.log(size))

    device = resolve_device(run)
    loop = TrainingLoop(run, dataset, device, on_gradients=remember)
    with deterministic(device):
        for step in range(last_step + 1):
            if loop.step().diverged:
                raise ArithmeticError(f"the run diverged at step {step}; its gradients say nothing about scale")
    return {group: math.exp(sum(values) / len(values)) for group, values in logs.items()}


def scaling_exponents(multipliers: Sequence[float], sizes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return per group the slope of log size against log multiplier, by least squares.

    >>> scaling_exponents([1, 2, 4], [{"router": 8.0}, {"router": 4.0}, {"router": 2.0}])
    {'router': -1.0}
    """
    x = torch.tensor(multipliers, dtype=torch.float64).log()
    x = x - x.mean()
    return {
        group: round(
            (x @ torch.tensor([entry[group] for entry in sizes], dtype=torch.float64).log() / (x @ x)).item(), 9
        )
        for group in sizes[0]
    }
