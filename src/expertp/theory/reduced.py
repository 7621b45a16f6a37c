"""The limit alpha_star = 0, solved exactly as a mean-field network: the stream has d = rank(X) + 1 directions.

    H^0 = U^T x / sqrt(D), U(0) = [I 0];   h_k = v1.H;   p = rho.H;   f = om.H^L / gamma0, om(0) = e_d
    H^{l+1} = H^l + L^{-1} [sigma {phi(h_k) v2}]
    G^L = om;   z_k = v2.G^{l+1};   A = {z phi};   g_k = phi'(h_k) z_k
    G^l = G^{l+1} + L^{-1} [sigma {g_k v1}] + L^{-1} [sigma' A rho]
    v1 += c S Delta sigma g_k H;   v2 += c S Delta sigma phi G^{l+1};   rho += c S Delta sigma' A H
    om += c S Delta H^L;   U += c S Delta x G^0 / sqrt(D)

[ ] is the mean over nodes, which stand for experts by their b(0); { } the mean over the neurons of a node. There are
no kernels of the size (P T)^2, and memory does not grow with T. With infinitely many neurons to an expert, a node's
neurons are quasi-random (scrambled Sobol points, each with both signs of v2); with finitely many, each node is one
expert drawn at random. Replicates repeat all that is random; their spread is the Monte-Carlo error.

Shapes: L layer, Q node, M neuron of a node, d direction of the stream, P datum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from expertp.errors import InputError
from expertp.theory.gates import Gates, balance, load_of, open_gates, whole_share
from expertp.theory.problem import Data, Problem, make_data
from expertp.theory.progress import Tick, silent
from expertp.theory.sampling import Sampling, default_sampling, middles, quasi_random
from expertp.theory.trajectory import Trajectory, require_finite


@dataclass(eq=False)
class Particles:
    """The state of the reduced network."""

    U_Dd: Tensor
    om_d: Tensor
    v1_LQMd: Tensor
    v2_LQMd: Tensor
    rho_LQd: Tensor
    b_LQ: Tensor


@dataclass(eq=False)
class ReducedFields:
    """What one step computes: the stream both ways [P, d], L + 1 each; gates and loads per layer; f and Delta [P]."""

    H_Pd: list[Tensor]
    G_Pd: list[Tensor]
    p_QP: list[Tensor]
    gate: list[Gates]
    f_P: Tensor
    delta_P: Tensor


class _Forward(NamedTuple):
    """What the way back needs of a layer's way forward."""

    h_k: Tensor
    phi_k: Tensor
    sigma_phi: Tensor
    p: Tensor
    gate: Gates


def in_its_span(data: Data) -> Data:
    """Return the same points in coordinates of the space that they span, so that U has rank(X) rows."""
    left, singular, _ = np.linalg.svd(data.X, full_matrices=False)
    rank = int((singular > singular[0] * 1e-12).sum())
    return Data(left[:, :rank] * singular[:rank], data.y)


def draw_particles(problem: Problem, sampling: Sampling, rank: int, replicate: int) -> Particles:
    """Return the state at the start."""
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
    state = (torch.eye(rank, d, dtype=torch.float64), om, v1, v2, rho, problem.bias_at(middles(Q)).expand(L, Q))
    return Particles(*(each.to(sampling.dtype).clone() for each in state))


