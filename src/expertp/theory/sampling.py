"""How finely a solver samples the law of the experts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from expertp.errors import InputError
from expertp.theory.problem import Problem


@dataclass(frozen=True)
class Sampling:
    """How finely the law of the experts is sampled.

    Args:
        nodes: values of b(0), Q: quantiles in the middle of equal shares of its law, which err far less than draws.
        neurons: of each node; with a finite `n_hid` they are that many.
        replicates: independent repetitions.
        seed: of the first one.
        dtype: of the computation.
    """

    nodes: int
    neurons: int
    replicates: int = 4
    seed: int = 0
    dtype: torch.dtype = torch.float32


def default_sampling(problem: Problem, particles: int = 2**16, replicates: int = 4) -> Sampling:
    """Return a sampling with about so many particles: 64 nodes for soft gates, 128 for hard ones, or whole experts."""
    if math.isfinite(problem.n_hid):
        neurons = int(problem.n_hid)
        nodes = max(1, particles // neurons)
    else:
        nodes = {"soft0": 1, "soft": 64, "hard": 128}[problem.gate]
        neurons = max(2, particles // nodes)
    if problem.gate == "hard":  # the next number of nodes of which kappa is whole
        nodes = next((n for n in range(nodes, 2 * nodes + 1000) if _is_whole(problem.kappa * n)), nodes)
    return Sampling(nodes, neurons + neurons % 2 * math.isinf(problem.n_hid), replicates)


def _is_whole(value: float) -> bool:
    return round(value) > 0 and abs(value - round(value)) < 1e-9


def middles(n: int) -> Tensor:
    """Return the middles of n equal shares of 1.

    >>> middles(2).tolist()
    [0.25, 0.75]
    """
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def quasi_random(nodes: int, neurons: int, d: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return normal vectors zeta, zeta' [nodes, neurons, d]: scrambled Sobol points, each with both signs of zeta'."""
    if neurons % 2:
        raise InputError(f"neurons={neurons}: must be even, every point is used with both signs of zeta'")
    engine = torch.quasirandom.SobolEngine(2 * d, scramble=True, seed=seed)
    points = engine.draw(nodes * neurons // 2, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    zeta, zeta_prime = torch.special.ndtri(points).split(d, dim=1)
    both = torch.stack([zeta_prime, -zeta_prime], 1)
    return zeta.repeat_interleave(2, 0).reshape(nodes, neurons, d), both.reshape(nodes, neurons, d)
