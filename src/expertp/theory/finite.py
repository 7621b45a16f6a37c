"""Finite networks trained by full-batch gradient descent, many seeds at once: updates by hand, and by autograd.

    h^0     = D^{-1/2} W0 x                        h_k^l = N^{-1/2} W1_k h^l            p_k^l = N^{-1} r_k . h^l
    h^{l+1} = h^l + sqrt(N)/(L n_hid E) sum_k sigma_k W2_k phi(h_k^l)                      f = w . h^L / (gamma0 N)

    g^L = w;   z_k = N^{-1/2} W2_k^T g^{l+1};   g_k = phi'(h_k) z_k;   A_k = z_k . phi(h_k) / n_hid
    g^l = g^{l+1} + sqrt(N)/(L n_hid E) sum_k sigma_k W1_k^T g_k + (L E)^{-1} sum_k sigma'_k A_k r_k

    theta -= eta * multiplier * gradient;   W0, w: gamma0^2 N;   W1, W2: gamma0^2 L n_hid E;   r: gamma0^2 N L E

Shapes: S seed, L layer, E expert, M neuron of an expert (n_hid of them), N neuron of the stream,
D input, P datum, T step.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from expertp.errors import InputError
from expertp.theory.gates import Gates, balance, open_gates, require_whole
from expertp.theory.problem import Data, Problem, make_data
from expertp.theory.sampling import midpoints
from expertp.theory.trajectory import Snapshot, Tick, Trajectory, record, silent

Frame = Literal["gaussian", "orthonormal"]
Biases = Literal["drawn", "stratified"]


# A size law may be asked about networks that nobody can train.
LARGEST_NETWORK = 10**12


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Size:
    """Size of a network: stream width N, experts per layer E, neurons per expert n_hid.

    >>> str(Size(64, 32, 16))
    'N 64, E 32, n_hid 16'
    """

    N: Annotated[int, Field(ge=1, le=LARGEST_NETWORK)]
    E: Annotated[int, Field(ge=1, le=LARGEST_NETWORK)]
    n_hid: Annotated[int, Field(ge=1, le=LARGEST_NETWORK)]

    def __str__(self) -> str:
        return f"N {self.N}, E {self.E}, n_hid {self.n_hid}"

    def parameters(self, problem: Problem) -> int:
        """Return the number of weights."""
        N, E, M = self.N, self.E, self.n_hid
        return N * (problem.D + 1) + problem.L * E * (2 * N * M + N)

    def alpha_star(self, problem: Problem) -> float:
        """Return N / (n_hid E L)."""
        return self.N / (self.n_hid * self.E * problem.L)


@dataclass(eq=False)
class Weights:
    """The weights of S networks."""

    W0_SND: Float[Tensor, "S N D"]
    w_SN: Float[Tensor, "S N"]
    W1_SLEMN: Float[Tensor, "S L E M N"]
    W2_SLNEM: Float[Tensor, "S L N E M"]
    r_SLEN: Float[Tensor, "S L E N"]
    b_SLE: Float[Tensor, "S L E"]

    def trained(self, problem: Problem) -> dict[str, Tensor]:
        """Return the weights that gradient descent trains, by name."""
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
    """Return the initial weights of one network per seed.

    Args:
        problem: supplies D, L and the distribution of the biases.
        size: size of the networks.
        seeds: one network per seed.
        frame: gaussian: iid weights; orthonormal: the D columns of W0 and w are orthogonal with length sqrt(N), so
            that the initial stream kernels equal those of the limit.
        biases: drawn: iid; stratified: quantiles of the distribution in random order.
        dtype: dtype of all weights.
    """
    if frame == "orthonormal" and size.N < problem.D + 1:
        raise InputError(f"frame=orthonormal needs N >= D + 1 = {problem.D + 1}, not {size.N}; use a larger N")
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
        probability = midpoints(E)[torch.stack([torch.randperm(E, generator=rng) for _ in range(L)])]
    else:
        probability = torch.rand(L, E, generator=rng, dtype=torch.float64)
    router = problem.router_init_eps * math.sqrt(N) * normal(L, E, N)
    return stream[:, :D], stream[:, D], normal(L, E, M, N), normal(L, N, E, M), router, problem.bias_at(probability)


@dataclass(eq=False)
class Layer:
    """The fields of one MoE layer at one step."""

    h_k_SEMP: Float[Tensor, "S E M P"]
    phi_SEMP: Float[Tensor, "S E M P"]
    p_SEP: Float[Tensor, "S E P"]
    gate: Gates
    z_SEMP: Float[Tensor, "S E M P"]
    g_k_SEMP: Float[Tensor, "S E M P"]
    A_SEP: Float[Tensor, "S E P"]


@dataclass(eq=False)
class Fields:
    """The fields of S networks at one step: h^0..h^L, g^0..g^L, the L layers, f and Delta."""

    h_SNP: list[Float[Tensor, "S N P"]]
    g_SNP: list[Float[Tensor, "S N P"]]
    layers: list[Layer]
    f_SP: Float[Tensor, "S P"]
    delta_SP: Float[Tensor, "S P"]


def passes(problem: Problem, weights: Weights, X_PD: Float[Tensor, "P D"], y_P: Float[Tensor, "P"]) -> Fields:
    """Return the fields of one forward and backward pass."""
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

    g = [weights.w_SN.unsqueeze(-1).expand_as(h[L]).clone()]  # descend changes w in place
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


def descend(problem: Problem, weights: Weights, at: Fields, X_PD: Float[Tensor, "P D"]) -> None:
    """Take one step of gradient descent by hand-written gradients, and one step of the bias updates, in place."""
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


def autograd_descend(problem: Problem, weights: Weights, X_PD: Float[Tensor, "P D"], y_P: Float[Tensor, "P"]) -> None:
    """Take the same step by automatic differentiation of the loss, in place."""
    L, E, M, N = weights.W1_SLEMN.shape[1:]
    stream, expert = problem.gamma0**2 * N, problem.gamma0**2 * L * M * E
    multipliers = {"W0_SND": stream, "w_SN": stream, "W1_SLEMN": expert, "W2_SLNEM": expert, "r_SLEN": stream * L * E}
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


def train(problem: Problem, weights: Weights, data: Data, by_autograd: bool = False) -> Iterator[Fields]:
    """Yield the fields before each step; updates the weights in place."""
    X_PD, y_P = (torch.from_numpy(each).to(weights.w_SN.dtype) for each in (data.X, data.y))
    for step in range(problem.T):
        at = passes(problem, weights, X_PD, y_P)
        yield at
        if step + 1 == problem.T:
            return
        if by_autograd:
            autograd_descend(problem, weights, X_PD, y_P)
        else:
            descend(problem, weights, at, X_PD)


def simulate(
    problem: Problem,
    size: Size,
    seeds: Sequence[int] = range(4),
    frame: Frame = "gaussian",
    biases: Biases = "drawn",
    dtype: torch.dtype = torch.float64,
    kernels: bool = False,
    together: int = 4,
    tick: Tick = silent,
) -> Trajectory:
    """Train finite networks of one size and return their trajectory.

    Args:
        problem: the training problem. `n_hid` and `alpha_star` describe the limit and are ignored here.
        size: size of the networks.
        seeds: one network per seed.
        frame: see `draw_weights`.
        biases: see `draw_weights`.
        dtype: dtype of the computation.
        kernels: whether to return the stream kernels, averaged over seeds.
        together: number of networks trained at once.
        tick: progress callback.

    >>> networks = simulate(Problem(P=4, T=5), Size(N=32, E=8, n_hid=8), seeds=range(2))
    >>> networks.f_each.shape, bool(networks.loss[-1] < networks.loss[0])
    ((2, 4, 5), True)
    """
    require_whole(problem, size.E, "E")
    data = make_data(problem)

    def run(some: Sequence[int]) -> Iterator[Snapshot]:
        weights = draw_weights(problem, size, some, frame, biases, dtype)
        for at in train(problem, weights, data):
            p, gates = [layer.p_SEP for layer in at.layers], [layer.gate for layer in at.layers]
            yield Snapshot(at.f_SP, p, gates, weights.b_SLE, *((at.h_SNP, at.g_SNP) if kernels else ()))

    runs = (run(seeds[first : first + together]) for first in range(0, len(seeds), together))
    return record(problem, data.y, len(seeds), runs, tick, width=size.N)
