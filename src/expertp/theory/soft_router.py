"""The paper's figure of soft routers: networks of growing size approach the limit, along three ways of scaling.

Loss curves approach the limit along all three. The law of the routers' p over experts does not: it depends on Ne, and
with gate=soft0 it narrows to a point for each datum as Ne grows. It is set beside the theory at the same Ne.
"""

from __future__ import annotations

from dataclasses import dataclass

from expertp.theory.compare import Comparison, compare
from expertp.theory.finite import Size
from expertp.theory.problem import Problem
from expertp.theory.progress import Tick, silent
from expertp.theory.spec import NetworksSpec, SolverSpec

# Polynomial of degree 4 in 20 dimensions, experts opened by s(p) alone.
PAPER = Problem(name="soft router", gate="soft0")
REPLICATES = 2


@dataclass(frozen=True)
class Way:
    """A way of scaling: what it is called, and sizes from small to large."""

    title: str
    sizes: tuple[Size, ...]


WAYS = (
    Way("constant N and Ne, growing E", tuple(Size(64, E, 32) for E in (8, 32, 128))),
    Way("constant Ne/N and E, growing N", tuple(Size(N, 64, N // 2) for N in (32, 64, 128))),
    Way("constant N and E, growing Ne", tuple(Size(64, 64, n_hid) for n_hid in (8, 32, 128))),
)


def soft_router(
    problem: Problem = PAPER, n_seeds: int = 4, tick: Tick = silent, ways: tuple[Way, ...] = WAYS
) -> tuple[Comparison, ...]:
    """Set networks beside the limit along each way of scaling; a size or an Ne that several have is computed once.

    Networks start with the limit's kernels of the stream (an orthonormal frame): what is left are the effects of E, Ne
    and a growing N. With a gaussian frame a constant N would keep all of them at a distance of order 1/sqrt(N).
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
