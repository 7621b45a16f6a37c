"""Where the theory has a limit of its own: infinite depth, and a kernel that stands still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from expertp.theory.problem import Floats, Problem, make_data
from expertp.theory.reduced import draw_particles, in_its_span, march
from expertp.theory.sampling import Sampling, default_sampling
from expertp.theory.trajectory import Trajectory

Solver = Callable[[Problem], Trajectory]


def infinite_depth(problem: Problem, solver: Solver) -> Trajectory:
    """Return the trajectory at infinite depth: f by Richardson's extrapolation from L and 2 L, all else that of 2 L.

    The error of a depth is 1 / L. At alpha_star = 0 the limit is an ordinary differential equation in depth, with
    alpha_star > 0 a stochastic one.
    """
    shallow, deep = (solver(problem.replace(L=depth)) for depth in (problem.L, 2 * problem.L))
    return replace(deep, f=2 * deep.f - shallow.f, f_each=2 * deep.f_each - shallow.f_each)


def static_kernel(problem: Problem, sampling: Sampling | None = None) -> Floats:
    """Return the tangent kernel [P, P] at the start, which rules training as gamma0 goes to 0.

    Theta = C_h^L + K_x C_g^0 + L^{-1} sum_l [C_g^{l+1} M_phi + C_h^l (M_g + M_AA)]
    """
    sampling = sampling or default_sampling(problem)
    data = in_its_span(make_data(problem))
    phi, kernels = problem.activation, []
    for replicate in range(sampling.replicates):
        state = draw_particles(problem, sampling, data.X.shape[1], replicate)
        at = next(march(problem.replace(T=1), state, data))
        C_h, C_g = ([stream @ stream.T for stream in each] for each in (at.H_Pd, at.G_Pd))
        kernel = C_h[-1].double()
        if problem.train_embed:
            kernel += torch.from_numpy(data.X @ data.X.T / problem.D) * C_g[0]
        for l, gate in enumerate(at.gate):
            h_k, z = state.v1_LQMd[l] @ at.H_Pd[l].T, state.v2_LQMd[l] @ at.G_Pd[l + 1].T
            phi_k = phi.value(h_k)
            sigma_phi, sigma_g = (gate.sigma.unsqueeze(1) * each for each in (phi_k, phi.slope(h_k) * z))
            routed = gate.slope * (z * phi_k).mean(1)
            M_phi, M_g = (
                torch.einsum("qmi,qmj->ij", each, each) / each[..., 0].numel() for each in (sigma_phi, sigma_g)
            )
            M_AA = routed.T @ routed / len(routed)
            kernel += (C_g[l + 1] * M_phi + C_h[l] * (M_g + M_AA)) / problem.L
        kernels.append(kernel.numpy())
    return np.asarray(np.mean(kernels, axis=0))


def static_training(problem: Problem, kernel: Floats) -> Floats:
    """Return f [P, T] of gradient descent under a kernel that stands still: f += eta / P Theta (y - f)."""
    y, f = make_data(problem).y, np.zeros(problem.P)
    path = []
    for _ in range(problem.T):
        path.append(f)
        f = f + problem.eta / problem.P * kernel @ (y - f)
    return np.stack(path, axis=1)
