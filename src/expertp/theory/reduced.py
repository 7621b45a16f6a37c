"""Reduced form of the limit, exact at alpha_star = 0: a mean-field network of stream width d = rank(X) + 1.

    H^0 = U^T x / sqrt(D), U(0) = [I_D 0];   h_k = v1.H;   p = rho.H;   f = om.H^L / gamma0, om(0) = e_d
    H^{l+1} = H^l + L^{-1} [sigma {phi(h_k) v2}]
    G^L = om;   z_k = v2.G^{l+1};   A = {z phi};   g_k = phi'(h_k) z_k
    G^l = G^{l+1} + L^{-1} [sigma {g_k v1}] + L^{-1} [sigma' A rho]
    v1 += c S Delta sigma g_k H;   v2 += c S Delta sigma phi G^{l+1};   rho += c S Delta sigma' A H
    om += c S Delta H^L;   U += c S Delta x G^0 / sqrt(D)

S is the sum over data. [ ] is the mean over nodes, one per quantile of b(0), which represent the experts; { } is the
mean over the neurons of a node. No kernel of size (P T)^2 is stored, and memory does not grow with T. At n_hid = inf
the neurons of a node are quasi-random (scrambled Sobol points, each with both signs of v2). At finite n_hid each node
is one random expert with n_hid neurons. The spread between replicates is the Monte-Carlo error.

Shapes: L layer, Q node, M neuron of a node, d direction of the stream, P datum.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from expertp.errors import InputError
from expertp.theory.gates import Gates, balance, open_gates, require_whole
from expertp.theory.problem import Data, Problem, make_data
from expertp.theory.sampling import Sampling, default_sampling, midpoints, quasi_random
from expertp.theory.trajectory import Snapshot, Tick, Trajectory, record, silent


@dataclass(eq=False)
class Particles:
    """The state of the reduced network."""

    U_Dd: Float[Tensor, "D d"]
    om_d: Float[Tensor, "d"]
    v1_LQMd: Float[Tensor, "L Q M d"]
    v2_LQMd: Float[Tensor, "L Q M d"]
    rho_LQd: Float[Tensor, "L Q d"]
    b_LQ: Float[Tensor, "L Q"]


class ReducedLayer(NamedTuple):
    """The fields of one MoE layer at one step."""

    h_k: Float[Tensor, "Q M P"]
    phi: Float[Tensor, "Q M P"]
    sigma_phi: Float[Tensor, "Q M P"]
    p: Float[Tensor, "Q P"]
    gate: Gates
    z: Float[Tensor, "Q M P"]
    sigma_g: Float[Tensor, "Q M P"]
    slope_A: Float[Tensor, "Q P"]


@dataclass(eq=False)
class ReducedFields:
    """The fields of one step: H^0..H^L, G^0..G^L, the L layers, f and Delta."""

    H_Pd: list[Float[Tensor, "P d"]]
    G_Pd: list[Float[Tensor, "P d"]]
    layers: list[ReducedLayer]
    f_P: Float[Tensor, "P"]
    delta_P: Float[Tensor, "P"]


def in_its_span(data: Data) -> Data:
    """Return the data in coordinates of their span, so that X has rank(X) columns and U rank(X) rows."""
    left, singular, _ = np.linalg.svd(data.X, full_matrices=False)
    rank = int((singular > singular[0] * 1e-12).sum())
    return Data(left[:, :rank] * singular[:rank], data.y)


def draw_particles(problem: Problem, sampling: Sampling, rank: int, replicate: int) -> Particles:
    """Return the initial state of one replicate."""
    L, Q, M, d = problem.L, sampling.nodes, sampling.neurons, rank + 1
    seed = (sampling.seed * 1009 + replicate) * problem.L + 1
    rng = torch.Generator().manual_seed(seed)
    if math.isinf(problem.n_hid):
        layers = [quasi_random(Q, M, d, seed + l) for l in range(L)]
        v1, v2 = (torch.stack(each) for each in zip(*layers, strict=True))
    else:
        v1, v2 = (torch.randn(L, Q, M, d, generator=rng, dtype=torch.float64) for _ in range(2))
    rho = problem.router_init_eps * torch.randn(L, Q, d, generator=rng, dtype=torch.float64)
    om = torch.zeros(d, dtype=torch.float64)
    om[-1] = 1.0
    state = (torch.eye(rank, d, dtype=torch.float64), om, v1, v2, rho, problem.bias_at(midpoints(Q)).expand(L, Q))
    return Particles(*(each.to(sampling.dtype).clone() for each in state))


def march(problem: Problem, state: Particles, data: Data) -> Iterator[ReducedFields]:
    """Yield the fields before each step; updates the state in place."""
    X, y = (torch.from_numpy(each).to(state.om_d.dtype) for each in (data.X, data.y))
    X = X / math.sqrt(problem.D)
    for step in range(problem.T):
        at = _passes(problem, state, X, y)
        yield at
        if step + 1 == problem.T:
            return
        weighed = problem.c * at.delta_P.unsqueeze(1)
        for l, layer in enumerate(at.layers):
            state.v1_LQMd[l] += layer.sigma_g @ (weighed * at.H_Pd[l])
            state.v2_LQMd[l] += layer.sigma_phi @ (weighed * at.G_Pd[l + 1])
            state.rho_LQd[l] += layer.slope_A @ (weighed * at.H_Pd[l])
            balance(problem, state.b_LQ[l], layer.gate)
        state.om_d += (weighed * at.H_Pd[-1]).sum(0)
        if problem.train_embed:
            state.U_Dd += X.T @ (weighed * at.G_Pd[0])


def _passes(problem: Problem, state: Particles, X: Float[Tensor, "P D"], y: Float[Tensor, "P"]) -> ReducedFields:
    """Return the fields of one forward and backward pass; X is x / sqrt(D)."""
    phi, L, (Q, M) = problem.activation, problem.L, state.v1_LQMd.shape[1:3]
    H, forward = [X @ state.U_Dd], []
    for l in range(L):
        h_k, p = state.v1_LQMd[l] @ H[l].T, state.rho_LQd[l] @ H[l].T
        gate, phi_k = open_gates(problem, p, state.b_LQ[l]), phi.value(h_k)
        sigma_phi = gate.sigma.unsqueeze(1) * phi_k
        H.append(H[l] + _sum(sigma_phi, state.v2_LQMd[l]) / (L * Q * M))
        forward.append((h_k, phi_k, sigma_phi, p, gate))
    f = H[L] @ state.om_d / problem.gamma0

    G = [state.om_d.expand_as(H[L]).clone()]  # the update changes om in place
    layers: list[ReducedLayer] = []
    for l in reversed(range(L)):
        h_k, phi_k, _, _, gate = forward[l]
        z = state.v2_LQMd[l] @ G[0].T
        slope_A = gate.slope * (z * phi_k).mean(1)
        sigma_g = gate.sigma.unsqueeze(1) * phi.slope(h_k) * z
        layers.insert(0, ReducedLayer(*forward[l], z, sigma_g, slope_A))
        through_experts = _sum(sigma_g, state.v1_LQMd[l]) / (L * Q * M)
        G.insert(0, G[0] + through_experts + slope_A.T @ state.rho_LQd[l] / (L * Q))
    return ReducedFields(H, G, layers, f, y - f)


def _sum(one: Float[Tensor, "Q M P"], other: Float[Tensor, "Q M d"]) -> Float[Tensor, "P d"]:
    """Return the sum over nodes and neurons."""
    return one.flatten(0, 1).T @ other.flatten(0, 1)


def solve(problem: Problem, sampling: Sampling | None = None, kernels: bool = False, tick: Tick = silent) -> Trajectory:
    """Solve the limit in the reduced form and return its trajectory.

    Args:
        problem: the problem; `alpha_star` must be 0.
        sampling: sample sizes (default: `default_sampling`).
        kernels: whether to return the stream kernels.
        tick: progress callback.

    >>> limit = solve(Problem(P=4, T=5), Sampling(nodes=8, neurons=64))
    >>> limit.f.shape, bool(limit.mc_error < 0.02), limit.is_monotone
    ((4, 5), True, True)
    """
    if problem.alpha_star:
        raise InputError(
            f"alpha_star={problem.alpha_star:g}: the reduced form is exact at alpha_star=0 only; use the kernel form"
        )
    sampling = sampling or default_sampling(problem)
    if math.isfinite(problem.n_hid) and sampling.neurons != problem.n_hid:
        raise InputError(
            f"neurons={sampling.neurons}: must equal n_hid={problem.n_hid:g} of the problem, or be left out"
        )
    require_whole(problem, sampling.nodes, "nodes")
    data = in_its_span(make_data(problem))

    def run(replicate: int) -> Iterator[Snapshot]:
        state = draw_particles(problem, sampling, data.X.shape[1], replicate)
        for at in march(problem, state, data):
            p, gates = [layer.p for layer in at.layers], [layer.gate for layer in at.layers]
            streams = ([each.T for each in stream] for stream in (at.H_Pd, at.G_Pd) if kernels)
            yield Snapshot(at.f_P, p, gates, state.b_LQ, *streams)

    return record(problem, data.y, sampling.replicates, map(run, range(sampling.replicates)), tick)
