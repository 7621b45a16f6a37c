"""The limit in kernel form, for any alpha_star: written independently of the reduced form, which it checks.

The stream is linear in Gaussian sources: chi (the embedding), w (the readout) and, where alpha_star > 0, the noise u^l
of every block forward and r^l backward. So h and g are coefficients on these sources, and their kernels are exact:

    h^0 = chi + c S_{s<t} Delta K_x g^0, chi ~ N(0, K_x);   g^L = w + c S_{s<t} Delta h^L, w ~ N(0, 1)
    h^{l+1} = h^l + L^{-1} u^l + L^{-1} S_{s<t}  [R_phi + c Delta M_phi] g^{l+1},               u^l ~ GP(alpha L M_phi)
    g^l = g^{l+1} + L^{-1} r^l + L^{-1} S_{s<=t} [R_g + 1_{s<t} c Delta (M_g + M_AA)] h^l,      r^l ~ GP(alpha L M_g)
    f = <g^L h^L> / gamma0,   C_h = <h h>,   C_g = <g g>

Neurons of experts are sampled: u ~ GP(C_h^l), xi ~ GP(C_g^{l+1}), drawn step by step given their past, and

    h_k = u  + S_{s<t}  [c Delta C_h + alpha B] sigma g_k,                                  B = L dh^l / dr^l
    z_k = xi + S_{s<t} c Delta C_g sigma phi(h_k) + alpha S_{s<=t} A sigma phi(h_k),        A = L dg^{l+1} / du^l
    g_k = phi'(h_k) z_k;   p = c S_{s<t} Delta {z phi} sigma' C_h
    M_phi = [sigma sigma {phi phi}], M_g = [sigma sigma {g_k g_k}], M_AA = [sigma' sigma' {z phi} {z phi}]
    R_phi = [sigma {d phi(h_k) / d xi}],   R_g = [sigma {d g_k / d u}]

Time is marched causally: each step appends a block of P rows to every kernel. Each neuron carries the derivatives of
its past by u and xi, (P T)^2 numbers each, which is what bounds P T.

Shapes: i, j, m index (step, datum), step first, up to P T; Q node, M neuron of a node, K source of the stream.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from expertp.errors import InputError
from expertp.machine import memory_bytes
from expertp.theory.gates import Gates, balance, load_of, open_gates, whole_share
from expertp.theory.problem import Data, Problem, make_data
from expertp.theory.progress import Tick, silent
from expertp.theory.sampling import Sampling, middles, quasi_random
from expertp.theory.trajectory import Trajectory, diverged

Term = Literal["R_phi", "R_g", "M_AA", "sigma_in_z"]
# Directions in which a process varies less than this, relative to its largest variance, are determined by its past.
NEGLIGIBLE = 1e-11
# Outputs that miss the targets by so many times their size have left all bounds.
DIVERGED = 1e3


def solve(
    problem: Problem,
    sampling: Sampling | None = None,
    drop: frozenset[Term] = frozenset(),
    tick: Tick = silent,
) -> Trajectory:
    """Return the limit's trajectory, with its kernels.

    Args:
        problem: what is learnt, with experts of infinitely many neurons.
        sampling: how finely the law of the experts is sampled; None: 16 nodes of 256 neurons, two replicates.
        drop: terms of the equations to leave out, which shows what each of them does.
        tick: told steps done and steps in all.
    """
    if math.isfinite(problem.n_hid):
        raise InputError(f"n_hid={problem.n_hid:g}: the kernel form has n_hid=inf only; use the reduced form")
    if problem.router_init_eps:
        raise InputError("router_init_eps: the kernel form starts with p = 0; use the reduced form")
    sampling = sampling or Sampling(nodes=16, neurons=256, replicates=2, dtype=torch.float64)
    whole_share(problem, sampling.nodes, "nodes")
    _check_memory(problem, sampling)
    data, marches = make_data(problem), []
    for replicate in range(sampling.replicates):
        march = _March(problem, sampling, data, replicate, drop)
        for step in range(problem.T):
            march.advance(step)
            tick(replicate * problem.T + step + 1, problem.T * sampling.replicates)
        marches.append(march)
    f, p, loads, b = (
        np.stack([getattr(each, name).double().numpy() for each in marches]) for name in ("f_PT", "p", "loads", "b")
    )
    C_h, C_g = (np.mean([each.kernels(name) for each in marches], axis=0) for name in ("C_h", "C_g"))
    return Trajectory(f.mean(0), f, data.y, p, loads, b, C_h, C_g)


def memory_needed(problem: Problem, sampling: Sampling) -> int:
    """Return the bytes of the derivatives that all neurons carry: by u and xi, of phi and g_k."""
    particles, past = problem.L * sampling.nodes * sampling.neurons, problem.P * problem.T
    return 4 * particles * past**2 * torch.empty(0, dtype=sampling.dtype).element_size()


def _check_memory(problem: Problem, sampling: Sampling) -> None:
    needed, there = memory_needed(problem, sampling), memory_bytes()
    if needed > 0.6 * there:
        raise InputError(
            f"P*T={problem.P * problem.T} with {sampling.nodes}x{sampling.neurons} neurons a layer needs "
            f"{needed / 2**30:.1f} GiB in the kernel form, of {there / 2**30:.1f} here; lower P, T or neurons, or use "
            "the reduced form, whose memory does not grow with T"
        )


class _Process:
    """Samples [Q, M, P T] of a Gaussian process, drawn block by block given their past.

    With F F^T = C, a new block of rows is F_new = C_new,past (F_past^T)^+ beside the root of what this leaves of
    C_new,new. At alpha_star = 0 the kernels have rank d, so the pseudo-inverse is needed: most blocks are determined by
    their past.
    """

    def __init__(self, noise: Tensor):
        self.noise = noise
        self.value = torch.zeros_like(noise)
        size = noise.shape[-1]
        self._factor = noise.new_zeros(size, size)

    def extend(self, C: Tensor, now: slice) -> Tensor:
        """Draw the block `now`, given the kernel up to it."""
        F, past = self._factor, slice(0, now.start)
        if now.start:
            F[now, past] = C[now, past] @ torch.linalg.pinv(F[past, past], rtol=math.sqrt(NEGLIGIBLE)).T
        rest = C[now, now] - F[now, past] @ F[now, past].T
        variances, directions = torch.linalg.eigh((rest + rest.T) / 2)
        variances = torch.where(variances > NEGLIGIBLE * C[now, now].diagonal().max(), variances, 0.0)
        F[now, now] = directions * variances.sqrt()
        self.value[..., now] = self.noise[..., : now.stop] @ F[now, : now.stop].T
        return self.value[..., now]


@dataclass(eq=False)
class _Neurons:
    """The neurons of one layer's nodes: all of their past, and its derivatives by u and xi."""

    u: _Process
    xi: _Process
    phi: Tensor
    g: Tensor
    phi_by_u: Tensor
    phi_by_xi: Tensor
    g_by_u: Tensor
    g_by_xi: Tensor
    # per node [Q, P T]
    sigma: Tensor
    slope: Tensor
    A: Tensor

    @classmethod
    def draw(cls, nodes: int, neurons: int, size: int, dtype: torch.dtype, seed: int) -> _Neurons:
        """Return neurons without a past."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=dtype)

        u, xi = quasi_random(nodes, neurons, size, seed)
        return cls(
            _Process(u.to(dtype)),
            _Process(xi.to(dtype)),
            *(zeros(nodes, neurons, size) for _ in range(2)),
            *(zeros(nodes, neurons, size, size) for _ in range(4)),
            *(zeros(nodes, size) for _ in range(3)),
        )


class _Preactivation(NamedTuple):
    """h_k of some steps, and its derivatives by u and xi of all steps so far."""

    h_k: Tensor
    by_u: Tensor
    by_xi: Tensor


class _March:
    """One replicate of the kernel form, a step at a time."""

    def __init__(self, problem: Problem, sampling: Sampling, data: Data, replicate: int, drop: frozenset[Term]):
        self.problem, self.drop = problem, drop
        L, P, T, Q = problem.L, problem.P, problem.T, sampling.nodes
        size, dtype = P * T, sampling.dtype
        seed = (sampling.seed * 1009 + replicate) * L + 1
        self.y_P = torch.from_numpy(data.y).to(dtype)
        self.K_x = torch.from_numpy(data.K_x).to(dtype)
        variances, directions = torch.linalg.eigh(self.K_x)
        known = variances > NEGLIGIBLE * variances.max()
        chi = directions[:, known] * variances[known].sqrt()
        # Sources: chi's directions, w, then u^l and r^l by layer, step and datum.
        self.n_static = chi.shape[1] + 1
        n_sources = self.n_static + (2 * L * size if problem.alpha_star else 0)
        self.source_covariance = torch.eye(n_sources, dtype=dtype)
        self.source_covariance[self.n_static :] = 0.0
        self.chi_PK, self.w_K = (torch.zeros(*shape, dtype=dtype) for shape in ((P, n_sources), (n_sources,)))
        self.chi_PK[:, : chi.shape[1]] = chi
        self.w_K[self.n_static - 1] = 1.0
        self.h, self.g = ([torch.zeros(size, n_sources, dtype=dtype) for _ in range(L + 1)] for _ in range(2))
        self.C_h, self.C_g = ([torch.zeros(size, size, dtype=dtype) for _ in range(L + 1)] for _ in range(2))
        self.delta = torch.zeros(size, dtype=dtype)
        self.layers = [_Neurons.draw(Q, sampling.neurons, size, dtype, seed + l) for l in range(L)]
        self.b_LQ = problem.bias_at(middles(Q)).to(dtype).repeat(L, 1)
        self.f_PT = torch.zeros(P, T, dtype=dtype)
        self.p = torch.zeros(L, Q, P, T, dtype=dtype)
        self.loads, self.b = (torch.zeros(L, Q, T, dtype=dtype) for _ in range(2))

    def kernels(self, name: Literal["C_h", "C_g"]) -> np.ndarray:
        """Return a kernel of the stream [L+1, P, T, P, T]."""
        P, T = self.problem.P, self.problem.T
        by_layer = torch.stack(getattr(self, name)).double().numpy()
        return np.asarray(by_layer.reshape(-1, T, P, T, P).transpose(0, 2, 1, 4, 3))

    def advance(self, step: int) -> None:
        """Take the pass forward, the output, the pass backward and the biases of one step."""
        problem, c = self.problem, self.problem.c
        now, past = slice(step * problem.P, (step + 1) * problem.P), slice(0, step * problem.P)
        # h^0 = chi + c S Delta K_x g^0
        self.h[0][now] = self.chi_PK
        if problem.train_embed:
            K_x = self.K_x.repeat(1, step)  # the same at every earlier step
            self.h[0][now] += c * (K_x * self.delta[past]) @ self.g[0][past]
        forward = []
        for l in range(problem.L):
            self._extend_kernel(self.C_h[l], self.h[l], now)
            gate = self._gate(l, now, past)
            forward.append((gate, self._forward(l, now, past)))
            self.loads[l, :, step], self.b[l, :, step] = load_of(problem, gate), self.b_LQ[l]
        self._extend_kernel(self.C_h[problem.L], self.h[problem.L], now)

        # g^L = w + c S Delta h^L;   f = <g^L h^L> / gamma0
        self.g[problem.L][now] = self.w_K + c * self.delta[past] @ self.h[problem.L][past]
        self._extend_kernel(self.C_g[problem.L], self.g[problem.L], now)
        f = self._covariance(self.g[problem.L][now], self.h[problem.L][now]).diagonal() / problem.gamma0
        # What misses the targets by so much is lost, and its kernels soon have no decomposition.
        if not (self.y_P - f).abs().max() <= DIVERGED * self.y_P.abs().max():
            raise diverged(problem, step)
        self.f_PT[:, step], self.delta[now] = f, self.y_P - f
        for l in reversed(range(problem.L)):
            gate, preactivation = forward[l]
            self._backward(l, now, past, preactivation)
            self._extend_kernel(self.C_g[l], self.g[l], now)
            balance(problem, self.b_LQ[l], gate)

    def _covariance(self, one: Tensor, other: Tensor) -> Tensor:
        return one @ self.source_covariance @ other.T

    def _extend_kernel(self, C: Tensor, stream: Tensor, now: slice) -> None:
        rows = self._covariance(stream[now], stream[: now.stop])
        C[now, : now.stop], C[: now.stop, now] = rows, rows.T

    def _sources(self, kind: Literal["u", "r"], l: int, at: slice) -> slice:
        """Return where among the sources u^l or r^l lie."""
        L, size = self.problem.L, self.delta.numel()
        first = self.n_static + (l + (L if kind == "r" else 0)) * size
        return slice(first + at.start, first + at.stop)

    def _gate(self, l: int, now: slice, past: slice) -> Gates:
        """p = c S Delta {z phi} sigma' C_h, and the gates it opens."""
        at = self.layers[l]
        p = self.problem.c * (self.delta[past] * at.A[:, past] * at.slope[:, past]) @ self.C_h[l][now, past].T
        gate = open_gates(self.problem, p, self.b_LQ[l])
        at.sigma[:, now], at.slope[:, now] = gate.sigma, gate.slope
        self.p[l, :, :, now.start // self.problem.P] = p
        return gate

    def _forward(self, l: int, now: slice, past: slice) -> _Preactivation:
        """Return h_k and its derivatives by u and xi, and extend the stream by h^{l+1}."""
        problem, at, upto = self.problem, self.layers[l], slice(0, now.stop)
        phi, c, alpha, L = problem.activation, problem.c, problem.alpha_star, problem.L
        # h_k = u + S [c Delta C_h + alpha B] sigma g_k
        pull = c * self.delta[past] * self.C_h[l][now, past]
        if alpha:
            pull = pull + alpha * L * self.h[l][now, self._sources("r", l, past)]
        pull_Qij = pull * at.sigma[:, None, past]
        h_k = at.u.extend(self.C_h[l], now) + at.g[..., past] @ pull_Qij.mT
        h_by_u = pull_Qij[:, None] @ at.g_by_u[:, :, past, upto]
        h_by_u[..., now] += torch.eye(problem.P, dtype=h_k.dtype)
        h_by_xi = pull_Qij[:, None] @ at.g_by_xi[:, :, past, upto]
        slope = phi.slope(h_k).unsqueeze(-1)
        at.phi[..., now] = phi.value(h_k)
        at.phi_by_u[:, :, now, upto], at.phi_by_xi[:, :, now, upto] = slope * h_by_u, slope * h_by_xi

        # h^{l+1} = h^l + u^l / L + S [R_phi + c Delta M_phi] g^{l+1} / L
        M_phi = _mixture(at.sigma, at.phi, now, upto)
        R_phi = _response(at.sigma, at.phi_by_xi, now, past)
        kernel = c * self.delta[past] * M_phi[:, past] + (0 if "R_phi" in self.drop else R_phi)
        self.h[l + 1][now] = self.h[l][now] + kernel @ self.g[l + 1][past] / L
        if alpha:
            self._add_source("u", l, now, upto, alpha * L * M_phi)
            self.h[l + 1][now, self._sources("u", l, now)] += torch.eye(problem.P, dtype=h_k.dtype) / L
        return _Preactivation(h_k, h_by_u, h_by_xi)

    def _backward(self, l: int, now: slice, past: slice, preactivation: _Preactivation) -> None:
        """Extend the neurons by z_k and g_k, and the stream by g^l."""
        problem, at, upto = self.problem, self.layers[l], slice(0, now.stop)
        h_k, h_by_u, h_by_xi = preactivation
        phi, c, alpha, L = problem.activation, problem.c, problem.alpha_star, problem.L
        # z_k = xi + S c Delta C_g sigma phi + alpha S A sigma phi
        pull = torch.zeros(problem.P, now.stop, dtype=h_k.dtype)
        pull[:, past] = c * self.delta[past] * self.C_g[l + 1][now, past]
        if alpha:
            pull += alpha * L * self.g[l + 1][now, self._sources("u", l, upto)]
        pull_Qij = pull * (torch.ones_like(at.sigma) if "sigma_in_z" in self.drop else at.sigma)[:, None, upto]
        z = at.xi.extend(self.C_g[l + 1], now) + at.phi[..., upto] @ pull_Qij.mT
        z_by_u = pull_Qij[:, None] @ at.phi_by_u[:, :, upto, upto]
        z_by_xi = pull_Qij[:, None] @ at.phi_by_xi[:, :, upto, upto]
        z_by_xi[..., now] += torch.eye(problem.P, dtype=h_k.dtype)
        slope, bend = phi.slope(h_k), (phi.bend(h_k) * z).unsqueeze(-1)
        at.g[..., now] = slope * z
        at.g_by_u[:, :, now, upto] = bend * h_by_u + slope.unsqueeze(-1) * z_by_u
        at.g_by_xi[:, :, now, upto] = bend * h_by_xi + slope.unsqueeze(-1) * z_by_xi
        at.A[:, now] = (z * at.phi[..., now]).mean(1)

        # g^l = g^{l+1} + r^l / L + S [R_g + 1_{s<t} c Delta (M_g + M_AA)] h^l / L
        M_g = _mixture(at.sigma, at.g, now, upto)
        routed = at.slope * at.A
        M_AA = routed[:, now].T @ routed[:, past] / len(routed)
        kernel = torch.zeros_like(M_g) if "R_g" in self.drop else _response(at.sigma, at.g_by_u, now, upto)
        kernel[:, past] += c * self.delta[past] * (M_g[:, past] + (0 if "M_AA" in self.drop else M_AA))
        self.g[l][now] = self.g[l + 1][now] + kernel @ self.h[l][upto] / L
        if alpha:
            self._add_source("r", l, now, upto, alpha * L * M_g)
            self.g[l][now, self._sources("r", l, now)] += torch.eye(problem.P, dtype=h_k.dtype) / L

    def _add_source(self, kind: Literal["u", "r"], l: int, now: slice, upto: slice, rows: Tensor) -> None:
        new, all_so_far = self._sources(kind, l, now), self._sources(kind, l, upto)
        self.source_covariance[new, all_so_far] = rows
        self.source_covariance[all_so_far, new] = rows.T


def _mixture(sigma_Qi: Tensor, value_QMi: Tensor, rows: slice, columns: slice) -> Tensor:
    """Return [sigma sigma {v v}] between some steps and others."""
    within = value_QMi[..., rows].mT @ value_QMi[..., columns] / value_QMi.shape[1]
    return torch.einsum("qi,qij,qj->ij", sigma_Qi[:, rows], within, sigma_Qi[:, columns]) / len(sigma_Qi)


def _response(sigma_Qi: Tensor, derivative_QMij: Tensor, rows: slice, columns: slice) -> Tensor:
    """Return [sigma {dv / ds}] between some steps and others."""
    return torch.einsum("qi,qij->ij", sigma_Qi[:, rows], derivative_QMij[:, :, rows, columns].mean(1)) / len(sigma_Qi)
