import math

import numpy as np
import pytest

from expertp.config import build
from expertp.errors import InputError
from expertp.theory import kernel, reduced
from expertp.theory.compare import LAW_EXPERTS, Comparison, compare, reference, rms_distance, solve
from expertp.theory.finite import Size, simulate
from expertp.theory.problem import Problem
from expertp.theory.spec import NetworksSpec, SolverSpec, TheorySpec
from expertp.theory.trajectory import Trajectory, distance
from expertp.util.fits import fit_slope

TINY = Problem(P=3, D=4, T=4, L=1, indices=2, eta=0.1)
SOLVER = SolverSpec(nodes=4, neurons=16, replicates=2)
SIZES = (Size(8, 4, 2), Size(16, 4, 2), Size(8, 4, 4))


@pytest.fixture(scope="module")
def told():
    ticks = []
    networks = NetworksSpec(sizes=SIZES, seeds=3)
    return compare(TINY, SOLVER, networks, tick=lambda done, total: ticks.append((done, total))), ticks


def test_a_comparison_holds_the_limit_the_networks_and_the_theory_at_their_ne(told):
    found, _ = told
    assert np.array_equal(found.theory.f, reduced.solve(TINY, SOLVER.sampling(TINY)).f)
    assert tuple(found.networks) == SIZES
    assert np.array_equal(found.networks[Size(16, 4, 2)].f, simulate(TINY, Size(16, 4, 2), range(3)).f)
    assert set(found.laws) == {2, 4}
    assert found.laws_by_size[Size(16, 4, 2)] is found.laws[2]
    assert found.laws[4].p.shape[2] == LAW_EXPERTS


def test_progress_is_that_of_the_whole(told):
    _, ticks = told
    done = [each for each, _ in ticks]
    assert done == sorted(done)
    assert ticks[-1] == (4 * (3 * 2 + 3 * 3),) * 2


def test_errors_are_distances_of_single_networks_and_of_their_mean(told):
    found, _ = told
    size = Size(8, 4, 2)
    apart = [distance(f, found.theory.f) for f in found.networks[size].f_each]
    assert found.error(size) == pytest.approx(math.sqrt(np.mean(np.square(apart))))
    assert found.error_of_mean(size) == distance(found.networks[size].f, found.theory.f)
    assert found.error_of_mean(size) < found.error(size)


def with_errors(errors):
    f = np.ones((2, 3))

    def trajectory(by):
        empty = np.zeros((2, 1, 1, 2, 3))
        return Trajectory(f, np.stack([f * (1 + by), f * (1 - by)]), f[:, 0], empty, empty[..., 0, :], empty[..., 0, :])

    return Comparison(TINY, trajectory(0.0), {size: trajectory(by) for size, by in errors.items()})


def test_an_approach_changes_one_dimension_and_keeps_the_others():
    errors = {Size(N, 8, 4): N**-0.5 for N in (64, 16)} | {Size(16, E, 4): 2 / E for E in (16, 32)}
    by_dimension = {each.dimension: each for each in with_errors(errors).approaches()}
    assert set(by_dimension) == {"N", "E", "parameters"}
    of_n = by_dimension["N"]
    assert of_n.sizes == (Size(16, 8, 4), Size(64, 8, 4))
    assert (of_n.values, of_n.slope) == ((16, 64), pytest.approx(-0.5))
    assert of_n.errors == pytest.approx((0.25, 0.125))
    assert by_dimension["E"].slope == pytest.approx(-1)
    assert len(by_dimension["parameters"].values) == 4


def test_one_size_has_no_approach():
    assert with_errors({Size(8, 4, 2): 0.1}).approaches() == ()


def test_sizes_of_as_many_parameters_have_no_approach():
    sizes = (Size(8, 9, 2), Size(8, 5, 4))
    assert len({size.parameters(TINY) for size in sizes}) == 1
    assert with_errors(dict.fromkeys(sizes, 0.1)).approaches() == ()


def test_a_limit_whose_loss_rises_is_no_reference():
    with pytest.raises(InputError, match=r"eta=5: .*rises at step \d.*lower eta"):
        reference(TINY.replace(eta=5.0), SOLVER)


def test_sizes_are_refused_before_anything_takes_time(monkeypatch):
    monkeypatch.setattr(reduced, "solve", lambda *_, **__: pytest.fail("solved"))
    with pytest.raises(InputError, match="make kappa \\* E whole"):
        compare(TINY.replace(gate="hard", kappa=0.3), SOLVER, NetworksSpec(sizes=SIZES))


def test_alpha_star_is_solved_by_the_kernel_form_and_has_no_law_at_finite_ne():
    noisy = TINY.replace(alpha_star=0.5)
    expected = kernel.solve(noisy, SOLVER.sampling(noisy)).f
    assert np.array_equal(solve(noisy, SOLVER).f, expected)
    found = compare(noisy, SOLVER, NetworksSpec(sizes=SIZES[:1], seeds=1))
    assert found.laws_by_size == {}


def test_a_theory_file_is_a_problem_with_two_sections():
    spec = build(TheorySpec, {"P": 3, "n_hid": "inf", "solver": {"nodes": 8}, "networks": {"seeds": 2}}, "t.yaml:")
    assert spec.problem == Problem(P=3)
    sampling = spec.solver.sampling(spec.problem)
    assert (sampling.nodes, sampling.replicates) == (8, 4)
    with pytest.raises(InputError, match=r"t\.yaml: solver\.node: unknown key; did you mean 'nodes'"):
        build(TheorySpec, {"solver": {"node": 8}}, "t.yaml:")
    with pytest.raises(InputError, match="use kernel or auto"):
        build(TheorySpec, {"alpha_star": 1, "solver": {"form": "reduced"}}, "t.yaml:")


def test_the_slope_is_that_of_a_power():
    assert fit_slope([(1, 3), (10, 0.3), (100, 0.03)]) == pytest.approx(-1)


def test_rms_distance_is_over_seeds():
    found = with_errors({Size(8, 4, 2): 0.3})
    assert rms_distance(found.networks[Size(8, 4, 2)], found.theory.f) == pytest.approx(0.3)
