import functools
import math

import numpy as np
import pytest
import torch

from expertp.errors import InputError
from expertp.theory import kernel, reduced
from expertp.theory.finite import Size, simulate
from expertp.theory.kernel import memory_needed
from expertp.theory.problem import Problem, make_data
from expertp.theory.sampling import Sampling
from expertp.theory.trajectory import distance

BASE = Problem(P=3, D=4, T=6, L=2, indices=2, degree=3, eta=0.06, gamma0=6, bias_std=0.2, data_seed=8)
PROBLEMS = {
    "soft": BASE,
    "soft0": BASE.replace(gate="soft0"),
    "hard": BASE.replace(gate="hard", kappa=0.5, eta_b=0.1, bias_std=1),
    "hard, fixed biases": BASE.replace(gate="hard", kappa=0.25),
    "frozen embedding": BASE.replace(train_embed=False),
    "one layer": BASE.replace(L=1, phi="erf"),
    "three layers": BASE.replace(L=3, T=4, eta=0.1, phi="tanh"),
    "more points than dimensions": BASE.replace(P=5, D=2, T=3, eta=0.1),
}
COARSE = Sampling(nodes=4, neurons=16, replicates=2, dtype=torch.float64)
REPLICATES = 8


@functools.cache
def replicates(form, problem, **options):
    """Return independent solutions by a form, with as many nodes in both: what differs is how neurons are sampled."""
    neurons = {kernel: 128, reduced: 1024}[form]
    return [form.solve(problem, Sampling(16, neurons, 1, seed, torch.float64), **options) for seed in range(REPLICATES)]


def mean_and_error(runs, name):
    """Return the mean of what replicates found, and its standard error relative to it."""
    each = np.stack([getattr(run, name) for run in runs])
    error = math.sqrt((each.var(0, ddof=1) / len(each)).sum())
    return each.mean(0), error / np.linalg.norm(each.mean(0))


def apart(problem, name="f", **options):
    """Return how far the forms lie apart, and the Monte-Carlo error of that."""
    seen, seen_error = mean_and_error(replicates(kernel, problem, **options), name)
    said, said_error = mean_and_error(replicates(reduced, problem, kernels=True), name)
    return distance(seen, said), math.hypot(seen_error, said_error)


@pytest.mark.heavy
@pytest.mark.parametrize("name", PROBLEMS)
def test_both_forms_agree_within_four_monte_carlo_errors(name):
    problem = PROBLEMS[name]
    for quantity in ("f", "C_h", "C_g"):
        missed, error = apart(problem, quantity)
        assert error < 0.005, quantity
        assert missed < 4 * error, quantity
    (first, *_), (other, *_) = replicates(kernel, problem), replicates(reduced, problem, kernels=True)
    assert other.is_monotone
    for quantity in ("f", "p", "loads", "biases", "C_h", "C_g"):
        assert getattr(first, quantity).shape == getattr(other, quantity).shape, quantity


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["soft", "hard"])
def test_both_forms_have_the_same_routers(name):
    """A node's router hears from its own neurons only, so its error is larger."""
    missed, error = apart(PROBLEMS[name], "p")
    assert error < 0.05
    assert missed < 4 * error


@pytest.mark.heavy
@pytest.mark.parametrize("term", ["R_phi", "R_g", "M_AA", "sigma_in_z"])
def test_a_term_that_is_left_out_is_missed(term):
    problem = BASE.replace(gamma0=8)
    agreed, error = apart(problem)
    missed, _ = apart(problem, drop=frozenset({term}))
    assert missed > 5 * max(agreed, error)


def test_the_mean_of_replicates_is_returned_with_their_kernels():
    both = kernel.solve(BASE, Sampling(4, 16, 2, 3, torch.float64))
    assert np.array_equal(both.f, both.f_each.mean(0))
    assert both.f_each.shape == (2, 3, 6)
    assert not np.isclose(both.f_each[0, :, 1:], both.f_each[1, :, 1:]).all()
    assert both.C_h.shape == (3, 3, 6, 3, 6)
    first = kernel.solve(BASE, Sampling(4, 16, 1, 3, torch.float64))
    assert np.array_equal(first.f_each[0], both.f_each[0])
    for C in (first.C_h, first.C_g):
        flat = C.reshape(3, 18, 18)
        assert np.abs(flat - flat.transpose(0, 2, 1)).max() < 1e-14


