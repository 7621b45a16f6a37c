"""Samples of the experts' initial state: nodes of b(0), and Gaussian vectors of their neurons."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from expertp.errors import InputError
from expertp.theory.gates import is_whole
from expertp.theory.problem import Problem


@dataclass(frozen=True)
class Sampling:
    """Sample sizes of a solver.

    Args:
        nodes: number Q of values of b(0), which are midpoint quantiles; random draws would have a far larger error.
        neurons: neurons per node; must equal `n_hid` if that is finite.
        replicates: independent repetitions.
        seed: seed of the first replicate.
        dtype: dtype of the computation.
    """

    nodes: int
    neurons: int
    replicates: int = 4
    seed: int = 0
    dtype: torch.dtype = torch.float32


def default_sampling(problem: Problem, particles: int = 2**16, replicates: int = 4) -> Sampling:
    """Return a sampling with about `particles` neurons per layer.

    At n_hid = inf, soft gates get 64 nodes and hard gates 128; at finite n_hid every node is one expert.

    >>> sampling = default_sampling(Problem())
    >>> sampling.nodes, sampling.neurons
    (64, 1024)
    """
    if math.isfinite(problem.n_hid):
        neurons = int(problem.n_hid)
        nodes = max(1, particles // neurons)
    else:
        nodes = {"soft0": 1, "soft": 64, "hard": 128}[problem.gate]
        neurons = max(2, particles // nodes)
        neurons += neurons % 2
    if problem.gate == "hard":  # the next number of nodes with whole kappa * nodes
        nodes = next((n for n in range(nodes, 2 * nodes + 1000) if is_whole(problem.kappa * n)), nodes)
    return Sampling(nodes, neurons, replicates)


def midpoints(n: int) -> Float[Tensor, "n"]:
    """Return the midpoints of n equal parts of [0, 1].

    >>> midpoints(2).tolist()
    [0.25, 0.75]
    """
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def quasi_random(
    nodes: int, neurons: int, d: int, seed: int
) -> tuple[Float[Tensor, "{nodes} {neurons} {d}"], Float[Tensor, "{nodes} {neurons} {d}"]]:
    """Return standard normal vectors zeta and zeta': scrambled Sobol points, each used with both signs of zeta'."""
    if neurons % 2:
        raise InputError(f"neurons={neurons}: must be even, every point is used with both signs of zeta'")
    engine = torch.quasirandom.SobolEngine(2 * d, scramble=True, seed=seed)
    points = engine.draw(nodes * neurons // 2, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    zeta, zeta_prime = torch.special.ndtri(points).split(d, dim=1)
    both = torch.stack([zeta_prime, -zeta_prime], 1)
    return zeta.repeat_interleave(2, 0).reshape(nodes, neurons, d), both.reshape(nodes, neurons, d)
