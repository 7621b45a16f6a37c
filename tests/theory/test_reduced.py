import math

import numpy as np
import pytest
import torch

from expertp.errors import InputError
from expertp.theory.finite import Size, draw_weights, simulate, train
from expertp.theory.problem import Data, Problem, make_data
from expertp.theory.reduced import Particles, draw_particles, in_its_span, march, solve
from expertp.theory.sampling import Sampling, default_sampling
from expertp.theory.trajectory import distance

BASE = Problem(P=3, D=4, T=6, L=2, indices=2, degree=3, eta=0.06, gamma0=8, bias_std=0.5, data_seed=4)
HARD = BASE.replace(gate="hard", kappa=0.25, eta_b=0.1)
COARSE = Sampling(nodes=8, neurons=16, replicates=2, dtype=torch.float64)


def as_particles(weights):
    """Return a finite network in the variables of the reduced form, whose stream then has N directions."""
    root_n = math.sqrt(weights.w_SN.shape[-1])
    return Particles(
        (weights.W0_SND[0].T / root_n).clone(),
        weights.w_SN[0] / root_n,
        weights.W1_SLEMN[0].clone(),
        weights.W2_SLNEM[0].permute(0, 2, 3, 1).clone(),
        weights.r_SLEN[0] / root_n,
        weights.b_SLE[0].clone(),
    )


@pytest.mark.parametrize("gate", ["soft", "soft0", "hard"])
@pytest.mark.parametrize(("L", "phi", "train_embed"), [(1, "gelu", True), (2, "tanh", False), (3, "erf", True)])
def test_a_finite_network_is_the_same_system_with_more_directions(gate, L, phi, train_embed):
    hard = {"kappa": 0.5, "eta_b": 0.1} if gate == "hard" else {}
    problem = BASE.replace(
        gate=gate, L=L, phi=phi, train_embed=train_embed, P=4, T=8, gamma0=2, eta=0.3, router_init_eps=0.3, **hard
    )
    weights, data = draw_weights(problem, Size(N=10, E=4, n_hid=3), [1]), make_data(problem)
    state = as_particles(weights)
    steps = 0
    for at, reduced in zip(train(problem, weights, data), march(problem, state, data), strict=True):
        sides = [(reduced.f_P, at.f_SP[0]), (reduced.delta_P, at.delta_SP[0])]
        for layer in range(L + 1):
            h, g = at.h_SNP[layer][0], at.g_SNP[layer][0]
            sides += [(reduced.H_Pd[layer] @ reduced.H_Pd[layer].T, h.T @ h / 10)]
            sides += [(reduced.G_Pd[layer] @ reduced.G_Pd[layer].T, g.T @ g / 10)]
        for layer in range(L):
            sides += [(reduced.layers[layer].p, at.layers[layer].p_SEP[0])]
            sides += [(reduced.layers[layer].gate.sigma, at.layers[layer].gate.sigma[0])]
        sides += [(state.b_LQ, weights.b_SLE[0])]
        assert max(float((seen - said).norm() / said.norm()) for seen, said in sides) < 1e-12
        steps += 1
    assert steps == 8
    assert float(at.delta_SP.norm()) < 0.9 * float(torch.from_numpy(data.y).norm())


@pytest.mark.parametrize(("P", "D", "rank"), [(3, 6, 3), (6, 4, 4), (4, 4, 4)])
def test_points_keep_their_products_in_the_space_that_they_span(P, D, rank):
    data = make_data(BASE.replace(P=P, D=D))
    inside = in_its_span(data)
    assert inside.X.shape == (P, rank)
    assert np.abs(inside.X @ inside.X.T - data.X @ data.X.T).max() < 1e-12
    assert inside.y is data.y


def test_points_that_repeat_each_other_span_less():
    X = np.random.default_rng(0).standard_normal((3, 5))
    inside = in_its_span(Data(np.concatenate([X, X[:2], X.sum(0, keepdims=True)]), np.zeros(6)))
    assert inside.X.shape == (6, 3)
    assert np.abs(inside.X[:3] @ inside.X[:3].T - X @ X.T).max() < 1e-12
    assert np.allclose(inside.X[:2], inside.X[3:5], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("P", "D"), [(3, 6), (6, 3)])