def test_without_a_sampling_the_default_one_is_used():
    problem = BASE.replace(T=2, L=1)
    seen, said = kernel.solve(problem), kernel.solve(problem, Sampling(16, 256, 2, dtype=torch.float64))
    assert seen.p.shape == (2, 1, 16, 3, 2)
    assert np.array_equal(seen.f_each, said.f_each)


def test_the_limit_starts_with_the_kernels_of_the_data_and_no_output():
    seen = kernel.solve(BASE, COARSE)
    assert np.abs(seen.C_h[0, :, 0, :, 0] - make_data(BASE).K_x).max() < 1e-12
    assert np.abs(seen.C_g[-1, :, 0, :, 0] - 1).max() < 1e-12
    assert np.abs(seen.f_each[..., 0]).max() < 1e-12
    assert not seen.p[..., 0].any()


@pytest.mark.parametrize("alpha_star", [0.0, 1.0])
def test_a_target_changes_nothing_before_the_first_step(tmp_path, alpha_star):
    data, runs = make_data(BASE), []
    for shift in (0.0, 0.5):
        path = tmp_path / f"{shift}.csv"
        np.savetxt(path, np.column_stack([data.X, data.y + shift * np.array([0, 1, 0])]), delimiter=",", fmt="%.17g")
        runs.append(kernel.solve(BASE.replace(data=str(path), target="last_column", alpha_star=alpha_star), COARSE))
    one, other = runs
    for name in ("f", "p", "loads", "biases"):
        assert np.array_equal(getattr(one, name)[..., 0], getattr(other, name)[..., 0]), name
    for name in ("C_h", "C_g"):
        assert np.array_equal(getattr(one, name)[:, :, 0, :, 0], getattr(other, name)[:, :, 0, :, 0]), name
    assert np.abs(one.f[:, 1] - other.f[:, 1]).min() > 1e-4


def test_hard_gates_open_exactly_their_share_and_move_their_biases():
    seen = kernel.solve(PROBLEMS["hard"], COARSE)
    assert np.allclose(seen.loads.mean(2), 0.5, rtol=0, atol=1e-15)
    assert np.allclose(np.diff(seen.biases, axis=-1), 0.1 * (0.5 - seen.loads[..., :-1]), rtol=0, atol=1e-12)
    assert np.ptp(seen.biases, axis=-1).max() > 0.05


def test_a_process_drawn_block_by_block_has_the_covariance_asked_for():
    """With unit vectors as noise, samples are the factor itself."""
    rng = np.random.default_rng(0)
    for rank in (9, 4, 1):  # blocks of three: of full rank, determined from the second on, determined from the first on
        root = rng.standard_normal((9, rank))
        C = torch.from_numpy(root @ root.T)
        process = kernel._Process(torch.eye(9, dtype=torch.float64)[None])
        for block in range(3):
            now = slice(3 * block, 3 * block + 3)
            known = C.clone()
            known[now.stop :] = known[:, now.stop :] = math.nan  # what is later is not looked at
            drawn = process.extend(known, now)
            assert torch.equal(drawn, process.value[..., now])
        factor = process.value[0]
        assert (factor.T @ factor - C).abs().max() < 1e-7 * C.abs().max()
        assert np.linalg.matrix_rank(factor.numpy(), tol=1e-6) == rank


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"L": 1}, Size(N=128, E=4, n_hid=32)),
        ({"L": 1, "gate": "hard", "kappa": 0.5, "bias_std": 1}, Size(N=128, E=4, n_hid=32)),
        ({"L": 2}, Size(N=256, E=4, n_hid=32)),
    ],
)
def test_networks_whose_stream_is_as_wide_as_their_experts_follow_alpha_star(changes, size):
    problem = BASE.replace(eta=0.04, **changes)
    assert size.alpha_star(problem) == 1
    nets = simulate(problem, size, range(96), "orthonormal", "stratified", kernels=True, together=48)
    sampling = Sampling(4, 256, 2, dtype=torch.float64)
    without, with_it = (kernel.solve(problem.replace(alpha_star=alpha), sampling) for alpha in (0.0, 1.0))
    assert with_it.is_monotone
    assert distance(nets.f, with_it.f) < 3 * nets.mc_error
    for quantity in ("f", "C_h", "C_g"):
        missed, agreed = (distance(getattr(nets, quantity), getattr(each, quantity)) for each in (without, with_it))
        assert missed > 0.08, quantity
        assert missed > 5 * agreed, quantity


