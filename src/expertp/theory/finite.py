"""Finite networks trained by full-batch gradient descent: updates written by hand, many seeds at once; and by autograd.

    h^0     = D^{-1/2} W0 x                        h_k^l = N^{-1/2} W1_k h^l            p_k^l = N^{-1} r_k . h^l
    h^{l+1} = h^l + sqrt(N)/(L Ne E) sum_k sigma_k W2_k phi(h_k^l)                      f = w . h^L / (gamma0 N)

Shapes: S seed, L layer, E expert, M neuron of an expert, N neuron of the stream, D input, P datum, T step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from expertp.errors import InputError
from expertp.theory.gates import Gates, balance, load_of, open_gates, whole_share
from expertp.theory.problem import Data, Problem, make_data
from expertp.theory.progress import Tick, silent
from expertp.theory.sampling import middles
from expertp.theory.trajectory import Trajectory, require_finite

Frame = Literal["gaussian", "orthonormal"]
Biases = Literal["drawn", "stratified"]


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Size:
    """How large a network is: width of the stream, experts in a layer, neurons in an expert.

    >>> str(Size(64, 32, 16))
    'N 64, E 32, Ne 16'
    """

    N: Annotated[int, Field(ge=1)]
    E: Annotated[int, Field(ge=1)]
    n_hid: Annotated[int, Field(ge=1)]

    def __str__(self) -> str:
        return f"N {self.N}, E {self.E}, Ne {self.n_hid}"

    def parameters(self, problem: Problem) -> int:
        """Return how many weights it has."""
        N, E, M = self.N, self.E, self.n_hid
        return N * (problem.D + 1) + problem.L * E * (2 * N * M + N)

    def alpha_star(self, problem: Problem) -> float:
        """Return N / (n_hid E L)."""
        return self.N / (self.n_hid * self.E * problem.L)


@dataclass(eq=False)
class Weights:
    """The weights of S networks; those of all experts of a layer lie side by side."""

    W0_SND: Tensor
    w_SN: Tensor
    W1_SLEMN: Tensor
    W2_SLNEM: Tensor
    r_SLEN: Tensor
    b_SLE: Tensor

    def trained(self, problem: Problem) -> dict[str, Tensor]:
        """Return what gradient descent moves, by name."""
        names = [field.name for field in fields(self) if field.name != "b_SLE"]
        return {name: getattr(self, name) for name in names if problem.train_embed or name != "W0_SND"}


def draw_weights(
    problem: Problem,
    size: Size,
    seeds: Sequence[int],
    frame: Frame = "gaussian",
    biases: Biases = "drawn",
    dtype: torch.dtype = torch.float64,
) -> Weights:
    """Return weights at the start, each seed's own.

    Args:
        problem: its dimension, depth and law of biases.
        size: of the networks.
        seeds: one network each.
        frame: orthonormal: columns of W0 and w as far as they act on the data are made orthogonal, with length sqrt(N);
            the kernels at the start are then those of the limit.
        biases: stratified: quantiles of their law, in random order.
        dtype: of all weights.
    """
    if frame == "orthonormal" and size.N < problem.D + 1:
        raise InputError(f"an orthonormal frame of D + 1 = {problem.D + 1} directions needs N >= that, not {size.N}")
    drawn = [_draw_one(problem, size, torch.Generator().manual_seed(seed), frame, biases) for seed in seeds]
    return Weights(*(torch.stack(each).to(dtype) for each in zip(*drawn, strict=True)))


def _draw_one(problem: Problem, size: Size, rng: torch.Generator, frame: str, biases: str) -> tuple[Tensor, ...]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    L, D, N, E, M = problem.L, problem.D, size.N, size.E, size.n_hid
    stream = normal(N, D + 1)
    if frame == "orthonormal":
        stream = torch.linalg.qr(stream).Q * math.sqrt(N)
    if biases == "stratified":
        share = middles(E)[torch.stack([torch.randperm(E, generator=rng) for _ in range(L)])]
    else:
        share = torch.rand(L, E, generator=rng, dtype=torch.float64)
    router = problem.router_init_eps * math.sqrt(N) * normal(L, E, N)
    return stream[:, :D], stream[:, D], normal(L, E, M, N), normal(L, N, E, M), router, problem.bias_at(share)


@dataclass(eq=False)
class Layer:
    """The fields of one MoE layer at one step."""

    h_k_SEMP: Tensor
    phi_SEMP: Tensor
    p_SEP: Tensor
    gate: Gates
    z_SEMP: Tensor
    g_k_SEMP: Tensor
    A_SEP: Tensor


@dataclass(eq=False)
class Fields:
    """All fields of S networks at one step: the stream forward and backward, L + 1 each, and the layers between."""

    h_SNP: list[Tensor]
    g_SNP: list[Tensor]
    layers: list[Layer]
    f_SP: Tensor
    delta_SP: Tensor


def passes(problem: Problem, weights: Weights, X_PD: Tensor, y_P: Tensor) -> Fields:
    """Return the fields of a forward and a backward pass."""
    phi, L, E, M, N, S = problem.activation, problem.L, *weights.W1_SLEMN.shape[2:], len(weights.w_SN)
    h = [weights.W0_SND @ X_PD.T / math.sqrt(problem.D)]
    before = []
    for l in range(L):
        h_k = (weights.W1_SLEMN[:, l].reshape(S, E * M, N) @ h[l] / math.sqrt(N)).reshape(S, E, M, -1)
        p = weights.r_SLEN[:, l] @ h[l] / N
        gate, phi_k = open_gates(problem, p, weights.b_SLE[:, l]), phi.value(h_k)
        out = (gate.sigma.unsqueeze(2) * phi_k).reshape(S, E * M, -1)
        h.append(h[l] + math.sqrt(N) / (L * M * E) * weights.W2_SLNEM[:, l].reshape(S, N, E * M) @ out)
        before.append((h_k, phi_k, p, gate))
    f = torch.einsum("sn,snp->sp", weights.w_SN, h[L]) / (problem.gamma0 * N)

    g = [weights.w_SN.unsqueeze(-1).expand_as(h[L]).clone()]  # a step changes w in place
    layers: list[Layer] = []
    for l in reversed(range(L)):
        h_k, phi_k, p, gate = before[l]
        z = (weights.W2_SLNEM[:, l].reshape(S, N, E * M).mT @ g[0] / math.sqrt(N)).reshape(S, E, M, -1)
        g_k, A = phi.slope(h_k) * z, (z * phi_k).mean(2)
        back = (gate.sigma.unsqueeze(2) * g_k).reshape(S, E * M, -1)
        through_experts = math.sqrt(N) / (L * M * E) * weights.W1_SLEMN[:, l].reshape(S, E * M, N).mT @ back
        through_router = weights.r_SLEN[:, l].mT @ (gate.slope * A) / (L * E)
        g.insert(0, g[0] + through_experts + through_router)
        layers.insert(0, Layer(h_k, phi_k, p, gate, z, g_k, A))
    return Fields(h, g, layers, f, y_P - f)


def descend(problem: Problem, weights: Weights, at: Fields, X_PD: Tensor) -> None:
    """Take one step of gradient descent, with the multipliers that give the limit; and the biases' own step."""
    c, delta, N = problem.c, at.delta_SP, weights.w_SN.shape[-1]
    for l, layer in enumerate(at.layers):
        S, E, M, _ = layer.h_k_SEMP.shape
        weighed = (delta.unsqueeze(1) * layer.gate.sigma).unsqueeze(2)
        up, down = (weighed * layer.g_k_SEMP).reshape(S, E * M, -1), (weighed * layer.phi_SEMP).reshape(S, E * M, -1)
        weights.W1_SLEMN[:, l] += (c / math.sqrt(N) * up @ at.h_SNP[l].mT).reshape(S, E, M, N)
        weights.W2_SLNEM[:, l] += (c / math.sqrt(N) * at.g_SNP[l + 1] @ down.mT).reshape(S, N, E, M)
        weights.r_SLEN[:, l] += c * (delta.unsqueeze(1) * layer.gate.slope * layer.A_SEP) @ at.h_SNP[l].mT
        balance(problem, weights.b_SLE[:, l], layer.gate)
    weights.w_SN += c * torch.einsum("sp,snp->sn", delta, at.h_SNP[-1])
    if problem.train_embed:
        weights.W0_SND += c / math.sqrt(problem.D) * (delta.unsqueeze(1) * at.g_SNP[0]) @ X_PD