def test_coordinates_of_the_points_play_no_part(P, D):
    """In its span or not, a network of the same weights learns the same."""
    problem = BASE.replace(P=P, D=D, gamma0=2, eta=0.2)
    data = make_data(problem)
    inside = in_its_span(data)
    to_span, *_ = np.linalg.lstsq(
        data.X, inside.X, rcond=None
    )  # X to_span = inside, of orthonormal columns on its rank
    state = draw_particles(problem, COARSE, inside.X.shape[1], 0)
    wide = draw_particles(problem, COARSE, inside.X.shape[1], 0)
    wide.U_Dd = torch.from_numpy(to_span) @ wide.U_Dd
    seen, said = (
        torch.stack([at.f_P for at in march(problem, *arguments)]) for arguments in ((state, inside), (wide, data))
    )
    assert float((seen - said).norm() / said.norm()) < 1e-12


def test_outputs_start_at_zero():
    """Each neuron has a partner with the other sign of v2."""
    for sampling in (COARSE, Sampling(4, 6, 1)):
        seen = solve(BASE, sampling)
        assert np.abs(seen.f_each[..., 0]).max() < 1e-6 * np.abs(seen.f[..., -1]).max()


def test_the_kernels_start_as_those_of_the_data():
    seen = solve(BASE, COARSE, kernels=True)
    assert seen.C_h.shape == seen.C_g.shape == (3, 3, 6, 3, 6)
    assert np.abs(seen.C_h[0, :, 0, :, 0] - make_data(BASE).K_x).max() < 1e-12
    assert np.abs(seen.C_g[-1, :, 0, :, 0] - 1).max() < 1e-12
    for kernel in (seen.C_h, seen.C_g):
        flat = kernel.reshape(3, 18, 18)
        assert np.abs(flat - flat.transpose(0, 2, 1)).max() < 1e-12
        assert np.linalg.eigvalsh(flat).min() > -1e-9
    assert solve(BASE, COARSE).C_h is None


def test_replicates_are_drawn_afresh_and_seeds_repeat_them():
    one, same, other = (solve(BASE, Sampling(8, 16, 3, seed=seed)) for seed in (0, 0, 1))
    assert np.array_equal(one.f_each, same.f_each)
    assert np.array_equal(one.f, one.f_each.mean(0))
    finals = np.concatenate([one.f_each, other.f_each])[:, 0, -1]
    assert len(set(finals.round(6))) == 6
    assert one.f_each.shape == (3, 3, 6)
    assert one.p.shape == (3, 2, 8, 3, 6)
    assert one.loads.shape == one.biases.shape == (3, 2, 8, 6)


def test_layers_of_a_replicate_are_drawn_apart():
    state = draw_particles(BASE, COARSE, 4, 0)
    for one, other in (
        (state.v1_LQMd[0], state.v1_LQMd[1]),
        (state.v2_LQMd[0], state.v2_LQMd[1]),
        (state.v1_LQMd[0], state.v2_LQMd[0]),
    ):
        assert (one - other).abs().min() > 1e-6


def test_particles_are_normal_and_come_in_pairs():
    state = draw_particles(BASE, Sampling(16, 256, dtype=torch.float64), 4, 0)
    for v in (state.v1_LQMd[0], state.v2_LQMd[0]):
        flat = v.reshape(-1, 5)
        assert (flat.T @ flat / len(flat) - torch.eye(5)).abs().max() < 0.02
        assert flat.mean(0).abs().max() < 0.01
    even, odd = state.v2_LQMd[:, :, ::2], state.v2_LQMd[:, :, 1::2]
    assert torch.equal(even, -odd)
    assert torch.equal(state.v1_LQMd[:, :, ::2], state.v1_LQMd[:, :, 1::2])


def test_nodes_are_quantiles_of_the_law_of_biases():
    b = draw_particles(BASE, Sampling(32, 2, dtype=torch.float64), 4, 0).b_LQ
    quantiles = BASE.bias_at((torch.arange(32, dtype=torch.float64) + 0.5) / 32)
    torch.testing.assert_close(b, quantiles.repeat(2, 1), rtol=0, atol=1e-15)
    b[0] += 1  # a layer's biases are its own
    assert torch.equal(b[1], quantiles)


