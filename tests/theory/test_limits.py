import numpy as np
import pytest
import torch

from expertp.theory import reduced
from expertp.theory.compare import solve
from expertp.theory.finite import Size, draw_weights, passes
from expertp.theory.limits import infinite_depth, static_kernel, static_training
from expertp.theory.problem import Problem, make_data
from expertp.theory.sampling import Sampling
from expertp.theory.spec import SolverSpec
from expertp.theory.trajectory import distance

SMALL = Problem(P=4, D=5, T=6, L=2, indices=2, eta=0.1, data_seed=1)
SAMPLING = Sampling(8, 256, replicates=2, dtype=torch.float64)


def at_depth(problem):
    return reduced.solve(problem, SAMPLING)


@pytest.mark.heavy
def test_extrapolation_is_nearer_to_a_deep_network_than_what_it_is_made_of():
    learning = SMALL.replace(gamma0=6.0, T=16)
    deep = at_depth(learning.replace(L=64)).f
    extrapolated = infinite_depth(learning, at_depth)
    assert distance(extrapolated.f, deep) < 0.4 * distance(at_depth(learning.replace(L=4)).f, deep)
    assert np.allclose(extrapolated.f_each.mean(0), extrapolated.f)


def test_a_solver_may_be_asked_for_infinite_depth():
    solver = SolverSpec(nodes=4, neurons=16, replicates=2)
    shallow, deep = (solve(SMALL.replace(L=L), solver).f for L in (2, 4))
    found = solve(SMALL, solver.replace(infinite_depth=True))
    assert np.allclose(found.f, 2 * deep - shallow)


@pytest.mark.heavy
@pytest.mark.parametrize("train_embed", [True, False])
def test_the_static_kernel_is_that_of_gradients_in_a_wide_network(train_embed):
    """Theta = gamma0^2 sum over weights of multiplier df/dtheta df'/dtheta, by automatic differentiation."""
    problem = SMALL.replace(train_embed=train_embed, gamma0=1.0)
    size = Size(N=256, E=64, n_hid=64)
    data, weights = make_data(problem), draw_weights(problem, size, [0], "orthonormal", "stratified")
    X, y = torch.from_numpy(data.X), torch.from_numpy(data.y)
    trained = weights.trained(problem)
    for weight in trained.values():
        weight.requires_grad_(True)
    f = passes(problem, weights, X, y).f_SP[0]
    in_layer, in_stream = problem.L * size.E, size.N
    multipliers = {
        "W0_SND": in_stream,
        "w_SN": in_stream,
        "W1_SLEMN": in_layer * size.n_hid,
        "W2_SLNEM": in_layer * size.n_hid,
        "r_SLEN": in_layer * in_stream,
    }
    rows = [torch.autograd.grad(each, list(trained.values()), retain_graph=True) for each in f]
    kernel = torch.zeros(problem.P, problem.P, dtype=torch.float64)
    for place, name in enumerate(trained):
        flat = torch.stack([row[place].flatten() for row in rows])
        kernel += multipliers[name] * flat @ flat.T
    assert distance(kernel.numpy(), static_kernel(problem, SAMPLING)) < 0.03


def test_without_feature_learning_training_follows_the_static_kernel():
    still = SMALL.replace(gamma0=0.01)
    static = static_training(still, static_kernel(still, SAMPLING))
    assert distance(reduced.solve(still, SAMPLING).f, static) < 1e-3
    learning = SMALL.replace(gamma0=4.0)
    static = static_training(learning, static_kernel(learning, SAMPLING))
    assert distance(reduced.solve(learning, SAMPLING).f, static) > 0.02


def test_static_training_is_gradient_descent_by_a_kernel():
    kernel = np.diag([1.0, 2.0, 3.0, 4.0])
    y = make_data(SMALL).y
    shrink = (1 - SMALL.eta / SMALL.P * np.diag(kernel))[:, None] ** np.arange(SMALL.T)
    assert np.allclose(static_training(SMALL, kernel), y[:, None] * (1 - shrink))


def test_infinite_depth_keeps_the_layers_that_networks_have():
    solver = SolverSpec(nodes=4, neurons=16, replicates=2, infinite_depth=True)
    found, deep = solve(SMALL, solver, kernels=True), solve(SMALL.replace(L=4), solver.replace(infinite_depth=False))
    assert found.C_h.shape[0] == found.C_g.shape[0] == SMALL.L + 1
    assert np.array_equal(found.p, deep.p[:, ::2])