def autograd_descend(problem: Problem, weights: Weights, X_PD: Tensor, y_P: Tensor) -> None:
    """Take the same step by automatic differentiation of the loss: theta -= eta * multiplier * gradient."""
    L, E, M, N = weights.W1_SLEMN.shape[1:]
    gamma0_2 = problem.gamma0**2
    multipliers = {
        "W0_SND": gamma0_2 * N,
        "w_SN": gamma0_2 * N,
        "W1_SLEMN": gamma0_2 * L * M * E,
        "W2_SLNEM": gamma0_2 * L * M * E,
        "r_SLEN": gamma0_2 * N * L * E,
    }
    trained = weights.trained(problem)
    for weight in trained.values():
        weight.requires_grad_(True)
    at = passes(problem, weights, X_PD, y_P)
    loss = (at.delta_SP**2).sum() / (2 * problem.P)
    gradients = torch.autograd.grad(loss, list(trained.values()))
    with torch.no_grad():
        for (name, weight), gradient in zip(trained.items(), gradients, strict=True):
            weight.requires_grad_(False)
            weight -= problem.eta * multipliers[name] * gradient
        for l, layer in enumerate(at.layers):
            balance(problem, weights.b_SLE[:, l], layer.gate)


def train(problem: Problem, weights: Weights, data: Data) -> Iterator[Fields]:
    """Yield the fields before each step; the weights are changed in place."""
    X_PD, y_P = (torch.from_numpy(each).to(weights.w_SN.dtype) for each in (data.X, data.y))
    for step in range(problem.T):
        at = passes(problem, weights, X_PD, y_P)
        yield at
        if step + 1 < problem.T:
            descend(problem, weights, at, X_PD)


