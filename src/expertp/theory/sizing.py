"""An error law, fitted to small networks: how large must a network be to train like the limit?

The loss curves of networks differ from that of the limit in their mean over seeds and in their scatter around it:

    mean - limit = d_N / N + d_E / E + d_n_hid / n_hid + d_alpha_star N / (n_hid E L) + d_L / L
    scatter^2    = v_N / N + v_E / E + v_E_n_hid / (E n_hid)

The curves d and the numbers v are fitted to small networks of several sizes; d_L is fitted to the theory at two depths.
`ErrorLaw.error` returns the root mean square distance of a network's loss curve to the limit, relative to the limit.

Shapes: T step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch
from jaxtyping import Float

from expertp.theory import reduced
from expertp.theory.finite import Size, simulate
from expertp.theory.problem import Problem
from expertp.theory.sampling import default_sampling
from expertp.theory.trajectory import Parts, Tick, losses, silent

# An array with one entry per size; several of them broadcast.
Sizes = Float[np.ndarray, "*sizes"]
# (N, E, n_hid). Every dimension is small at least once while the others are large, which separates the terms.
# fmt: off
DESIGN = tuple(Size(*each) for each in (
    (16, 64, 32), (32, 32, 32), (64, 64, 32), (128, 64, 32), (64, 8, 32), (64, 16, 32), (32, 64, 8), (64, 64, 16),
    (128, 16, 8), (256, 4, 256), (256, 8, 64),
))
# fmt: on
HELD_OUT = Size(96, 48, 24)
OFFSETS = ("N", "E", "n_hid", "alpha_star", "L")
SCATTERS = ("N", "E", "E n_hid")


@dataclass(frozen=True, eq=False)
class ErrorLaw:
    """The distance of a network's loss curve to the limit as a function of its size.

    Args:
        problem: the training problem.
        limit: the loss of the limit at infinite depth.
        offsets: the curves d, by name.
        scatters: the numbers v, by name, relative to |limit|^2.
    """

    problem: Problem
    limit: Float[np.ndarray, "T"]
    offsets: Mapping[str, Float[np.ndarray, "T"]]
    scatters: Mapping[str, float]

    def error(self, size: Size, L: int) -> float:
        """Return the root mean square distance of a loss curve to the limit, relative to |limit|."""
        at = [np.array(each, float) for each in (size.N, size.E, size.n_hid, L)]
        offset = np.tensordot(self._curves.T, _offset_factors(*at), axes=1)
        return float(np.sqrt(np.sum(offset**2) + self._scatter(*at)))

    def bounds(self, N: Sizes, E: Sizes, n_hid: Sizes, L: Sizes) -> Sizes:
        """Return an upper bound of the error of many sizes: offsets d of opposite sign are not allowed to cancel."""
        offset = np.tensordot(np.linalg.norm(self._curves, axis=1), _offset_factors(N, E, n_hid, L), axes=1)
        return np.asarray(np.sqrt(offset**2 + self._scatter(N, E, n_hid, L)))

    @property
    def _curves(self) -> Float[np.ndarray, "offsets T"]:
        return np.asarray(np.stack([self.offsets[name] for name in OFFSETS]) / np.linalg.norm(self.limit))

    def _scatter(self, N: Sizes, E: Sizes, n_hid: Sizes, _: Sizes) -> Sizes:
        v = [self.scatters[name] for name in SCATTERS]
        return np.asarray(np.tensordot(v, _scatter_factors(N, E, n_hid), axes=1))

    def smallest(self, within: float, largest: int = 2**16) -> tuple[Size, int] | None:
        """Return the size and depth with the fewest weights whose error bound is at most `within`, or None.

        The sizes searched are powers of sqrt(2), rounded to whole numbers.
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
        """Return where each dimension's own part of the error is half of `within`, all other dimensions infinite."""
        part, scale = within / 2, np.linalg.norm(self.limit)
        own = {name: float(np.linalg.norm(self.offsets[name]) / scale) for name in OFFSETS}
        found = {"n_hid": own["n_hid"] / part, "L": own["L"] / part, "alpha_star": part / own["alpha_star"]}
        for name in ("N", "E"):  # (d / n)^2 + v / n = part^2
            v = self.scatters[name]
            found[name] = (v + math.sqrt(v**2 + 4 * (part * own[name]) ** 2)) / (2 * part**2)
        return found


def _offset_factors(N: Sizes, E: Sizes, n_hid: Sizes, L: Sizes) -> Float[np.ndarray, "offsets *sizes"]:
    return np.stack([1 / N, 1 / E, 1 / n_hid, N / (n_hid * E * L), 1 / L])


def _scatter_factors(N: Sizes, E: Sizes, n_hid: Sizes) -> Float[np.ndarray, "scatters *sizes"]:
    return np.stack([1 / N, 1 / E, 1 / (E * n_hid)])


def measure_law(problem: Problem, design: Sequence[Size] = DESIGN, n_seeds: int = 16, tick: Tick = silent) -> ErrorLaw:
    """Train small networks of several sizes and fit the error law to them."""
    from scipy.optimize import nnls

    sampling, L = default_sampling(problem, 2**14, 2), problem.L
    shallow, deep = (reduced.solve(problem.replace(L=depth), sampling) for depth in (L, 2 * L))
    limit = losses(2 * deep.f - shallow.f, shallow.y)
    parts = Parts(tick, len(design) * n_seeds * problem.T)
    measured = [
        simulate(problem, size, range(n_seeds), dtype=torch.float32, together=8, tick=parts).losses_each
        for size in design
    ]
    N, E, n_hid = np.array([astuple(size) for size in design], float).T
    scatter = np.array([curves.var(0, ddof=1).sum() for curves in measured]) / np.sum(limit**2)
    # Relative least squares with v >= 0.
    v, _ = nnls(_scatter_factors(N, E, n_hid).T / scatter[:, None], np.ones(len(design)))
    # A mean over seeds is the more accurate the less its networks scatter.
    weights = 1 / np.sqrt(scatter)[:, None]
    factors = _offset_factors(N, E, n_hid, np.full(len(design), float(L)))[:-1].T
    off = np.stack([curves.mean(0) - shallow.loss for curves in measured])
    d, *_ = np.linalg.lstsq(factors * weights, off * weights, rcond=None)
    offsets = dict(zip(OFFSETS, [*d, L * (shallow.loss - limit)], strict=True))
    return ErrorLaw(problem, limit, offsets, dict(zip(SCATTERS, v.tolist(), strict=True)))


def measured_error(
    problem: Problem, size: Size, limit: Float[np.ndarray, "T"], n_seeds: int, tick: Tick = silent
) -> float:
    """Return the measured root mean square distance of loss curves to the limit, relative to |limit|."""
    networks = simulate(problem, size, range(1000, 1000 + n_seeds), dtype=torch.float32, tick=tick)
    apart = networks.losses_each - limit
    return float(np.sqrt((apart**2).sum(1).mean() / np.sum(limit**2)))
