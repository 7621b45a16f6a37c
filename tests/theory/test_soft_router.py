import numpy as np
import pytest

from expertp.errors import InputError
from expertp.theory import reduced
from expertp.theory import soft_router as module
from expertp.theory.compare import LAW_EXPERTS
from expertp.theory.finite import Size, simulate
from expertp.theory.problem import Problem
from expertp.theory.sampling import Sampling, default_sampling
from expertp.theory.soft_router import PAPER, WAYS, Way, soft_router

TINY = Problem(P=3, D=4, T=4, L=2, indices=2, degree=3, eta=0.1, gate="soft0")
TINY_WAYS = (
    Way("growing E", (Size(8, 2, 2), Size(8, 4, 2))),
    Way("growing n_hid", (Size(8, 4, 2), Size(8, 4, 4))),
)


@pytest.fixture(scope="module")
def told():
    ticks = []
    return soft_router(TINY, 2, lambda done, total: ticks.append((done, total)), TINY_WAYS), ticks


def test_each_way_has_its_networks_and_the_theory_at_their_ne(told):
    found, _ = told
    for way, result in zip(TINY_WAYS, found, strict=True):
        assert tuple(result.networks) == way.sizes
        assert set(result.laws) == {size.n_hid for size in way.sizes}
        for size, networks in result.networks.items():
            assert networks.p.shape == (2, TINY.L, size.E, TINY.P, TINY.T)
        for law in result.laws.values():
            assert law.p.shape == (module.REPLICATES, TINY.L, LAW_EXPERTS, TINY.P, TINY.T)


def test_what_several_ways_have_is_computed_once(told):
    (one, other), ticks = told
    shared = Size(8, 4, 2)
    assert one.networks[shared] is other.networks[shared]
    assert one.laws[2] is other.laws[2]
    assert one.theory is other.theory
    # The limit, two n_hid and three sizes.
    assert ticks[-1] == (TINY.T * (3 * module.REPLICATES + 3 * 2),) * 2
    assert [done for done, _ in ticks] == sorted(done for done, _ in ticks)
    assert {total for _, total in ticks} == {ticks[-1][1]}


def test_the_numbers_are_those_of_the_solvers(told):
    (one, other), _ = told
    limit = reduced.solve(TINY, default_sampling(TINY, replicates=module.REPLICATES))
    assert np.array_equal(one.theory.f, limit.f)
    law = reduced.solve(TINY.replace(n_hid=4.0), Sampling(LAW_EXPERTS, 4, module.REPLICATES))
    assert np.array_equal(other.laws[4].p, law.p)
    size = Size(8, 2, 2)
    assert np.array_equal(one.networks[size].f, simulate(TINY, size, range(2), frame="orthonormal").f)


def test_a_limit_whose_loss_rises_is_refused():
    with pytest.raises(InputError, match=r"eta=40.*lower eta"):
        soft_router(TINY.replace(eta=40.0), 1, ways=TINY_WAYS)


def test_the_ways_are_those_of_the_paper():
    assert PAPER.gate == "soft0"
    assert (PAPER.degree, PAPER.D) == (4, 20)
    by_e, by_n, by_hid = ([(size.N, size.E, size.n_hid) for size in way.sizes] for way in WAYS)
    assert len({(N, n_hid) for N, _, n_hid in by_e}) == 1
    assert len({(E, n_hid / N) for N, E, n_hid in by_n}) == 1
    assert len({(N, E) for N, E, _ in by_hid}) == 1
    for sizes, place in ((by_e, 1), (by_n, 0), (by_hid, 2)):
        grown = [size[place] for size in sizes]
        assert grown == sorted(set(grown))
        assert len(grown) == 3