def march(problem: Problem, state: Particles, data: Data) -> Iterator[ReducedFields]:
    """Yield the fields before each step; the state is changed in place."""
    phi, c, L = problem.activation, problem.c, problem.L
    dtype = state.om_d.dtype
    X, y = (torch.from_numpy(each).to(dtype) for each in (data.X, data.y))
    X = X / math.sqrt(problem.D)
    Q, M, d = state.v1_LQMd.shape[1:]
    for step in range(problem.T):
        H: list[Tensor] = [X @ state.U_Dd]
        forward: list[_Forward] = []
        for l in range(L):
            h_k = (state.v1_LQMd[l].reshape(Q * M, d) @ H[l].T).reshape(Q, M, -1)
            p = state.rho_LQd[l] @ H[l].T
            gate, phi_k = open_gates(problem, p, state.b_LQ[l]), phi.value(h_k)
            sigma_phi = gate.sigma.unsqueeze(1) * phi_k
            H.append(H[l] + sigma_phi.reshape(Q * M, -1).T @ state.v2_LQMd[l].reshape(Q * M, d) / (L * Q * M))
            forward.append(_Forward(h_k, phi_k, sigma_phi, p, gate))
        f = H[L] @ state.om_d / problem.gamma0
        delta = y - f

        G = [state.om_d.expand_as(H[L]).clone()]  # a step changes om in place
        moves = []
        for l in reversed(range(L)):
            h_k, phi_k, sigma_phi, _, gate = forward[l]
            z = (state.v2_LQMd[l].reshape(Q * M, d) @ G[0].T).reshape(Q, M, -1)
            A = (z * phi_k).mean(1)
            sigma_g = gate.sigma.unsqueeze(1) * phi.slope(h_k) * z
            through_experts = sigma_g.reshape(Q * M, -1).T @ state.v1_LQMd[l].reshape(Q * M, d) / (L * Q * M)
            through_router = (gate.slope * A).T @ state.rho_LQd[l] / (L * Q)
            moves.append((l, sigma_g, sigma_phi, gate.slope * A, G[0]))
            G.insert(0, G[0] + through_experts + through_router)
        yield ReducedFields(H, G, [at.p for at in forward], [at.gate for at in forward], f, delta)
        if step + 1 == problem.T:
            return
        weighed = c * delta.unsqueeze(1)
        for l, sigma_g, sigma_phi, slope_A, G_above in moves:
            state.v1_LQMd[l] += (sigma_g.reshape(Q * M, -1) @ (weighed * H[l])).reshape(Q, M, d)
            state.v2_LQMd[l] += (sigma_phi.reshape(Q * M, -1) @ (weighed * G_above)).reshape(Q, M, d)
            state.rho_LQd[l] += slope_A @ (weighed * H[l])
            balance(problem, state.b_LQ[l], forward[l].gate)
        state.om_d += (weighed * H[L]).sum(0)
        if problem.train_embed:
            state.U_Dd += X.T @ (weighed * G[0])


def solve(
    problem: Problem,
    sampling: Sampling | None = None,
    kernels: bool = False,
    tick: Tick = silent,
) -> Trajectory:
    """Return the limit's trajectory.

    Args:
        problem: what is learnt; `alpha_star` must be 0.
        sampling: how finely; None: as `default_sampling` says.
        kernels: whether the kernels of the stream are wanted.
        tick: told steps done and steps in all.
    """
    if problem.alpha_star:
        raise InputError(
            f"alpha_star={problem.alpha_star:g}: the reduced form is exact at alpha_star=0 only; use the kernel form"
        )
    sampling = sampling or default_sampling(problem)
    if math.isfinite(problem.n_hid) and sampling.neurons != problem.n_hid:
        raise InputError(f"neurons={sampling.neurons}: an expert of this problem has n_hid={problem.n_hid:g}")
    whole_share(problem, sampling.nodes, "nodes")
    data = in_its_span(make_data(problem))
    found = []
    for replicate in range(sampling.replicates):
        state, records = draw_particles(problem, sampling, data.X.shape[1], replicate), []
        for step, at in enumerate(march(problem, state, data)):
            require_finite(problem, at.f_P, step)
            records.append(
                (
                    at.f_P,
                    torch.stack(at.p_QP),
                    torch.stack([load_of(problem, gate) for gate in at.gate]),
                    state.b_LQ.clone(),
                    *((torch.stack(at.H_Pd), torch.stack(at.G_Pd)) if kernels else ()),
                )
            )
            tick(replicate * problem.T + step + 1, problem.T * sampling.replicates)
        f, p, loads, b, *streams = (torch.stack(each, -1).double().numpy() for each in zip(*records, strict=True))
        found.append((f, p, loads, b, *(np.einsum("lpdt,lqds->lptqs", each, each) for each in streams)))
    f, p, loads, b, *C = (np.stack(each) for each in zip(*found, strict=True))
    return Trajectory(f.mean(0), f, data.y, p, loads, b, *(each.mean(0) for each in C))