@pytest.mark.heavy
def test_an_alpha_star_of_almost_nothing_is_nothing():
    """Though its sources give every step directions of its own, which at alpha_star = 0 the past determines."""
    seen, seen_error = mean_and_error(replicates(kernel, BASE.replace(alpha_star=1e-6)), "f")
    said, said_error = mean_and_error(replicates(reduced, BASE, kernels=True), "f")
    assert distance(seen, said) < 4 * math.hypot(seen_error, said_error)


@pytest.mark.parametrize(
    ("changes", "sampling", "facts"),
    [
        ({"n_hid": 16}, COARSE, ("n_hid=16", "n_hid=inf", "use the reduced form")),
        (
            {"router_init_eps": 0.1},
            COARSE,
            ("router_init_eps", "p = 0", "use the reduced form"),
        ),
        (
            {"gate": "hard", "kappa": 0.4},
            COARSE,
            ("kappa=0.4 of nodes=4 is 1.6", "make kappa * nodes whole"),
        ),
        ({}, Sampling(4, 7), ("neurons=7: must be even",)),
    ],
)
def test_what_the_kernel_form_cannot_do_is_refused(changes, sampling, facts):
    with pytest.raises(InputError) as error:
        kernel.solve(BASE.replace(**changes), sampling)
    assert [fact for fact in facts if fact not in str(error.value)] == []


def test_what_does_not_fit_into_memory_is_refused_with_the_numbers(monkeypatch):
    sampling = Sampling(nodes=8, neurons=512)
    problem = BASE.replace(P=10, T=32)
    assert memory_needed(problem, sampling) == 4 * (2 * 8 * 512) * (10 * 32) ** 2 * 4
    monkeypatch.setattr(kernel, "memory_bytes", lambda: 2 * 2**30)
    with pytest.raises(InputError) as error:
        kernel.solve(problem, sampling)
    facts = ("P*T=320", "8x512 neurons", "12.5 GiB", "2.0 GiB", "lower P, T or neurons", "use the reduced form")
    assert [fact for fact in facts if fact not in str(error.value)] == []
    needed = memory_needed(BASE, COARSE)
    monkeypatch.setattr(kernel, "memory_bytes", lambda: needed / 0.61)
    with pytest.raises(InputError, match="or use the reduced form"):
        kernel.solve(BASE, COARSE)
    monkeypatch.setattr(kernel, "memory_bytes", lambda: needed / 0.59)
    assert kernel.solve(BASE, COARSE).f.shape == (3, 6)


def test_progress_is_told_in_steps_of_replicates():
    told = []
    kernel.solve(BASE, COARSE, tick=lambda done, total: told.append((done, total)))
    assert told == [(step, 12) for step in range(1, 13)]


def test_a_training_that_diverges_is_one_line():
    problem = Problem(P=3, D=4, T=6, L=2, indices=2, degree=3, data_seed=3, eta=300.0)
    with pytest.raises(InputError, match=r"eta=300: training diverges at step \d; lower eta or gamma0"):
        kernel.solve(problem, Sampling(8, 64, 1, dtype=torch.float64))
