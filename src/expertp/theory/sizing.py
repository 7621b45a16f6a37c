"""How large must a network be to train like the limit? An error law, measured on small networks, answers.

A network's loss curve misses that of the limit in two ways. Its mean over seeds is off by a curve that shrinks with
every size, and single networks scatter round that mean:

    mean - limit = d_N / N + d_E / E + d_Ne / Ne + d_alpha N / (Ne E L) + d_L / L
    scatter^2    = v_N / N + v_E / E + v_ENe / (E Ne)

The curves d and the numbers v are fitted to small networks of several sizes (d_L to the theory itself, at two depths).
`ErrorLaw.error` adds both up for any size: the root mean square distance of one network's loss curve from the limit's,
relative to its size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from expertp.theory import reduced
from expertp.theory.finite import Size, simulate
from expertp.theory.problem import Floats, Problem
from expertp.theory.progress import Parts, Tick, silent
from expertp.theory.sampling import Sampling, default_sampling
from expertp.theory.trajectory import losses

# Each size stands alone at least once at its smallest, and once with all others large.
DESIGN = (
    Size(16, 64, 32),
    Size(32, 32, 32),
    Size(64, 64, 32),
    Size(128, 64, 32),
    Size(64, 8, 32),
    Size(64, 16, 32),
    Size(32, 64, 8),
    Size(64, 64, 16),
    Size(128, 16, 8),
    Size(256, 4, 256),
    Size(256, 8, 64),
)
HELD_OUT = Size(96, 48, 24)


@dataclass(frozen=True, eq=False)
class ErrorLaw:
    """How far a network's loss curve lies from the limit's, by its size.

    Args:
        problem: what is learnt.
        limit: the loss of the limit of infinite depth [T].
        offsets: by name the curves d [T].
        scatters: by name the numbers v, relative to the limit's size squared.
    """

    problem: Problem
    limit: Floats
    offsets: Mapping[str, Floats]
    scatters: Mapping[str, float]

    def error(self, size: Size, L: int) -> float:
        """Return the root mean square distance of a loss curve, relative to the limit's."""
        at = tuple(np.array(each, float) for each in (size.N, size.E, size.n_hid, L))
        return float(
            np.sqrt(np.sum(np.tensordot(self._curves.T, _offset_shares(*at), axes=1) ** 2) + self._scatter(*at))
        )

    def bounds(self, N: Floats, E: Floats, n_hid: Floats, L: Floats) -> Floats:
        """Return the same of many sizes as if the offsets of all parts had one sign: none may hide another."""
        own = np.linalg.norm(self._curves, axis=1)
        offset = np.tensordot(own, _offset_shares(N, E, n_hid, L), axes=1)
        return np.asarray(np.sqrt(offset**2 + self._scatter(N, E, n_hid, L)))

    @property
    def _curves(self) -> Floats:
        return np.stack([self.offsets[name] for name in OFFSETS]) / np.linalg.norm(self.limit)

    def _scatter(self, N: Floats, E: Floats, n_hid: Floats, _: Floats) -> Floats:
        return np.tensordot([self.scatters[name] for name in SCATTERS], _scatter_shares(N, E, n_hid), axes=1)

    def smallest(self, within: float, largest: int = 2**16) -> tuple[Size, int] | None:
        """Return the size and depth with the fewest weights whose error is surely within a bound; None where none is.

        Sizes are powers of sqrt(2), rounded to whole numbers.
        """
        steps = np.unique(np.round(2 ** (np.arange(2, 2 * math.log2(largest) + 1) / 2)))
        N, E, n_hid, L = np.meshgrid(steps, steps, steps, steps[steps <= 512], indexing="ij", sparse=True)
        weights = N * (self.problem.D + 1) + L * E * (2 * N * n_hid + N)
        allowed = np.where(self.bounds(*np.broadcast_arrays(N, E, n_hid, L)) <= within, weights, math.inf)
        best = np.unravel_index(int(allowed.argmin()), allowed.shape)
        if math.isinf(allowed[best]):
            return None
        at = [int(values.ravel()[place]) for values, place in zip((N, E, n_hid, L), best, strict=True)]
        return Size(*at[:3]), at[3]

    def alone(self, within: float) -> dict[str, float]:
        """Return how large each size must be for its own part of the error, all others infinite, to be half a bound."""
        part, scale = within / 2, np.linalg.norm(self.limit)
        own = {name: float(np.linalg.norm(self.offsets[name]) / scale) for name in OFFSETS}
        found = {"n_hid": own["Ne"] / part, "L": own["L"] / part, "alpha_star": part / own["alpha_star"]}
        for name in ("N", "E"):  # (d / n)^2 + v / n = part^2
            v = self.scatters[name]
            found[name] = (v + math.sqrt(v**2 + 4 * (part * own[name]) ** 2)) / (2 * part**2)
        return found


