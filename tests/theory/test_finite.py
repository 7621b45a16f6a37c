import copy
import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from expertp.errors import InputError
from expertp.theory.finite import Size, Weights, autograd_descend, descend, draw_weights, passes, simulate, train
from expertp.theory.problem import Problem, make_data
from expertp.theory.trajectory import distance

BASE = Problem(P=4, D=5, T=5, L=2, indices=2, degree=2, eta=0.3, data_seed=4)
SMALL = Size(N=12, E=4, n_hid=3)
GATES = {
    "soft": BASE,
    "soft0": BASE.replace(gate="soft0"),
    "hard": BASE.replace(gate="hard", kappa=0.5, eta_b=0.1),
}


def tensors(problem):
    data = make_data(problem)
    return torch.from_numpy(data.X), torch.from_numpy(data.y)


def furthest(one, other):
    """Return by how much the weights that differ most do, relative to their size."""
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(Weights)]
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("L", [1, 2, 3])
@pytest.mark.parametrize("train_embed", [True, False])
def test_updates_written_by_hand_are_those_of_autograd(gate, L, train_embed):
    problem = GATES[gate].replace(L=L, train_embed=train_embed, router_init_eps=0.3)
    X, y = tensors(problem)
    by_hand = draw_weights(problem, SMALL, [0, 1, 2])
    by_autograd, start = copy.deepcopy(by_hand), copy.deepcopy(by_hand)
    for _ in range(5):
        descend(problem, by_hand, passes(problem, by_hand, X, y), X)
        autograd_descend(problem, by_autograd, X, y)
        assert furthest(by_hand, by_autograd) < 1e-12
    for field in fields(Weights):
        moves = {"W0_SND": train_embed, "b_SLE": gate == "hard"}.get(field.name, True)
        moved = getattr(by_hand, field.name) - getattr(start, field.name)
        assert moved.flatten(1).any(1).tolist() == [moves] * 3, field.name


@pytest.mark.parametrize("phi", ["tanh", "erf", "linear"])
def test_every_nonlinearity_trains_as_by_autograd(phi):
    problem = BASE.replace(phi=phi, gamma0=3)
    X, y = tensors(problem)
    by_hand = draw_weights(problem, SMALL, [0])
    by_autograd = copy.deepcopy(by_hand)
    for _ in range(3):
        descend(problem, by_hand, passes(problem, by_hand, X, y), X)
        autograd_descend(problem, by_autograd, X, y)
    assert furthest(by_hand, by_autograd) < 1e-12


