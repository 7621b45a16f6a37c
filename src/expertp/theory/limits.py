"""Further limits of the theory: infinite depth, and the static (tangent) kernel as gamma0 -> 0.

Shapes: P datum, T step.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float

from expertp.theory.problem import Problem, make_data
from expertp.theory.reduced import draw_particles, in_its_span, march
from expertp.theory.sampling import Sampling, default_sampling
from expertp.theory.trajectory import Trajectory

Solver = Callable[[Problem], Trajectory]


def infinite_depth(problem: Problem, solver: Solver) -> Trajectory:
    """Return the trajectory at infinite depth: f = 2 f_{2L} - f_L (Richardson extrapolation of the error 1/L).

    The limit in depth is an ODE at alpha_star = 0 and an SDE at alpha_star > 0. All other fields are those of depth 2L
    at the depths l/L of the L layers, so that they compare with networks of L layers.
    """
    shallow, deep = (solver(problem.replace(L=depth)) for depth in (problem.L, 2 * problem.L))
    return replace(
        deep,
        f=2 * deep.f - shallow.f,
        f_each=2 * deep.f_each - shallow.f_each,
        p=deep.p[:, ::2],
        loads=deep.loads[:, ::2],
        biases=deep.biases[:, ::2],
        C_h=None if deep.C_h is None else deep.C_h[::2],
        C_g=None if deep.C_g is None else deep.C_g[::2],
    )


def static_kernel(problem: Problem, sampling: Sampling | None = None) -> Float[np.ndarray, "P P"]:
    """Return the tangent kernel at initialization, which governs training as gamma0 -> 0.

    Theta = C_h^L + K_x C_g^0 + L^{-1} sum_l [C_g^{l+1} M_phi + C_h^l (M_g + M_AA)]
    """
    sampling = sampling or default_sampling(problem)
    data = in_its_span(make_data(problem))
    kernels = []
    for replicate in range(sampling.replicates):
        state = draw_particles(problem, sampling, data.X.shape[1], replicate)
        at = next(march(problem.replace(T=1), state, data))
        C_h, C_g = ([stream @ stream.T for stream in each] for each in (at.H_Pd, at.G_Pd))
        kernel = C_h[-1].double()
        if problem.train_embed:
            kernel += torch.from_numpy(data.X @ data.X.T / problem.D) * C_g[0]
        for l, layer in enumerate(at.layers):
            sigma_g = layer.gate.sigma.unsqueeze(1) * (problem.activation.slope(layer.h_k) * layer.z)
            M_phi, M_g = (
                torch.einsum("qmi,qmj->ij", each, each) / each[..., 0].numel() for each in (layer.sigma_phi, sigma_g)
            )
            M_AA = layer.slope_A.T @ layer.slope_A / len(layer.slope_A)
            kernel += (C_g[l + 1] * M_phi + C_h[l] * (M_g + M_AA)) / problem.L
        kernels.append(kernel.numpy())
    return np.asarray(np.mean(kernels, axis=0))


def static_training(problem: Problem, kernel: Float[np.ndarray, "P P"]) -> Float[np.ndarray, "P T"]:
    """Return f of gradient descent under a static kernel: f += eta / P Theta (y - f)."""
    y, f = make_data(problem).y, np.zeros(problem.P)
    path = []
    for _ in range(problem.T):
        path.append(f)
        f = f + problem.eta / problem.P * kernel @ (y - f)
    return np.stack(path, axis=1)
