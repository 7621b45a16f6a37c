import math

import numpy as np
import pytest

from expertp.theory import sizing
from expertp.theory.finite import Size
from expertp.theory.problem import Problem
from expertp.theory.sizing import DESIGN, OFFSETS, SCATTERS, ErrorLaw, measure_law, measured_error

TINY = Problem(P=3, D=4, T=5, L=2, indices=2, eta=0.1)
LIMIT = np.array([1.0, 0.5, 0.25])


def law(scatters=(0.4, 0.1, 0.2), **offsets):
    curves = {name: np.zeros(3) for name in OFFSETS} | {name: np.array(each) for name, each in offsets.items()}
    return ErrorLaw(TINY, LIMIT, curves, dict(zip(SCATTERS, scatters, strict=True)))


def test_scatter_adds_up_by_size():
    assert law().error(Size(4, 5, 10), 2) == pytest.approx(math.sqrt(0.4 / 4 + 0.1 / 5 + 0.2 / 50))


def test_offsets_add_up_as_curves_and_may_cancel():
    curve = np.array([0.3, 0.1, -0.2])
    one = law((0, 0, 0), N=curve, n_hid=-curve)
    assert one.error(Size(8, 4, 8), 2) == pytest.approx(0, abs=1e-12)
    assert one.error(Size(8, 4, 4), 2) == pytest.approx(np.linalg.norm(curve / 8) / np.linalg.norm(LIMIT))
    noisy = law((0, 0, 0), alpha_star=curve, L=curve)
    share = 8 / (4 * 4 * 2) + 1 / 2
    assert noisy.error(Size(8, 4, 4), 2) == pytest.approx(share * np.linalg.norm(curve) / np.linalg.norm(LIMIT))


def test_the_smallest_network_is_within_the_bound_and_no_smaller_neighbour_is():
    one = law(L=[0.1, 0.1, 0.1], n_hid=[0.2, 0.1, 0.1], alpha_star=[0.1, 0, 0])
    size, L = one.smallest(0.05)
    assert one.error(size, L) <= 0.05
    for smaller in (Size(round(size.N / 1.5), size.E, size.n_hid), Size(size.N, size.E, round(size.n_hid / 1.5))):
        assert one.error(smaller, L) > 0.05
    assert one.smallest(1e-9) is None


def test_each_size_alone_makes_half_of_the_bound():
    one = law((0.4, 0.1, 0.2), N=[0.5, 0, 0], n_hid=[0.2, 0.1, 0.1], L=[0.1, 0.1, 0.1], alpha_star=[0.1, 0, 0])
    alone = one.alone(0.1)
    huge = 10**9
    assert one.error(Size(round(alone["N"]), 10**12, huge), huge) == pytest.approx(0.05, rel=0.01)
    assert one.error(Size(huge, huge, round(alone["n_hid"])), huge) == pytest.approx(0.05, rel=0.2)


@pytest.mark.heavy
def test_a_law_that_networks_follow_is_found_again(monkeypatch):
    """Loss curves made by a law, with many seeds, give the law back."""
    truth = law(
        (0.02, 0.01, 0.03),
        N=[0.05, 0.1, 0.1],
        E=[0.02, 0, 0],
        n_hid=[0.1, 0.1, 0],
        alpha_star=[0, 0, 0.05],
        L=[0.1, 0, 0],
    )
    problem = TINY.replace(T=3)

    class Networks:
        def __init__(self, losses):
            self.losses_each = losses

    def simulate(problem, size, seeds, **_):
        shares = sizing._offset_factors(*(np.array(each, float) for each in (size.N, size.E, size.n_hid, problem.L)))
        mean = LIMIT + sum(share * truth.offsets[name] for share, name in zip(shares, OFFSETS, strict=True))
        scatter = sizing._scatter_factors(*(np.array(each, float) for each in (size.N, size.E, size.n_hid)))
        sd = math.sqrt(float(scatter @ np.array([truth.scatters[name] for name in SCATTERS])) * np.sum(LIMIT**2) / 3)
        noise = np.random.default_rng([size.N, size.E, size.n_hid]).standard_normal((len(seeds), 3))
        return Networks(mean + sd * noise)

    class Theory:
        y = np.zeros(1)

        def __init__(self, L):
            self.loss = self.f = LIMIT + truth.offsets["L"] / L

    monkeypatch.setattr(sizing, "simulate", simulate)
    monkeypatch.setattr(sizing.reduced, "solve", lambda problem, *_, **__: Theory(problem.L))
    monkeypatch.setattr(sizing, "losses", lambda f, _: f)
    found = measure_law(problem, n_seeds=4000)
    assert np.allclose(found.limit, LIMIT)
    for name in SCATTERS:
        assert found.scatters[name] == pytest.approx(truth.scatters[name], rel=0.2)
    for size, L in ((Size(96, 48, 24), 4), (Size(512, 128, 64), 8)):
        assert found.error(size, L) == pytest.approx(truth.error(size, L), rel=0.1)


@pytest.mark.heavy
def test_the_law_of_real_networks_predicts_a_size_it_has_not_seen():
    sizes = ((8, 8, 8), (16, 8, 8), (32, 8, 8), (16, 4, 8), (16, 16, 8), (16, 8, 16), (32, 16, 16))
    design = [Size(*each) for each in sizes]
    found = measure_law(TINY, design, n_seeds=48)
    held_out = Size(24, 12, 8)
    measured = measured_error(TINY, held_out, found.limit, 48)
    assert found.error(held_out, TINY.L) == pytest.approx(measured, rel=0.35)


def test_the_design_can_tell_all_parts_of_the_law_apart():
    N, E, n_hid = (np.array([getattr(size, name) for size in DESIGN], float) for name in ("N", "E", "n_hid"))
    offsets = sizing._offset_factors(N, E, n_hid, np.full(len(DESIGN), 2.0))[:-1].T
    for shares in (offsets, sizing._scatter_factors(N, E, n_hid).T):
        scaled = shares / np.linalg.norm(shares, axis=0)
        assert np.linalg.cond(scaled) < 30