@pytest.mark.parametrize("gate", GATES)
def test_a_pass_is_the_model_written_out(gate):
    """One network, one datum, one expert after the other."""
    problem = GATES[gate].replace(router_init_eps=0.5)
    weights, (X, y) = draw_weights(problem, SMALL, [3]), tensors(problem)
    at = passes(problem, weights, X, y)
    N, E, M = SMALL.N, SMALL.E, SMALL.n_hid
    for datum in range(problem.P):
        h = weights.W0_SND[0] @ X[datum] / math.sqrt(problem.D)
        for layer in range(problem.L):
            p = [weights.r_SLEN[0, layer, k] @ h / N for k in range(E)]
            b = weights.b_SLE[0, layer]
            score = [float(torch.sigmoid(p[k]) + b[k]) for k in range(E)]
            shift = b if gate == "soft" else torch.zeros(E)
            added = torch.zeros(N, dtype=torch.float64)
            for k in range(E):
                if gate == "hard" and score[k] < sorted(score)[-2]:
                    continue
                h_k = weights.W1_SLEMN[0, layer, k] @ h / math.sqrt(N)
                out = weights.W2_SLNEM[0, layer, :, k] @ torch.nn.functional.gelu(h_k)
                added += torch.sigmoid(p[k] + shift[k]) * out
            h = h + math.sqrt(N) / (problem.L * M * E) * added
        f = weights.w_SN[0] @ h / (problem.gamma0 * N)
        torch.testing.assert_close(at.f_SP[0, datum], f, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(at.delta_SP[0, datum], y[datum] - f, rtol=1e-12, atol=1e-14)


def test_training_yields_what_is_before_each_step():
    problem = BASE.replace(T=3)
    weights, (X, y) = draw_weights(problem, SMALL, [0]), tensors(problem)
    expected, outputs = copy.deepcopy(weights), []
    for _ in range(3):
        outputs.append(passes(problem, expected, X, y).f_SP)
        descend(problem, expected, passes(problem, expected, X, y), X)
    seen = list(train(problem, weights, make_data(problem)))
    assert len(seen) == 3
    assert all(torch.equal(at.f_SP, f) for at, f in zip(seen, outputs, strict=True))
    # Fields of earlier steps are not overwritten by later ones: the readout is changed in place.
    assert not torch.equal(seen[0].g_SNP[-1], seen[1].g_SNP[-1])
    # The last step is not taken: nobody would see it.
    untouched, start = (draw_weights(problem, SMALL, [0]) for _ in range(2))
    assert len(list(train(problem.replace(T=1), untouched, make_data(problem)))) == 1
    assert all(torch.equal(getattr(untouched, each.name), getattr(start, each.name)) for each in fields(Weights))


def test_a_seed_decides_its_network_whatever_the_others():
    alone, among = draw_weights(BASE, SMALL, [4]), draw_weights(BASE, SMALL, [2, 4, 7])
    for field in fields(Weights):
        assert torch.equal(getattr(alone, field.name)[0], getattr(among, field.name)[1]), field.name
        if field.name != "r_SLEN":  # zero at the start
            assert not torch.isclose(getattr(among, field.name)[0], getattr(among, field.name)[2]).any(), field.name


@pytest.mark.parametrize("gate", GATES)
def test_networks_trained_together_are_those_trained_alone(gate):
    together, in_pairs, alone = (simulate(GATES[gate], SMALL, range(5), together=n, kernels=True) for n in (8, 2, 1))
    for other in (in_pairs, alone):
        for name in ("f", "f_each", "p", "loads", "biases", "C_h", "C_g"):
            assert np.allclose(getattr(together, name), getattr(other, name), rtol=0, atol=1e-12), name
    assert together.f_each.shape == (5, 4, 5)
    assert np.array_equal(together.f, together.f_each.mean(0))
    assert not np.isclose(together.f_each[0], together.f_each[1]).any()


def test_a_trajectory_records_what_the_networks_did():
    problem = GATES["hard"]
    seen = simulate(problem, SMALL, [3, 5], kernels=True)
    assert seen.p.shape == (2, 2, 4, 4, 5)
    assert seen.loads.shape == seen.biases.shape == (2, 2, 4, 5)
    assert seen.C_h.shape == seen.C_g.shape == (3, 4, 5, 4, 5)
    weights = draw_weights(problem, SMALL, [3, 5])
    for step, at in enumerate(train(problem, weights, make_data(problem))):
        assert np.allclose(seen.f_each[..., step], at.f_SP, rtol=0, atol=1e-14)
        assert np.array_equal(seen.biases[..., step], weights.b_SLE)
        for layer in range(2):
            assert np.allclose(seen.p[:, layer, ..., step], at.layers[layer].p_SEP, rtol=0, atol=1e-14)
            assert np.allclose(seen.loads[:, layer, :, step], at.layers[layer].gate.mask.mean(-1))
        for layer in range(3):
            for name, stream in (("C_h", at.h_SNP[layer]), ("C_g", at.g_SNP[layer])):
                expected = torch.einsum("snp,snq->pq", stream, stream) / (2 * SMALL.N)
                assert np.allclose(getattr(seen, name)[layer, :, step, :, step], expected, rtol=0, atol=1e-12)
    assert simulate(problem, SMALL, [3]).C_h is None


def test_an_orthonormal_frame_starts_with_the_kernels_of_the_limit():
    problem = BASE.replace(T=1)
    exact, random = (
        simulate(problem, Size(16, 4, 4), [0, 1], frame, kernels=True) for frame in ("orthonormal", "gaussian")
    )
    K_x = make_data(problem).K_x
    assert np.abs(exact.C_h[0, :, 0, :, 0] - K_x).max() < 1e-12
    assert np.abs(exact.C_g[-1, :, 0, :, 0] - 1).max() < 1e-12
    assert np.abs(random.C_h[0, :, 0, :, 0] - K_x).max() > 0.01
    weights = draw_weights(problem, Size(16, 4, 4), [0], "orthonormal")
    assert (weights.w_SN[0] @ weights.W0_SND[0]).abs().max() < 1e-12


def test_an_orthonormal_frame_needs_room():
    with pytest.raises(InputError, match=r"orthonormal .*N >= D \+ 1 = 6, not 5"):
        draw_weights(BASE, Size(5, 4, 3), [0], "orthonormal")
    assert draw_weights(BASE, Size(6, 4, 3), [0], "orthonormal").W0_SND.shape == (1, 6, 5)
    assert draw_weights(BASE, Size(5, 4, 3), [0]).W0_SND.shape == (1, 5, 5)


@pytest.mark.parametrize("bias", ["normal", "uniform"])
def test_stratified_biases_are_quantiles_in_random_order(bias):
    problem = BASE.replace(bias=bias, bias_std=0.5)
    b = draw_weights(problem, Size(12, 8, 3), [0, 1], biases="stratified").b_SLE
    quantiles = problem.bias_at((torch.arange(8, dtype=torch.float64) + 0.5) / 8)
    torch.testing.assert_close(b.sort(-1).values, quantiles.expand(2, 2, 8), rtol=0, atol=1e-15)
    assert len({tuple(each) for each in b.flatten(0, 1).tolist()}) == 4


def test_drawn_biases_follow_their_law():
    for bias, kurtosis in (("normal", 3.0), ("uniform", 1.8)):
        b = draw_weights(BASE.replace(bias=bias, bias_std=0.5), Size(6, 20_000, 1), [0]).b_SLE[0, 0]
        assert abs(b.mean()) < 4 * 0.5 / math.sqrt(20_000)
        assert b.std().item() == pytest.approx(0.5, rel=4 / math.sqrt(20_000))
        assert ((b / 0.5) ** 4).mean().item() == pytest.approx(kurtosis, rel=0.05)


def test_weights_start_normal_and_routers_at_zero():
    weights = draw_weights(BASE, Size(100, 20, 5), [0])
    for field in fields(Weights):
        weight = getattr(weights, field.name)
        if field.name == "r_SLEN":
            assert not weight.any()
        else:
            assert weight.std().item() == pytest.approx(1, rel=4 / math.sqrt(2 * weight.numel())), field.name
            assert abs(weight.mean().item()) < 4 / math.sqrt(weight.numel()), field.name


def test_routers_may_start_with_noise_of_a_given_size():
    problem = BASE.replace(T=1, router_init_eps=0.2)
    p = simulate(problem, Size(8, 5000, 1), [0], "orthonormal").p[0, 0, :, :, 0]
    expected = 0.2 * np.sqrt(make_data(problem).K_x.diagonal())
    assert p.std(0) == pytest.approx(expected, rel=4 / math.sqrt(2 * 5000))


def test_a_size_counts_its_weights():
    weights = draw_weights(BASE.replace(L=3), SMALL, [0]).trained(BASE)
    assert SMALL.parameters(BASE.replace(L=3)) == sum(each.numel() for each in weights.values())
    assert set(weights) == {"W0_SND", "w_SN", "W1_SLEMN", "W2_SLNEM", "r_SLEN"}
    frozen = draw_weights(BASE, SMALL, [0]).trained(BASE.replace(train_embed=False))
    assert set(frozen) == set(weights) - {"W0_SND"}


def test_alpha_star_compares_the_stream_with_all_experts():
    assert Size(N=48, E=4, n_hid=6).alpha_star(BASE) == pytest.approx(1)
    assert Size(N=48, E=8, n_hid=6).alpha_star(BASE.replace(L=4)) == pytest.approx(0.25)


@pytest.mark.heavy
def test_outputs_at_the_start_vanish_as_the_root_of_the_width():
    problem = BASE.replace(T=1)
    small, large = (
        simulate(problem, Size(N, 4, N // 4), range(64), together=64).f_each.std() * math.sqrt(N) for N in (16, 256)
    )
    assert small / large == pytest.approx(1, abs=0.2)


def test_gradient_descent_learns():
    seen = simulate(BASE.replace(T=10), Size(64, 8, 8), range(2))
    assert seen.is_monotone
    assert seen.loss[-1] < 0.5 * seen.loss[0]


def test_single_precision_tells_the_same_story():
    double, single = (simulate(BASE, SMALL, [0, 1], dtype=dtype) for dtype in (torch.float64, torch.float32))
    assert 1e-9 < distance(single.f, double.f) < 1e-5
    assert single.f.dtype == np.float64


def test_hard_gates_open_exactly_their_share():
    seen = simulate(GATES["hard"], SMALL, [0, 1])
    assert np.allclose(seen.loads.mean(2), 0.5, rtol=0, atol=1e-15)
    assert np.ptp(seen.biases, axis=-1).max() > 0.01
    assert np.allclose(seen.biases.mean(2), seen.biases.mean(2)[..., :1], rtol=0, atol=1e-15)


def test_a_number_of_experts_that_a_hard_gate_cannot_split_is_refused():
    with pytest.raises(InputError, match=r"^kappa=0.5 of E=5 is 2.5 experts; make kappa \* E whole$"):
        simulate(GATES["hard"], Size(12, 5, 3), [0])


def test_progress_is_told_in_steps_of_networks():
    told = []
    simulate(BASE, SMALL, range(3), together=2, tick=lambda done, total: told.append((done, total)))
    assert told == [(2, 15), (4, 15), (6, 15), (8, 15), (10, 15), (11, 15), (12, 15), (13, 15), (14, 15), (15, 15)]