def test_more_particles_leave_a_smaller_monte_carlo_error():
    few, many = (solve(BASE, Sampling(nodes, neurons, 8)).mc_error for nodes, neurons in ((4, 16), (16, 64)))
    assert few > 4 * many > 0


@pytest.mark.heavy
def test_experts_of_finite_size_are_random_and_their_error_falls_as_the_root():
    problem = BASE.replace(n_hid=4, gamma0=2, eta=0.2)
    few, many = (solve(problem, Sampling(nodes, 4, 24)).mc_error for nodes in (64, 1024))
    assert few / many == pytest.approx(4, rel=0.35)


@pytest.mark.heavy
def test_the_mean_lies_within_a_few_errors_of_a_finer_one():
    fine = solve(BASE, Sampling(16, 2048, 4))
    for seed in (1, 2):
        coarse = solve(BASE, Sampling(16, 64, 16, seed=seed))
        assert coarse.mc_error > 4 * fine.mc_error
        assert distance(coarse.f, fine.f) < 3 * coarse.mc_error


@pytest.mark.heavy
def test_few_nodes_stand_for_all_biases():
    problem = BASE.replace(bias_std=1)
    one, few, more, many = (solve(problem, Sampling(nodes, 512, 2)).f for nodes in (1, 4, 16, 128))
    assert distance(one, many) > 3 * distance(few, many) > 9 * distance(more, many)
    assert distance(more, many) < 2e-3


@pytest.mark.parametrize("n_hid", [math.inf, 6])
def test_a_hard_gate_picks_its_share_of_nodes_for_every_datum_and_step(n_hid):
    sampling = Sampling(16, 6, 3, dtype=torch.float64)
    seen = solve(HARD.replace(n_hid=n_hid), sampling)
    assert np.allclose(seen.loads.mean(2), 0.25, rtol=0, atol=1e-15)
    assert np.allclose(seen.loads * 3, np.round(seen.loads * 3))
    state, data = draw_particles(HARD.replace(n_hid=n_hid), sampling, 3, 0), in_its_span(make_data(HARD))
    for at in march(HARD, state, data):
        assert all(layer.gate.mask.sum(0).tolist() == [4, 4, 4] for layer in at.layers)


def test_biases_of_hard_gates_move_and_keep_their_mean():
    seen = solve(HARD, COARSE)
    assert np.ptp(seen.biases, axis=-1).max() > 0.1
    assert np.allclose(np.diff(seen.biases, axis=-1), 0.1 * (0.25 - seen.loads[..., :-1]), rtol=0, atol=1e-12)
    fixed = solve(HARD.replace(eta_b=0), COARSE)
    assert np.ptp(fixed.biases, axis=-1).max() == 0


def test_a_hard_gate_that_picks_all_is_the_soft_gate_without_bias():
    hard, soft0 = (solve(BASE.replace(gate=gate), COARSE) for gate in ("hard", "soft0"))
    assert distance(hard.f, soft0.f) < 1e-12
    assert distance(solve(BASE, COARSE).f, soft0.f) > 1e-3


def test_routers_start_at_zero_or_with_noise_of_a_given_size():
    assert not solve(BASE, COARSE).p[..., 0].any()
    problem = BASE.replace(T=1, router_init_eps=0.2, L=1)
    p = solve(problem, Sampling(5000, 2, 1, dtype=torch.float64)).p[0, 0, :, :, 0]
    assert p.std(0) == pytest.approx(0.2 * np.sqrt(make_data(problem).K_x.diagonal()), rel=4 / math.sqrt(2 * 5000))


def test_without_feature_learning_outputs_are_linear_in_the_target(tmp_path):
    """Towards gamma0 = 0 the kernel stands still; away from it features follow the target."""
    data = make_data(BASE)
    outputs = {}
    for factor in (1, 2):
        path = tmp_path / f"{factor}.csv"
        np.savetxt(path, np.column_stack([data.X, factor * data.y]), delimiter=",", fmt="%.17g")
        for gamma0 in (1e-4, 2):
            problem = BASE.replace(data=str(path), target="last_column", gamma0=gamma0, eta=0.3)
            outputs[factor, gamma0] = solve(problem, COARSE).f
    assert distance(outputs[2, 1e-4], 2 * outputs[1, 1e-4]) < 1e-4
    assert distance(outputs[2, 2], 2 * outputs[1, 2]) > 0.05


