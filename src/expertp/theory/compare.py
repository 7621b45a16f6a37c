"""Compare the limit with finite networks of several sizes, and fit how fast they approach it.

Shapes: P datum, T step.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
from jaxtyping import Float

from expertp.errors import InputError
from expertp.theory import kernel, reduced
from expertp.theory.finite import Size, simulate
from expertp.theory.gates import require_whole
from expertp.theory.limits import infinite_depth
from expertp.theory.problem import Problem
from expertp.theory.sampling import Sampling
from expertp.theory.spec import NetworksSpec, SolverSpec
from expertp.theory.trajectory import Parts, Tick, Trajectory, distance, silent
from expertp.util.fits import Line, fit_power

# Experts per replicate that sample the distribution of p at finite n_hid.
LAW_EXPERTS = 256
DIMENSIONS = ("N", "E", "n_hid", "parameters")


def solve(problem: Problem, solver: SolverSpec | None = None, kernels: bool = False, tick: Tick = silent) -> Trajectory:
    """Solve the mean-field limit of a problem and return its trajectory.

    Args:
        problem: the training problem.
        solver: settings of the solver (default: the reduced form if alpha_star = 0, else the kernel form).
        kernels: whether to return the stream kernels; the kernel form always does.
        tick: progress callback.

    >>> limit = solve(Problem(P=4, T=5))
    >>> limit.f.shape, limit.is_monotone, limit.mc_error < 0.01
    ((4, 5), True, True)
    """
    solver = solver or SolverSpec()
    sampling = solver.sampling(problem)
    parts = Parts(tick, solver.runs * problem.T)

    def at_depth(problem: Problem) -> Trajectory:
        if solver.form_for(problem) == "kernel":
            return kernel.solve(problem, sampling, tick=parts)
        return reduced.solve(problem, sampling, kernels, parts)

    return infinite_depth(problem, at_depth) if solver.infinite_depth else at_depth(problem)


@dataclass(frozen=True, eq=False)
class Approach:
    """The error along one dimension of the networks, with a power-law fit.

    Args:
        dimension: N, E or n_hid, with the other two fixed; or `parameters`, with all three free.
        sizes: sizes of the networks, in increasing order.
        values: values of the dimension.
        errors: root mean square over seeds of the distance of f to the limit.
        line: fit of log error against log value.
    """

    dimension: str
    sizes: tuple[Size, ...]
    values: tuple[int, ...]
    errors: tuple[float, ...]
    line: Line

    @property
    def slope(self) -> float:
        """Exponent of the power law."""
        return self.line.slope

    def fitted(self, value: float) -> float:
        """Return the fitted error at a value of the dimension."""
        return math.exp(self.line(math.log(value)))


@dataclass(frozen=True, eq=False)
class Comparison:
    """The limit of a problem and finite networks of several sizes.

    Args:
        problem: the training problem.
        theory: the limit.
        networks: the networks, by size.
        laws: the theory at the finite n_hid of the networks, by n_hid. Its `p` has the distribution over experts that
            networks have. Empty at alpha_star > 0.
    """

    problem: Problem
    theory: Trajectory
    networks: Mapping[Size, Trajectory]
    laws: Mapping[int, Trajectory] = field(default_factory=dict)

    @property
    def laws_by_size(self) -> dict[Size, Trajectory]:
        """The theory at the n_hid of each size; empty if `laws` is."""
        return {size: self.laws[size.n_hid] for size in self.networks} if self.laws else {}

    def error(self, size: Size) -> float:
        """Return the distance of single networks to the limit, root mean square over seeds."""
        return rms_distance(self.networks[size], self.theory.f)

    def error_of_mean(self, size: Size) -> float:
        """Return the distance of the mean over seeds to the limit."""
        return distance(self.networks[size].f, self.theory.f)

    def approaches(self) -> tuple[Approach, ...]:
        """Return the error along every dimension that has several values."""
        found = []
        for dimension in DIMENSIONS:
            groups: dict[tuple[int, ...], list[tuple[int, Size]]] = {}
            for size in self.networks:
                values = asdict(size)
                if dimension == "parameters":
                    values = {dimension: size.parameters(self.problem)}
                value = values.pop(dimension)
                groups.setdefault(tuple(values.values()), []).append((value, size))
            for points in groups.values():
                at, sizes = zip(*sorted(points, key=lambda point: point[0]), strict=True)
                if at[0] != at[-1]:
                    errors = tuple(self.error(size) for size in sizes)
                    found.append(Approach(dimension, sizes, at, errors, fit_power(zip(at, errors, strict=True))))
        return tuple(found)


def compare(
    problem: Problem, solver: SolverSpec, networks: NetworksSpec, kernels: bool = False, tick: Tick = silent
) -> Comparison:
    """Solve a problem and train networks of several sizes on it; `kernels` adds those of limit and largest networks."""
    sizes = list(dict.fromkeys(networks.sizes))
    for size in sizes:  # fail before the long computations
        require_whole(problem, size.E, "E")
    hidden = [] if problem.alpha_star else sorted({size.n_hid for size in sizes})
    runs = solver.runs + len(hidden) * solver.replicates + len(sizes) * networks.seeds
    parts = Parts(tick, runs * problem.T)
    theory = reference(problem, solver, kernels, parts)
    laws, found = {}, {}
    for n_hid in hidden:
        sampling = Sampling(LAW_EXPERTS, n_hid, solver.replicates)
        laws[n_hid] = reduced.solve(problem.replace(n_hid=float(n_hid)), sampling, tick=parts)
    seeds, start = range(networks.seeds), (networks.frame, networks.biases)
    for size in sizes:
        with_kernels = kernels and size == largest(problem, sizes)
        found[size] = simulate(problem, size, seeds, *start, kernels=with_kernels, tick=parts)
    return Comparison(problem, theory, found, laws)


def largest(problem: Problem, sizes: Iterable[Size]) -> Size:
    """Return the size with the most weights."""
    return max(sizes, key=lambda size: size.parameters(problem))


def reference(problem: Problem, solver: SolverSpec, kernels: bool = False, tick: Tick = silent) -> Trajectory:
    """Solve the limit, and raise if its loss does not fall at every step.

    Above the edge of stability the noise of networks and solver is amplified, so their distance means nothing.
    """
    theory = solve(problem, solver, kernels, tick)
    if not theory.is_monotone:
        step = int(np.argmin(np.diff(theory.loss) < 0)) + 1
        raise InputError(
            f"eta={problem.eta:g}: the loss of the limit rises at step {step}, so networks cannot be compared with it; "
            "lower eta or gamma0"
        )
    return theory


def rms_distance(networks: Trajectory, reference: Float[np.ndarray, "P T"]) -> float:
    """Return the root mean square over seeds of the distance to a reference."""
    return math.sqrt(np.mean([distance(f, reference) ** 2 for f in networks.f_each]))
