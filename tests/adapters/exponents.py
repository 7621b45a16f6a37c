"""How the entries of gradients scale with the size of a model that is trained by the plan."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from adapters.tiny import build
from torch import Tensor

from expertp.adapters.adapted import adapt
from expertp.adapters.roles import pattern_of
from expertp.spec import BaseHPs

HPS = BaseHPs(lr=2**-9, init_std=0.1, adam_eps=1e-12)
EARLY, LATE = range(20, 40), range(80, 160)


@cache
def text() -> Tensor:
    """Return the bytes of some modules of Python."""
    files = sorted(Path(json.__file__).parents[1].glob("[a-d]*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def batch(step: int, rows: int = 12, length: int = 32) -> Tensor:
    places = torch.randint(len(text()) - length, (rows, 1), generator=torch.Generator().manual_seed(step))
    return text()[places + torch.arange(length)].long()


def gradient_sizes(
    model_type: str, base: Mapping[str, Any], target: Mapping[str, Any], seed: int, steps: range
) -> dict[str, float]:
    """Return the RMS of gradient entries at `steps` per name pattern, as if multipliers were in the forward pass."""
    model = build(model_type, **target)
    fitted = adapt(model, build(model_type, "meta", **base), HPS)
    fitted.init_(model, seed)
    optimizer = torch.optim.AdamW(fitted.param_groups(model))
    plans = {tensor.name: tensor for tensor in fitted.fit.tensors}
    squares: dict[str, list[float]] = {}
    for step in range(steps.stop):
        tokens = batch(1000 * seed + step)
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        if step in steps:
            for name, parameter in model.named_parameters():
                if name in plans and parameter.grad is not None:
                    entry = float(parameter.grad.square().mean()) * plans[name].fold ** 2
                    squares.setdefault(pattern_of(name), []).append(entry)
        optimizer.step()
        optimizer.zero_grad()
    return {pattern: math.sqrt(fmean(found)) for pattern, found in squares.items()}


def exponents(
    model_type: str,
    sizes: Sequence[Mapping[str, Any]],
    scales: Sequence[float],
    seeds: Sequence[int] = (0, 1, 2),
    steps: range = EARLY,
) -> dict[str, float]:
    """Return the slope of log(RMS of gradient entries) over log(scale) per name pattern; the first size is the base."""
    slopes: dict[str, float] = {}
    runs = [[gradient_sizes(model_type, sizes[0], size, seed, steps) for seed in seeds] for size in sizes]
    x = [math.log(scale) for scale in scales]
    for pattern in runs[0][0]:
        y = [fmean(math.log(run[pattern]) for run in at_size) for at_size in runs]
        slopes[pattern.removeprefix("model.layers.#.")] = sum(
            (a - fmean(x)) * (b - fmean(y)) for a, b in zip(x, y, strict=True)
        ) / sum((a - fmean(x)) ** 2 for a in x)
    return slopes
