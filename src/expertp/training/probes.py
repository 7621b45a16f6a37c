"""RMS of gradients during training, which they do not change."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from expertp.data import Dataset
from expertp.spec import RunSpec
from expertp.training.loop import TrainingLoop, deterministic, resolve_device
from expertp.training.run_model import RunModel
from expertp.util.fits import fit_slope


def gradient_rms(model: RunModel) -> dict[str, float]:
    """Return the RMS gradient entry by parameter group."""
    squares: dict[str, float] = defaultdict(float)
    sizes: dict[str, int] = defaultdict(int)
    for name, parameter in model.module.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        group = model.group_of(name)
        squares[group] += parameter.grad.double().square().sum().item()
        sizes[group] += parameter.numel()
    return {group: math.sqrt(squares[group] / sizes[group]) for group in squares}


def mean_gradient_rms(run: RunSpec, dataset: Dataset, first_step: int, last_step: int) -> dict[str, float]:
    """Train in memory and return the gradient RMS by group: the geometric mean over steps first to last."""
    logs: dict[str, list[float]] = defaultdict(list)

    def remember(model: RunModel) -> None:
        if loop.steps_done >= first_step:
            for group, size in gradient_rms(model).items():
                if size == 0:
                    raise ArithmeticError(f"the gradient of group '{group}' is zero, so it has no scaling exponent")
                logs[group].append(math.log(size))

    device = resolve_device(run.train)
    loop = TrainingLoop(run, dataset, device, on_gradients=remember)
    with deterministic(device):
        for step in range(last_step + 1):
            if loop.step().diverged:
                raise ArithmeticError(f"the run diverged at step {step}; its gradients have no scaling exponent")
    return {group: math.exp(sum(values) / len(values)) for group, values in logs.items()}


def scaling_exponents(multipliers: Sequence[float], sizes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return by group the least-squares slope of log size against log multiplier.

    >>> scaling_exponents([1, 2, 4], [{"router": 8.0}, {"router": 4.0}, {"router": 2.0}])
    {'router': -1.0}
    """
    return {
        group: round(fit_slope((m, entry[group]) for m, entry in zip(multipliers, sizes, strict=True)), 9)
        for group in sizes[0]
    }
