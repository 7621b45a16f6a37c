"""The limit and finite networks of growing size side by side, and how fast they approach it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from expertp.errors import InputError
from expertp.theory import kernel, reduced
from expertp.theory.finite import Size, simulate
from expertp.theory.problem import Floats, Problem
from expertp.theory.spec import NetworksSpec, SolverSpec
from expertp.theory.trajectory import Tick, Trajectory, distance, silent

DIMENSIONS = ("N", "E", "n_hid", "parameters")


def solve(problem: Problem, solver: SolverSpec, kernels: bool = False, tick: Tick = silent) -> Trajectory:
    """Return the limit of a problem by the form that solves it."""
    sampling = solver.sampling(problem)
    if solver.form_for(problem) == "kernel":
        return kernel.solve(problem, sampling, tick=tick)
    return reduced.solve(problem, sampling, kernels=kernels, tick=tick)


@dataclass(frozen=True, eq=False)
class Approach:
    """How the error falls with one dimension while the others stand still.

    Args:
        dimension: N, E, n_hid, or parameters, with which all may change.
        sizes: values of it.
        errors: root mean square over seeds of the distance of f to the limit.
        slope: of the errors, log over log.
    """

    dimension: str
    sizes: tuple[float, ...]
    errors: tuple[float, ...]
    slope: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """The limit of a problem beside networks of several sizes."""

    problem: Problem
    theory: Trajectory
    networks: Mapping[Size, Trajectory]

    def error(self, size: Size) -> float:
        """Return how far one network of a size lies from the limit, root mean square over seeds."""
        return rms_distance(self.networks[size], self.theory.f)

    def error_of_mean(self, size: Size) -> float:
        """Return how far the mean over seeds lies from the limit."""
        return distance(self.networks[size].f, self.theory.f)

    def approaches(self) -> tuple[Approach, ...]:
        """Return how the error falls along each dimension of which there are several values."""
        found = []
        for dimension in DIMENSIONS[:-1]:
            others: dict[tuple[int, ...], list[Size]] = {}
            for size in self.networks:
                fixed = tuple(getattr(size, each) for each in DIMENSIONS[:-1] if each != dimension)
                others.setdefault(fixed, []).append(size)
            for sizes in others.values():
                if len(sizes) > 1:
                    found.append(self._approach(dimension, [(getattr(size, dimension), size) for size in sizes]))
        counted = [(size.parameters(self.problem), size) for size in self.networks]
        return (*found, self._approach("parameters", counted)) if len(counted) > 1 else tuple(found)

    def _approach(self, dimension: str, sizes: Sequence[tuple[int, Size]]) -> Approach:
        values, ordered = zip(*sorted(sizes, key=lambda pair: pair[0]), strict=True)
        errors = tuple(self.error(size) for size in ordered)
        return Approach(dimension, values, errors, slope(values, errors))


def compare(problem: Problem, solver: SolverSpec, networks: NetworksSpec, tick: Tick = silent) -> Comparison:
    """Solve a problem, train networks of several sizes on it, and return both.

    A loss that does not fall at every step is no reference: beyond the edge of stability the noise of networks and of
    the solver alike is amplified from step to step.
    """
    theory = solve(problem, solver, tick=tick)
    if not theory.is_monotone:
        step = int(np.argmax(np.diff(theory.loss) >= 0)) + 1
        raise InputError(
            f"eta={problem.eta:g}: the loss of the limit rises at step {step}, so it is no reference for networks; "
            "lower eta or gamma0"
        )
    found = {
        each.size: simulate(problem, each.size, range(networks.seeds), networks.frame, networks.biases, tick=tick)
        for each in networks.sizes
    }
    return Comparison(problem, theory, found)


def rms_distance(networks: Trajectory, reference: Floats) -> float:
    """Return the root mean square over seeds of the distance to the limit."""
    return math.sqrt(np.mean([distance(f, reference) ** 2 for f in networks.f_each]))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of log y over log x by least squares.

    >>> round(slope([1, 2, 4], [1.0, 0.5, 0.25]), 6)
    -1.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