def simulate(
    problem: Problem,
    size: Size,
    seeds: Sequence[int],
    frame: Frame = "gaussian",
    biases: Biases = "drawn",
    dtype: torch.dtype = torch.float64,
    kernels: bool = False,
    together: int = 4,
    tick: Tick = silent,
) -> Trajectory:
    """Train networks of one size and return their trajectory.

    Args:
        problem: what they learn; its `n_hid` and `alpha_star` are those of the limit and play no part here.
        size: how large they are.
        seeds: one network each.
        frame: see `draw_weights`.
        biases: see `draw_weights`.
        dtype: of the computation.
        kernels: whether the kernels of the stream are wanted, mean over seeds.
        together: how many networks are trained at once.
        tick: told steps done and steps in all.
    """
    whole_share(problem, size.E, "E")
    data, found = make_data(problem), []
    total = problem.T * len(seeds)
    for first in range(0, len(seeds), together):
        some = seeds[first : first + together]
        weights, records = draw_weights(problem, size, some, frame, biases, dtype), []
        streams: list[tuple[Tensor, Tensor]] = []
        for step, at in enumerate(train(problem, weights, data)):
            require_finite(problem, at.f_SP, step)
            records.append(
                (
                    at.f_SP,
                    torch.stack([layer.p_SEP for layer in at.layers], 1),
                    torch.stack([load_of(problem, layer.gate) for layer in at.layers], 1),
                    weights.b_SLE.clone(),
                )
            )
            if kernels:
                streams.append((torch.stack(at.h_SNP, 1), torch.stack(at.g_SNP, 1)))
            tick(first * problem.T + (step + 1) * len(some), total)
        stacked = [torch.stack(each, -1).double().numpy() for each in zip(*records, strict=True)]
        of_stream = [_kernel(torch.stack(each, -1)) for each in zip(*streams, strict=True)]
        found.append((*stacked, *of_stream))
    f, p, loads, b, *C = (np.concatenate(each) for each in zip(*found, strict=True))
    return Trajectory(f.mean(0), f, data.y, p, loads, b, *(each.mean(0) for each in C))


def _kernel(stream_SLNPT: Tensor) -> np.ndarray:
    """Return <h h'> [S, L, P, T, P, T] over neurons."""
    S, L, N, P, T = stream_SLNPT.shape
    flat = stream_SLNPT.reshape(S, L, N, P * T)
    return (flat.mT @ flat / N).reshape(S, L, P, T, P, T).double().numpy()
