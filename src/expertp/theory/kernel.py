"""Kernel form of the limit, for any alpha_star; written independently of the reduced form, which it checks.

The stream is linear in Gaussian sources: chi (embedding), w (readout) and, if alpha_star > 0, the forward noise u^l and
the backward noise r^l of every layer. h and g are therefore stored as coefficients on these sources, and their kernels
are exact (S: sum over earlier steps s and data x'; alpha: alpha_star):

    h^0 = chi + c S_{s<t} Delta K_x g^0, chi ~ N(0, K_x);   g^L = w + c S_{s<t} Delta h^L, w ~ N(0, 1)
    h^{l+1} = h^l + L^{-1} u^l + L^{-1} S_{s<t}  [R_phi + c Delta M_phi] g^{l+1},               u^l ~ GP(alpha L M_phi)
    g^l = g^{l+1} + L^{-1} r^l + L^{-1} S_{s<=t} [R_g + 1_{s<t} c Delta (M_g + M_AA)] h^l,      r^l ~ GP(alpha L M_g)
    f = <g^L h^L> / gamma0,   C_h = <h h>,   C_g = <g g>

The neurons of the experts are sampled. u ~ GP(C_h^l) and xi ~ GP(C_g^{l+1}) are drawn step by step, conditioned on the
past, and

    h_k = u  + S_{s<t}  [c Delta C_h + alpha B] sigma g_k,                                  B = L dh^l / dr^l
    z_k = xi + S_{s<t} c Delta C_g sigma phi(h_k) + alpha S_{s<=t} A sigma phi(h_k),        A = L dg^{l+1} / du^l
    g_k = phi'(h_k) z_k;   p = c S_{s<t} Delta {z phi} sigma' C_h
    M_phi = [sigma sigma {phi phi}], M_g = [sigma sigma {g_k g_k}], M_AA = [sigma' sigma' {z phi} {z phi}]
    R_phi = [sigma {d phi(h_k) / d xi}],   R_g = [sigma {d g_k / d u}]

Every step appends a block of P rows to every kernel. Every neuron stores the derivatives of its past with respect to u
and xi, (P T)^2 numbers each; their memory limits P T.

Shapes: I, J (step, datum), step-major, of length P T; L layer, Q node, M neuron of a node, K source of the stream,
P datum, T step.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from expertp.errors import InputError
from expertp.theory.gates import Gates, balance, open_gates, require_whole
from expertp.theory.problem import Data, Problem, make_data
from expertp.theory.sampling import Sampling, midpoints, quasi_random
from expertp.theory.trajectory import Snapshot, Tick, Trajectory, diverged, record, silent
from expertp.util.machine import memory_bytes

Term = Literal["R_phi", "R_g", "M_AA", "sigma_in_z"]
U, XI = 0, 1  # places of the derivatives with respect to u and xi
# Conditional variances below this fraction of the largest variance are treated as zero.
NEGLIGIBLE = 1e-11
# Training has diverged if an error |y - f| exceeds this multiple of the largest target.
DIVERGED = 1e3


def solve(
    problem: Problem, sampling: Sampling | None = None, drop: frozenset[Term] = frozenset(), tick: Tick = silent
) -> Trajectory:
    """Solve the limit in the kernel form and return its trajectory with kernels.

    Args:
        problem: the problem; `n_hid` must be inf.
        sampling: sample sizes (default: 16 nodes with 256 neurons, 2 replicates, float64).
        drop: terms of the equations to leave out, for mutation tests.
        tick: progress callback.

    >>> sampling = Sampling(nodes=4, neurons=32, replicates=2, dtype=torch.float64)
    >>> limit = solve(Problem(P=2, T=4, alpha_star=1.0), sampling)
    >>> limit.f.shape, limit.C_h.shape
    ((2, 4), (3, 2, 4, 2, 4))
    """
    if math.isfinite(problem.n_hid):
        raise InputError(f"n_hid={problem.n_hid:g}: the kernel form requires n_hid=inf; use the reduced form")
    if problem.router_init_eps:
        raise InputError("router_init_eps: the kernel form requires p = 0 at initialization; use the reduced form")
    sampling = sampling or Sampling(nodes=16, neurons=256, replicates=2, dtype=torch.float64)
    require_whole(problem, sampling.nodes, "nodes")
    _check_memory(problem, sampling)
    data, kernels = make_data(problem), []

    def run(replicate: int) -> Iterator[Snapshot]:
        march = _March(problem, sampling, data, replicate, drop)
        for step in range(problem.T):
            f, p, gates = march.advance(step)
            yield Snapshot(f, p, gates, march.b_LQ)
            for b, gate in zip(march.b_LQ, gates, strict=True):
                balance(problem, b, gate)
        blocks = march.C.double().numpy().reshape(2, -1, problem.T, problem.P, problem.T, problem.P)
        kernels.append(blocks.transpose(0, 1, 3, 2, 5, 4))

    found = record(problem, data.y, sampling.replicates, map(run, range(sampling.replicates)), tick)
    C_h, C_g = np.mean(kernels, axis=0)
    return replace(found, C_h=C_h, C_g=C_g)


def memory_needed(problem: Problem, sampling: Sampling) -> int:
    """Return the bytes of the stored derivatives of phi and g_k with respect to u and xi."""
    particles, past = problem.L * sampling.nodes * sampling.neurons, problem.P * problem.T
    return 4 * particles * past**2 * torch.empty(0, dtype=sampling.dtype).element_size()


def _check_memory(problem: Problem, sampling: Sampling) -> None:
    needed, available = memory_needed(problem, sampling), memory_bytes()
    if needed > 0.6 * available:
        raise InputError(
            f"P*T={problem.P * problem.T} with {sampling.nodes}x{sampling.neurons} neurons per layer needs "
            f"{needed / 2**30:.1f} GiB in the kernel form, but the machine has {available / 2**30:.1f} GiB; lower P, T "
            "or neurons, or use the reduced form, whose memory does not grow with T"
        )


class _Process:
    """Samples of a Gaussian process with kernel C, drawn block by block conditioned on the past.

    With F F^T = C, the new rows of F are C_new,past (F_past^T)^+ and a square root of the remaining C_new,new. At
    alpha_star = 0 the kernels have rank d: most blocks are determined by their past, so F_past needs a pseudo-inverse.
    """

    def __init__(self, noise: Float[Tensor, "Q M I"]):
        self.noise = noise
        self.value = torch.zeros_like(noise)
        size = noise.shape[-1]
        self._factor = noise.new_zeros(size, size)

    def extend(self, C: Float[Tensor, "I I"], now: slice) -> Float[Tensor, "Q M P"]:
        """Draw the block `now`, given the kernel up to and including it."""
        F, past = self._factor, slice(0, now.start)
        if now.start:
            F[now, past] = C[now, past] @ torch.linalg.pinv(F[past, past], rtol=math.sqrt(NEGLIGIBLE)).T
        rest = C[now, now] - F[now, past] @ F[now, past].T
        variances, directions = torch.linalg.eigh((rest + rest.T) / 2)
        variances = torch.where(variances > NEGLIGIBLE * C[now, now].diagonal().max(), variances, 0.0)
        F[now, now] = directions * variances.sqrt()
        self.value[..., now] = self.noise[..., : now.stop] @ F[now, : now.stop].T
        return self.value[..., now]


class _Neurons:
    """Past of all neurons in one layer; D_phi and D_g [2, Q, M, I, I] are its derivatives with respect to u and xi."""

    def __init__(self, nodes: int, neurons: int, size: int, dtype: torch.dtype, seed: int):
        self.u, self.xi = (_Process(each.to(dtype)) for each in quasi_random(nodes, neurons, size, seed))
        self.phi_QMI, self.g_QMI = torch.zeros(2, nodes, neurons, size, dtype=dtype)
        self.D_phi, self.D_g = torch.zeros(2, 2, nodes, neurons, size, size, dtype=dtype)
        self.sigma_QI, self.slope_QI, self.A_QI = torch.zeros(3, nodes, size, dtype=dtype)


class _March:
    """One replicate of the kernel form, advanced step by step."""

    def __init__(self, problem: Problem, sampling: Sampling, data: Data, replicate: int, drop: frozenset[Term]):
        self.problem, self.drop = problem, drop
        L, P, Q, dtype = problem.L, problem.P, sampling.nodes, sampling.dtype
        size = P * problem.T
        seed = (sampling.seed * 1009 + replicate) * L + 1
        self.y_P, self.K_x = (torch.from_numpy(each).to(dtype) for each in (data.y, data.K_x))
        variances, directions = torch.linalg.eigh(self.K_x)
        known = variances > NEGLIGIBLE * variances.max()
        chi = directions[:, known] * variances[known].sqrt()
        # Sources: the directions of chi, w, then u^l and r^l by layer, step and datum.
        self.n_static = chi.shape[1] + 1
        n_sources = self.n_static + (2 * L * size if problem.alpha_star else 0)
        self.source_covariance = torch.eye(n_sources, dtype=dtype)
        self.source_covariance[self.n_static :] = 0.0
        self.chi_PK, self.w_K = torch.zeros(P, n_sources, dtype=dtype), torch.zeros(n_sources, dtype=dtype)
        self.chi_PK[:, : self.n_static - 1], self.w_K[self.n_static - 1] = chi, 1.0
        self.h, self.g = torch.zeros(2, L + 1, size, n_sources, dtype=dtype)
        self.C = torch.zeros(2, L + 1, size, size, dtype=dtype)
        self.C_h, self.C_g = self.C
        self.delta, self.eye = torch.zeros(size, dtype=dtype), torch.eye(P, dtype=dtype)
        self.layers = [_Neurons(Q, sampling.neurons, size, dtype, seed + l) for l in range(L)]
        self.b_LQ = problem.bias_at(midpoints(Q)).to(dtype).repeat(L, 1)

    def advance(self, step: int) -> tuple[Float[Tensor, "P"], list[Float[Tensor, "Q P"]], list[Gates]]:
        """Compute the forward pass, the output and the backward pass of one step, and return f, p and gates."""
        c, L, P = self.problem.c, self.problem.L, self.problem.P
        now, past = slice(step * P, (step + 1) * P), slice(0, step * P)
        # h^0 = chi + c S Delta K_x g^0
        self.h[0, now] = self.chi_PK
        if self.problem.train_embed:
            K_x = self.K_x.repeat(1, step)  # the same at every earlier step
            self.h[0, now] += c * (K_x * self.delta[past]) @ self.g[0, past]
        p, gates, preactivations = [], [], []
        for l, at in enumerate(self.layers):
            self._extend_kernel(self.C_h[l], self.h[l], now)
            # p = c S Delta {z phi} sigma' C_h
            pulled = self.delta[past] * at.A_QI[:, past] * at.slope_QI[:, past]
            p.append(c * pulled @ self.C_h[l, now, past].T)
            gates.append(open_gates(self.problem, p[l], self.b_LQ[l]))
            at.sigma_QI[:, now], at.slope_QI[:, now] = gates[l].sigma, gates[l].slope
            preactivations.append(self._forward(l, now, past))
        self._extend_kernel(self.C_h[L], self.h[L], now)

        # g^L = w + c S Delta h^L;   f = <g^L h^L> / gamma0
        self.g[L, now] = self.w_K + c * self.delta[past] @ self.h[L, past]
        self._extend_kernel(self.C_g[L], self.g[L], now)
        f = self._covariance(self.g[L, now], self.h[L, now]).diagonal() / self.problem.gamma0
        # Checked before the kernels stop being decomposable.
        if not (self.y_P - f).abs().max() <= DIVERGED * self.y_P.abs().max():
            raise diverged(self.problem, step)
        self.delta[now] = self.y_P - f
        for l in reversed(range(L)):
            self._backward(l, now, past, *preactivations[l])
            self._extend_kernel(self.C_g[l], self.g[l], now)
        return f, p, gates

    def _covariance(self, one: Float[Tensor, "I K"], other: Float[Tensor, "J K"]) -> Float[Tensor, "I J"]:
        return one @ self.source_covariance @ other.T

    def _extend_kernel(self, C: Float[Tensor, "I I"], stream: Float[Tensor, "I K"], now: slice) -> None:
        rows = self._covariance(stream[now], stream[: now.stop])
        C[now, : now.stop], C[: now.stop, now] = rows, rows.T

    def _sources(self, kind: Literal["u", "r"], l: int, at: slice) -> slice:
        """Return the positions of u^l or r^l among the sources."""
        L, size = self.problem.L, self.delta.numel()
        first = self.n_static + (l + (L if kind == "r" else 0)) * size
        return slice(first + at.start, first + at.stop)

    def _forward(self, l: int, now: slice, past: slice) -> tuple[Float[Tensor, "Q M P"], Float[Tensor, "2 Q M P J"]]:
        """Extend the stream by h^{l+1}, and return h_k with its derivatives."""
        at, upto, phi = self.layers[l], slice(0, now.stop), self.problem.activation
        c, alpha, L = self.problem.c, self.problem.alpha_star, self.problem.L
        # h_k = u + S [c Delta C_h + alpha B] sigma g_k
        pull = c * self.delta[past] * self.C_h[l, now, past]
        if alpha:
            pull = pull + alpha * L * self.h[l, now, self._sources("r", l, past)]
        pull_QIJ = pull * at.sigma_QI[:, None, past]
        h_k = at.u.extend(self.C_h[l], now) + at.g_QMI[..., past] @ pull_QIJ.mT
        D_h = pull_QIJ[:, None] @ at.D_g[..., past, upto]
        D_h[U, ..., now] += self.eye
        at.phi_QMI[..., now] = phi.value(h_k)
        at.D_phi[..., now, upto] = phi.slope(h_k).unsqueeze(-1) * D_h

        # h^{l+1} = h^l + u^l / L + S [R_phi + c Delta M_phi] g^{l+1} / L
        M_phi = _mixture(at.sigma_QI, at.phi_QMI, now, upto)
        R_phi = _response(at.sigma_QI, at.D_phi[XI], now, past)
        kernel = c * self.delta[past] * M_phi[:, past] + (0 if "R_phi" in self.drop else R_phi)
        self.h[l + 1, now] = self.h[l, now] + kernel @ self.g[l + 1, past] / L
        if alpha:
            self._add_source(self.h[l + 1], "u", l, now, M_phi)
        return h_k, D_h

    def _backward(
        self, l: int, now: slice, past: slice, h_k: Float[Tensor, "Q M P"], D_h: Float[Tensor, "2 Q M P J"]
    ) -> None:
        """Extend the neurons by z_k and g_k, and the stream by g^l."""
        at, upto, phi = self.layers[l], slice(0, now.stop), self.problem.activation
        c, alpha, L = self.problem.c, self.problem.alpha_star, self.problem.L
        # z_k = xi + S c Delta C_g sigma phi + alpha S A sigma phi
        pull = torch.zeros_like(self.C_g[l + 1, now, upto])
        pull[:, past] = c * self.delta[past] * self.C_g[l + 1, now, past]
        if alpha:
            pull += alpha * L * self.g[l + 1, now, self._sources("u", l, upto)]
        sigma = torch.ones_like(at.sigma_QI) if "sigma_in_z" in self.drop else at.sigma_QI
        pull_QIJ = pull * sigma[:, None, upto]
        z = at.xi.extend(self.C_g[l + 1], now) + at.phi_QMI[..., upto] @ pull_QIJ.mT
        D_z = pull_QIJ[:, None] @ at.D_phi[..., upto, upto]
        D_z[XI, ..., now] += self.eye
        slope, bend = phi.slope(h_k), phi.bend(h_k) * z
        at.g_QMI[..., now] = slope * z
        at.D_g[..., now, upto] = bend.unsqueeze(-1) * D_h + slope.unsqueeze(-1) * D_z
        at.A_QI[:, now] = (z * at.phi_QMI[..., now]).mean(1)

        # g^l = g^{l+1} + r^l / L + S [R_g + 1_{s<t} c Delta (M_g + M_AA)] h^l / L
        M_g = _mixture(at.sigma_QI, at.g_QMI, now, upto)
        routed = at.slope_QI * at.A_QI
        M_AA = routed[:, now].T @ routed[:, past] / len(routed)
        kernel = torch.zeros_like(M_g) if "R_g" in self.drop else _response(at.sigma_QI, at.D_g[U], now, upto)
        kernel[:, past] += c * self.delta[past] * (M_g[:, past] + (0 if "M_AA" in self.drop else M_AA))
        self.g[l, now] = self.g[l + 1, now] + kernel @ self.h[l, upto] / L
        if alpha:
            self._add_source(self.g[l], "r", l, now, M_g)

    def _add_source(
        self, stream: Float[Tensor, "I K"], kind: Literal["u", "r"], l: int, now: slice, M: Float[Tensor, "P J"]
    ) -> None:
        """Add u^l / L or r^l / L, drawn from GP(alpha L M), to a stream."""
        new, upto = self._sources(kind, l, now), self._sources(kind, l, slice(0, now.stop))
        rows = self.problem.alpha_star * self.problem.L * M
        self.source_covariance[new, upto], self.source_covariance[upto, new] = rows, rows.T
        stream[now, new] += self.eye / self.problem.L


def _mixture(
    sigma_QI: Float[Tensor, "Q I"], value_QMI: Float[Tensor, "Q M I"], rows: slice, columns: slice
) -> Float[Tensor, "rows columns"]:
    """Return M = [sigma sigma {v v}] for some rows and columns."""
    within = value_QMI[..., rows].mT @ value_QMI[..., columns] / value_QMI.shape[1]
    return torch.einsum("qi,qij,qj->ij", sigma_QI[:, rows], within, sigma_QI[:, columns]) / len(sigma_QI)


def _response(
    sigma_QI: Float[Tensor, "Q I"], derivative_QMIJ: Float[Tensor, "Q M I I"], rows: slice, columns: slice
) -> Float[Tensor, "rows columns"]:
    """Return R = [sigma {dv / ds}] for some rows and columns."""
    return torch.einsum("qi,qij->ij", sigma_QI[:, rows], derivative_QMIJ[:, :, rows, columns].mean(1)) / len(sigma_QI)