OFFSETS = ("N", "E", "Ne", "alpha_star", "L")
SCATTERS = ("N", "E", "E Ne")


def _offset_shares(N: Floats, E: Floats, n_hid: Floats, L: Floats) -> Floats:
    return np.stack([1 / N, 1 / E, 1 / n_hid, N / (n_hid * E * L), 1 / L])


def _scatter_shares(N: Floats, E: Floats, n_hid: Floats) -> Floats:
    return np.stack([1 / N, 1 / E, 1 / (E * n_hid)])


def measure_law(
    problem: Problem,
    design: Sequence[Size] = DESIGN,
    n_seeds: int = 16,
    sampling: Sampling | None = None,
    tick: Tick = silent,
) -> ErrorLaw:
    """Train small networks of several sizes and fit the law to them."""
    shallow, deep = (
        reduced.solve(problem.replace(L=L), sampling or default_sampling(problem, 2**14, 2))
        for L in (problem.L, 2 * problem.L)
    )
    limit = losses(2 * deep.f - shallow.f, shallow.y)
    seen, steps = [], n_seeds * problem.T
    parts = Parts(tick, len(design) * steps)
    for size in design:
        networks = simulate(problem, size, range(n_seeds), dtype=torch.float32, together=8, tick=parts.next(steps))
        seen.append(losses(networks.f_each, networks.y))
    N, E, n_hid = (np.array([getattr(size, name) for size in design], float) for name in ("N", "E", "n_hid"))
    scatter = np.array([curves.var(0, ddof=1).sum() for curves in seen]) / np.sum(limit**2)
    fitted = _non_negative(_scatter_shares(N, E, n_hid).T, scatter)
    # A mean over seeds is known as well as its networks scatter little.
    weights = 1 / np.sqrt(scatter)
    shares = _offset_shares(N, E, n_hid, np.full(len(design), float(problem.L)))[:-1].T
    off = np.stack([curves.mean(0) - shallow.loss for curves in seen])
    curves, *_ = np.linalg.lstsq(shares * weights[:, None], off * weights[:, None], rcond=None)
    of_depth = problem.L * (shallow.loss - limit)
    return ErrorLaw(
        problem,
        limit,
        dict(zip(OFFSETS, [*curves, of_depth], strict=True)),
        dict(zip(SCATTERS, fitted.tolist(), strict=True)),
    )


def measured_error(problem: Problem, size: Size, limit: Floats, n_seeds: int, tick: Tick = silent) -> float:
    """Return the root mean square distance of networks' loss curves, relative to the limit's."""
    networks = simulate(problem, size, range(1000, 1000 + n_seeds), dtype=torch.float32, tick=tick)
    apart = losses(networks.f_each, networks.y) - limit
    return float(np.sqrt((apart**2).sum(1).mean() / np.sum(limit**2)))


def _non_negative(shares: Floats, values: Floats) -> Floats:
    """Return coefficients >= 0 that fit values best, relative to their size: the best choice of which are positive."""
    scaled, best, least = shares / values[:, None], np.zeros(shares.shape[1]), math.inf
    for n in range(1, shares.shape[1] + 1):
        for chosen in itertools.combinations(range(shares.shape[1]), n):
            found, *_ = np.linalg.lstsq(scaled[:, chosen], np.ones(len(values)), rcond=None)
            missed = float(np.sum((scaled[:, chosen] @ found - 1) ** 2))
            if (found >= 0).all() and missed < least:
                best, least = np.zeros(shares.shape[1]), missed
                best[list(chosen)] = found
    return best
