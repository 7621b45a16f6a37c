"""The limit and finite networks of growing size side by side, and how fast they approach it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from expertp.errors import InputError
from expertp.fits import Line, fit_power
from expertp.theory import kernel, reduced
from expertp.theory.finite import Size, simulate
from expertp.theory.gates import whole_share
from expertp.theory.limits import infinite_depth
from expertp.theory.problem import Floats, Problem
from expertp.theory.progress import Parts, Tick, silent
from expertp.theory.sampling import Sampling
from expertp.theory.spec import NetworksSpec, SolverSpec
from expertp.theory.trajectory import Trajectory, distance

# So many experts in each replicate draw the law of p at a finite Ne.
LAW_EXPERTS = 256
DIMENSIONS = ("N", "E", "n_hid", "parameters")


def solve(problem: Problem, solver: SolverSpec, kernels: bool = False, tick: Tick = silent) -> Trajectory:
    """Return the limit of a problem by the form that solves it."""
    sampling, steps = solver.sampling(problem), solver.replicates * problem.T
    parts = Parts(tick, steps * (2 if solver.infinite_depth else 1))

    def at_depth(problem: Problem) -> Trajectory:
        if solver.form_for(problem) == "kernel":
            return kernel.solve(problem, sampling, tick=parts.next(steps))
        return reduced.solve(problem, sampling, kernels=kernels, tick=parts.next(steps))

    return infinite_depth(problem, at_depth) if solver.infinite_depth else at_depth(problem)


@dataclass(frozen=True, eq=False)
class Approach:
    """How the error falls with one dimension while the others stand still.

    Args:
        dimension: N, E, n_hid, or parameters, with which all may change.
        sizes: of the networks, from small to large.
        values: of the dimension.
        errors: root mean square over seeds of the distance of f to the limit.
        line: through the errors, log over log.
    """

    dimension: str
    sizes: tuple[Size, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    line: Line

    @property
    def slope(self) -> float:
        """The power with which the error changes."""
        return self.line.slope

    def fitted(self, value: float) -> float:
        """Return the error that the line has at a value of the dimension."""
        return math.exp(self.line(math.log(value)))


@dataclass(frozen=True, eq=False)
class Comparison:
    """The limit of a problem beside networks of several sizes.

    Args:
        problem: what is learnt.
        theory: its limit.
        networks: by size.
        laws: the theory at the Ne of the networks, by Ne: its `p` has the law over experts that networks have. Empty
            at alpha_star > 0.
    """

    problem: Problem
    theory: Trajectory
    networks: Mapping[Size, Trajectory]
    laws: Mapping[int, Trajectory] = field(default_factory=dict)

    @property
    def laws_by_size(self) -> dict[Size, Trajectory]:
        """The theory at the Ne of each size; empty where it is not known."""
        return {size: self.laws[size.n_hid] for size in self.networks} if self.laws else {}

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
                found.append(self._approach(dimension, [(getattr(size, dimension), size) for size in sizes]))
        counted = [(size.parameters(self.problem), size) for size in self.networks]
        found.append(self._approach("parameters", counted))
        return tuple(each for each in found if each is not None)

    def _approach(self, dimension: str, sizes: Sequence[tuple[int, Size]]) -> Approach | None:
        values, ordered = zip(*sorted(sizes, key=lambda pair: pair[0]), strict=True)
        if values[0] == values[-1]:
            return None
        errors = tuple(self.error(size) for size in ordered)
        return Approach(dimension, ordered, values, errors, fit_power(zip(values, errors, strict=True)))


def compare(
    problem: Problem, solver: SolverSpec, networks: NetworksSpec, kernels: bool = False, tick: Tick = silent
) -> Comparison:
    """Solve a problem, train networks of several sizes on it, and return both; kernels are of the largest networks."""
    sizes = list(dict.fromkeys(networks.sizes))
    for size in sizes:  # before anything takes time
        whole_share(problem, size.E, "E")
    hidden = [] if problem.alpha_star else sorted({size.n_hid for size in sizes})
    training = networks.seeds * problem.T
    solving = solver.replicates * problem.T
    depths = 2 if solver.infinite_depth else 1
    parts = Parts(tick, (depths + len(hidden)) * solving + len(sizes) * training)
    theory = reference(problem, solver, kernels, parts.next(depths * solving))
    laws = {n_hid: law_at(problem, n_hid, solver.replicates, parts.next(solving)) for n_hid in hidden}
    seeds, start = range(networks.seeds), (networks.frame, networks.biases)
    found = {}
    for size in sizes:
        is_seen = kernels and size == largest(problem, sizes)
        found[size] = simulate(problem, size, seeds, *start, kernels=is_seen, tick=parts.next(training))
    return Comparison(problem, theory, found, laws)


def largest(problem: Problem, sizes: Iterable[Size]) -> Size:
    """Return the size with the most weights."""
    return max(sizes, key=lambda size: size.parameters(problem))


def reference(problem: Problem, solver: SolverSpec, kernels: bool = False, tick: Tick = silent) -> Trajectory:
    """Return the limit as something to measure networks by.

    A loss that does not fall at every step is none: beyond the edge of stability the noise of networks and of the
    solver alike is amplified from step to step.
    """
    theory = solve(problem, solver, kernels, tick)
    if not theory.is_monotone:
        step = int(np.argmin(np.diff(theory.loss) < 0)) + 1
        raise InputError(
            f"eta={problem.eta:g}: the loss of the limit rises at step {step}, so it is no reference for networks; "
            "lower eta or gamma0"
        )
    return theory


def law_at(problem: Problem, n_hid: int, replicates: int, tick: Tick = silent) -> Trajectory:
    """Return the theory of experts with so many neurons, sampled by whole experts."""
    return reduced.solve(problem.replace(n_hid=float(n_hid)), Sampling(LAW_EXPERTS, n_hid, replicates), tick=tick)


def rms_distance(networks: Trajectory, reference: Floats) -> float:
    """Return the root mean square over seeds of the distance to the limit."""
    return math.sqrt(np.mean([distance(f, reference) ** 2 for f in networks.f_each]))
