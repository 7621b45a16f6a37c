"""The paper's figure of soft routers: networks of growing size approach the limit, along three ways of scaling.

The loss curves approach the limit along all three. The distribution of p over experts depends on n_hid instead: with
gate=soft0 it narrows to one point per datum as n_hid grows. It is therefore compared with the theory at the same n_hid.
"""

from dataclasses import dataclass

from expertp.theory.compare import Comparison, compare
from expertp.theory.finite import Size
from expertp.theory.problem import Problem
from expertp.theory.spec import NetworksSpec, SolverSpec
from expertp.theory.trajectory import Tick, silent

# The paper's setting: a polynomial of degree 4 in 20 dimensions, gates s(p).
PAPER = Problem(name="soft router", gate="soft0")
REPLICATES = 2


@dataclass(frozen=True)
class Way:
    """One way of scaling: its title and its sizes in increasing order."""

    title: str
    sizes: tuple[Size, ...]


WAYS = (
    Way("constant N and n_hid, growing E", tuple(Size(64, E, 32) for E in (8, 32, 128))),
    Way("constant n_hid/N and E, growing N", tuple(Size(N, 64, N // 2) for N in (32, 64, 128))),
    Way("constant N and E, growing n_hid", tuple(Size(64, 64, n_hid) for n_hid in (8, 32, 128))),
)


def soft_router(
    problem: Problem = PAPER, n_seeds: int = 4, tick: Tick = silent, ways: tuple[Way, ...] = WAYS
) -> tuple[Comparison, ...]:
    """Compare networks with the limit along every way of scaling; sizes that several ways share are computed once.

    The networks start with an orthonormal frame, so that their initial stream kernels equal those of the limit. With a
    gaussian frame, a constant N would keep the error at order 1/sqrt(N).
    """
    sizes = tuple(dict.fromkeys(size for way in ways for size in way.sizes))
    networks = NetworksSpec(sizes=sizes, seeds=n_seeds, frame="orthonormal")
    found = compare(problem, SolverSpec(replicates=REPLICATES), networks, tick=tick)
    return tuple(
        Comparison(
            problem,
            found.theory,
            {size: found.networks[size] for size in way.sizes},
            {size.n_hid: found.laws[size.n_hid] for size in way.sizes},
        )
        for way in ways
    )