@pytest.mark.heavy
@pytest.mark.parametrize("changes", [{}, {"gate": "hard", "kappa": 0.5}, {"P": 5, "D": 3, "train_embed": False}])
def test_larger_networks_come_closer(changes):
    problem = BASE.replace(gamma0=3, eta=0.15, **changes)
    limit = solve(problem, Sampling(32, 256, 4))
    # N / (n_hid E L) = 1 / 8 and 1 / 64
    small, large = (
        simulate(problem, size, range(48), "orthonormal", "stratified", together=24)
        for size in (Size(16, 8, 8), Size(64, 32, 64))
    )
    assert limit.is_monotone
    assert distance(small.f, limit.f) > 2 * distance(large.f, limit.f)
    assert distance(large.f, limit.f) < 0.02


def test_experts_of_finite_size_are_those_of_networks_with_many_such_experts():
    problem = BASE.replace(n_hid=2, gamma0=3, eta=0.15)
    nets = simulate(problem, Size(16, 256, 2), range(16), "orthonormal", "stratified", together=16)
    finite, infinite = (
        solve(problem, Sampling(4096, 2, 4)),
        solve(problem.replace(n_hid=math.inf), Sampling(32, 256, 4)),
    )
    assert distance(nets.f, finite.f) < 0.5 * distance(nets.f, infinite.f)


@pytest.mark.parametrize(
    ("changes", "sampling", "facts"),
    [
        (
            {"alpha_star": 0.5},
            COARSE,
            ("alpha_star=0.5", "exact at alpha_star=0 only", "use the kernel form"),
        ),
        ({}, Sampling(8, 7), ("neurons=7: must be even",)),
        ({"n_hid": 12}, COARSE, ("neurons=16", "n_hid=12")),
        (
            {"gate": "hard", "kappa": 0.3},
            COARSE,
            ("kappa=0.3 of nodes=8 is 2.4", "make kappa * nodes whole"),
        ),
    ],
)
def test_what_the_reduced_form_cannot_do_is_refused(changes, sampling, facts):
    with pytest.raises(InputError) as error:
        solve(BASE.replace(**changes), sampling)
    assert [fact for fact in facts if fact not in str(error.value)] == []


def test_an_odd_expert_of_finite_size_is_fine():
    assert solve(BASE.replace(n_hid=7), Sampling(8, 7)).p.shape[2] == 8


def test_progress_is_told_in_steps_of_replicates():
    told = []
    solve(BASE, COARSE, tick=lambda done, total: told.append((done, total)))
    assert told == [(step, 12) for step in range(1, 13)]


@pytest.mark.parametrize(
    ("changes", "nodes", "neurons"),
    [
        ({"gate": "soft0"}, 1, 1024),
        ({"gate": "soft"}, 64, 16),
        ({"gate": "hard", "kappa": 0.25}, 128, 8),
        ({"gate": "hard", "kappa": "1/3"}, 129, 8),
        ({"gate": "soft", "n_hid": 5}, 204, 5),
        ({"gate": "hard", "kappa": 0.4, "n_hid": 8}, 130, 8),
        ({"n_hid": 5000}, 1, 5000),
    ],
)
def test_particles_are_shared_out_by_the_gate(changes, nodes, neurons):
    seen = default_sampling(BASE.replace(**changes), particles=1024, replicates=3)
    assert (seen.nodes, seen.neurons, seen.replicates) == (nodes, neurons, 3)


def test_without_a_sampling_the_default_one_is_used():
    problem = BASE.replace(T=2, L=1)
    seen, said = solve(problem), solve(problem, default_sampling(problem))
    assert seen.p.shape == (4, 1, 64, 3, 2)
    assert np.array_equal(seen.f_each, said.f_each)


def test_default_samplings_are_accepted():
    for particles in (3, 50, 111):
        for changes in (
            {},
            {"n_hid": 3},
            {"gate": "hard", "kappa": "1/3"},
            {"gate": "hard", "kappa": 0.15, "n_hid": 7},
        ):
            problem = BASE.replace(T=1, **changes)
            assert np.isfinite(solve(problem, default_sampling(problem, particles, 1)).f).all()
