"""Checks of the theory: every claim of docs/theory.md with a measured value and a bound, quick or in full.

Numbers follow the list in docs/theory.md. A group of checks is a generator; `CHECKS` lists all groups. The target is a
polynomial of degree 4 in 3 of 20 directions. Checks with the kernel form have few data and steps.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from expertp.theory import kernel, reduced
from expertp.theory.compare import rms_distance
from expertp.theory.finite import Size, draw_weights, simulate, train
from expertp.theory.identities import residuals
from expertp.theory.limits import infinite_depth, static_kernel, static_training
from expertp.theory.problem import Problem, make_data
from expertp.theory.sampling import Sampling, default_sampling
from expertp.theory.trajectory import Trajectory, distance
from expertp.util.fits import fit_slope

BASE = Problem()
HARD = Problem(gate="hard", kappa=0.25, eta_b=0.05)
# Few data and steps, and strong feature learning, so that every term of the equations matters.
SMALL = Problem(P=4, T=20, L=1, gamma0=6.0, eta=0.05)


@dataclass(frozen=True)
class Check:
    """One measured claim.

    Args:
        check: number in the list of docs/theory.md, and the claim.
        value: measured value.
        low: smallest value that passes.
        high: largest value that passes.
        mc_error: Monte-Carlo error of the theory in use, relative to f; None if nothing was sampled.
    """

    check: str
    value: float
    low: float = -math.inf
    high: float = math.inf
    mc_error: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the value is within its bounds."""
        return self.low <= self.value <= self.high

    @property
    def bound(self) -> str:
        """The bounds as text."""
        if math.isinf(self.low):
            return f"<= {self.high:g}"
        return f">= {self.low:g}" if math.isinf(self.high) else f"{self.low:g} .. {self.high:g}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("check", "value", "bound", "mc_error", "ok")
        return {name: getattr(self, name) for name in names}


def near_the_limit(problem: Problem, size: Size, n_seeds: int, together: int = 4) -> Trajectory:
    """Train networks whose initial kernels and biases equal those of the limit, so that few seeds average near it."""
    return simulate(problem, size, range(n_seeds), "orthonormal", "stratified", torch.float32, together=together)


def _sampling(problem: Problem, full: bool) -> Sampling:
    return default_sampling(problem, 2**17, 4) if full else default_sampling(problem, 2**15, 2)


def _solve(problem: Problem, full: bool) -> Trajectory:
    return reduced.solve(problem, _sampling(problem, full))


def _solve_kernel(problem: Problem, neurons: int, nodes: int = 16, replicates: int = 2, **options: Any) -> Trajectory:
    return kernel.solve(problem, Sampling(nodes, neurons, replicates, dtype=torch.float64), **options)


def exact_identities(full: bool) -> Iterator[Check]:
    """1: identities at finite size, and hand-written gradients against autograd."""
    small = {"P": 6, "D": 8, "T": 12 if full else 6, "L": 3}
    size = Size(N=24, E=8, n_hid=6)
    for problem in (BASE.replace(**small), BASE.replace(gate="soft0", **small), HARD.replace(**small)):
        worst = max(residuals(problem, size).values())
        yield Check(f"1 identities of section 2, {problem.gate} gate: largest residual", worst, high=1e-12)
        runs = (train(problem, draw_weights(problem, size, [0, 1]), make_data(problem), auto) for auto in (False, True))
        by_hand, by_autograd = (np.stack([at.f_SP.numpy() for at in run]) for run in runs)
        apart = distance(by_hand, by_autograd)
        yield Check(f"1 gradients by hand and by autograd, {problem.gate} gate", apart, high=1e-12)


def two_solvers(full: bool) -> Iterator[Check]:
    """2: the kernel form against the reduced form."""
    problem = BASE.replace(P=4, T=20 if full else 12)
    theory = _solve(problem, full)
    mc = theory.mc_error
    neurons = (16, 64, 256) if full else (8, 32, 128)
    order = fit_slope((16 * n, rms_distance(_solve_kernel(problem, n, replicates=4), theory.f)) for n in neurons)
    yield Check("2 kernel against reduced form: order in the number of neurons", order, high=-0.4, mc_error=mc)
    apart = distance(_solve_kernel(problem, 256, replicates=1).f, theory.f)
    yield Check("2 kernel against reduced form at 4096 neurons", apart, high=0.01, mc_error=mc)


def networks_approach(full: bool) -> Iterator[Check]:
    """3: finite networks approach the theory."""
    limit = _solve(BASE, full)
    mc = limit.mc_error

    def order(values: Iterable[int], size_at: Callable[[int], Size], n_seeds: int, **start: Any) -> float:
        networks = ((n, simulate(BASE, size_at(n), range(n_seeds), dtype=torch.float32, **start)) for n in values)
        return fit_slope((n, rms_distance(each, limit.f)) for n, each in networks)

    widths = (32, 64, 128, 256) if full else (32, 64, 128)
    in_N = order(widths, lambda N: Size(N, 64, 64), 16 if full else 6, biases="stratified")
    yield Check("3 order of the error in N", in_N, low=-0.65, high=-0.4, mc_error=mc)
    counts = (8, 16, 32, 64) if full else (8, 16, 32)
    in_E = order(counts, lambda E: Size(256, E, 128), 32 if full else 16, frame="orthonormal")
    yield Check("3 order of the error in E", in_E, low=-0.65, high=-0.4, mc_error=mc)
    networks = near_the_limit(BASE, Size(128, 64, 64), 16 if full else 4)
    yield Check("3 mean of networks at N=128, E=n_hid=64", distance(networks.f, limit.f), high=0.01, mc_error=mc)


def every_term_counts(full: bool) -> Iterator[Check]:
    """4: the checks notice a missing term."""
    networks, neurons = near_the_limit(SMALL, Size(256, 128, 512), 16 if full else 4).f, 128 if full else 32
    whole = _solve_kernel(SMALL, neurons, nodes=32)
    for term in ("R_phi", "R_g", "sigma_in_z"):
        without = _solve_kernel(SMALL, neurons, nodes=32, drop=frozenset({term}))
        ratio = distance(without.f, networks) / distance(whole.f, networks)
        name = f"4 without {term}: distance to networks, relative to that of the theory"
        yield Check(name, ratio, low=5, mc_error=whole.mc_error)
    missed = residuals(BASE.replace(P=6, D=8, T=6), Size(24, 8, 6), drop=frozenset({"M_AA"}))
    yield Check("4 without M_AA: residual of the identity of g", max(missed.values()), low=1e-6)


def shape_does_not_matter(full: bool) -> Iterator[Check]:
    """5: the FFN ratio n_hid/N matters at alpha_star = 1, but not as alpha_star -> 0."""
    limit, n = _solve(BASE, full), 12 if full else 3
    mc = limit.mc_error
    wide, middle, narrow = (
        near_the_limit(BASE, size, n).f for size in (Size(128, 20, 256), Size(128, 40, 64), Size(128, 144, 16))
    )
    apart = max(distance(f, middle) for f in (wide, narrow))
    yield Check("5 n_hid/N of 2, 1/2 and 1/8 at alpha_star <= 0.03: largest distance", apart, high=0.015, mc_error=mc)
    joint = (Size(64, 64, 64), Size(128, 128, 32), Size(192, 64, 64) if full else Size(160, 64, 64))
    far = max(distance(near_the_limit(BASE, size, n).f, limit.f) for size in joint)
    yield Check(
        "5 three joint scalings with alpha_star -> 0: largest distance to the limit", far, high=0.015, mc_error=mc
    )
    far = distance(near_the_limit(BASE, Size(1024, 16, 32), 8 if full else 2).f, limit.f)
    yield Check("5 alpha_star = 1: distance to the limit of alpha_star = 0", far, low=0.08, mc_error=mc)


def finite_alpha_star(full: bool) -> Iterator[Check]:
    """6: the theory at alpha_star = 1."""
    for L, size in ((1, Size(1600, 40, 40)), (3, Size(1728, 24, 24))):
        problem = BASE.replace(P=4, T=12, eta=0.1, L=L, alpha_star=1.0)
        networks = near_the_limit(problem, size, 32 if full else 8, together=2)
        theory = _solve_kernel(problem, 128 if full else 64)
        mc = theory.mc_error
        without = _solve(problem.replace(alpha_star=0.0), full)
        name = f"6 alpha_star = 1, L={L}: "
        yield Check(f"{name}theory against networks", distance(theory.f, networks.f), high=0.015, mc_error=mc)
        far = distance(without.f, networks.f)
        yield Check(f"{name}theory of alpha_star = 0 against networks", far, low=0.08, mc_error=mc)


def depth(full: bool) -> Iterator[Check]:
    """7: the error of a finite depth is 1 / L."""
    depths = (4, 8, 16, 32) if full else (4, 8, 16)
    sampling = Sampling(16, 4096 if full else 1024, replicates=2)
    yield from _ratios("7 ", {L: reduced.solve(BASE.replace(L=L), sampling) for L in depths})
    noisy, neurons = BASE.replace(P=4, T=12, eta=0.1, alpha_star=1.0), 256 if full else 128
    found = {L: _solve_kernel(noisy.replace(L=L), neurons) for L in ((4, 8, 16) if full else (2, 4, 8))}
    yield from _ratios("7 alpha_star = 1 (SDE in depth): ", found)


def _ratios(prefix: str, found: Mapping[int, Trajectory]) -> Iterator[Check]:
    """Check that every doubling of the depth halves the change of f."""
    depths = list(found)
    for one, two, four in zip(depths, depths[1:], depths[2:], strict=False):
        ratio = distance(found[one].f, found[two].f) / distance(found[two].f, found[four].f)
        name = f"{prefix}|f_{one} - f_{two}| / |f_{two} - f_{four}|"
        yield Check(name, ratio, low=1.6, high=2.4, mc_error=found[depths[-1]].mc_error)


def router_law(full: bool) -> Iterator[Check]:
    """8: the distribution of p over experts."""
    from scipy.stats import ks_2samp, kstwobign

    problem = BASE.replace(n_hid=32.0)
    theory = reduced.solve(problem, Sampling(4096 if full else 2048, 32, replicates=1)).p[..., 1::3]
    networks = near_the_limit(problem, Size(512 if full else 256, 256, 32), 4 if full else 2).p[..., 1::3]
    # One test over the experts for every network, layer, datum and third step.
    distances = ks_2samp(networks, theory, axis=2, method="asymp").statistic
    critical = kstwobign.isf(0.01) * math.sqrt(1 / networks.shape[2] + 1 / theory.shape[2])
    fraction = float(np.mean(distances < critical))
    yield Check("8 p_k: fraction of Kolmogorov-Smirnov tests below the 1% critical value", fraction, low=0.95)
    spreads = []
    for n_hid in (16, 64, 256):
        narrow = BASE.replace(gate="soft0", n_hid=float(n_hid))
        found = reduced.solve(narrow, Sampling(512 if full else 128, n_hid, replicates=1))
        spreads.append(float(found.p[0, ..., -1].std(axis=1).mean()) * math.sqrt(n_hid))
    name = "8 soft0: std of p_k times sqrt(n_hid) at n_hid = 16, 64, 256, largest over smallest"
    yield Check(name, max(spreads) / min(spreads), high=1.15)


def hard_gates(full: bool) -> Iterator[Check]:
    """9: top-K gates."""
    size = Size(128, 64, 64)
    networks = near_the_limit(HARD, size, 16 if full else 6)
    off = float(np.abs(networks.loads.sum(2) - HARD.kappa * size.E).max())
    yield Check("9 hard gates: |experts per datum - K| in networks", off, high=1e-5)
    theory = reduced.solve(HARD.replace(n_hid=64.0), Sampling(2048 if full else 512, 64, replicates=2))
    off = float(np.abs(theory.loads.mean(2) - HARD.kappa).max())
    yield Check("9 hard gates: |[1_{q >= q_star}] - kappa|", off, high=1 / theory.loads.shape[2])
    apart = distance(networks.f, theory.f)
    yield Check("9 hard gates: theory of finite n_hid against networks", apart, high=0.01, mc_error=theory.mc_error)


def error_law(full: bool) -> Iterator[Check]:
    """10: with E = N, n_hid = sqrt N, L = sqrt N / 4, the error falls as the number of weights to the power -1/6."""
    sampling = Sampling(16, 2048 if full else 512, replicates=2)
    limit = infinite_depth(BASE.replace(L=16 if full else 8), lambda problem: reduced.solve(problem, sampling)).f
    points = []
    for root in (4, 8, 12, 16, 20) if full else (4, 8, 12):
        problem, size = BASE.replace(L=root // 4), Size(root**2, root**2, root)
        networks = simulate(problem, size, range(24 if root < 12 else 12 if full else 6), dtype=torch.float32)
        points.append((size.parameters(problem), rms_distance(networks, limit)))
    yield Check("10 order of the error in the number of weights", fit_slope(points), low=-0.21, high=-0.13)


def own_limits(full: bool) -> Iterator[Check]:
    """11: limits of the theory itself."""
    still = BASE.replace(gamma0=0.02)
    theory = _solve(still, full)
    mc = theory.mc_error
    static = static_training(still, static_kernel(still, _sampling(still, full)))
    yield Check("11 gamma0 = 0.02 against the static kernel", distance(theory.f, static), high=0.002, mc_error=mc)
    one, other = (
        reduced.solve(problem, Sampling(4, 512, replicates=1)).f
        for problem in (BASE.replace(gate="hard", kappa=1.0), BASE.replace(gate="soft0"))
    )
    yield Check("11 hard gates with kappa = 1 against soft0", distance(one, other), high=1e-6)
    paths = []
    for finer in (1, 2, 4):
        slower = BASE.replace(eta=BASE.eta / finer, T=1 + (BASE.T - 1) * finer)
        paths.append(reduced.solve(slower, Sampling(16, 512, replicates=1)).f[:, ::finer])
    ratio = distance(paths[0], paths[1]) / distance(paths[1], paths[2])
    yield Check("11 eta, eta/2, eta/4: ratio of the distances", ratio, low=1.8, high=2.2)


def caveats(full: bool) -> Iterator[Check]:
    """C2 to C4: claims of the paper that need a caveat. C1 is the second check of 8."""
    limit, n = _solve(BASE, full), 8 if full else 3
    for ratio, size, bound in (("1", Size(128, 128, 16), {"high": 0.02}), ("1/32", Size(512, 16, 16), {"low": 0.08})):
        far = distance(near_the_limit(BASE, size, n).f, limit.f)
        where = f"nu = E/N = {ratio} at n_hid = 16, L = 2 (alpha_star {size.alpha_star(BASE):.2g})"
        yield Check(f"C2 {where}: distance to the limit", far, **bound, mc_error=limit.mc_error)

    errors = []
    for eta_b in (0.05, 0.0):
        problem = HARD.replace(bias_std=0.1, eta_b=eta_b)
        wide = reduced.solve(problem, Sampling(128, 1024 if full else 256, replicates=2))
        narrow = reduced.solve(problem.replace(n_hid=16.0), Sampling(4096 if full else 2048, 16, replicates=2))
        errors.append(distance(narrow.f, wide.f))
    name = "C3 error of n_hid = 16 under hard gates: with bias updates over without"
    yield Check(name, errors[0] / errors[1], low=2)

    start = HARD.replace(bias="zero", T=1)
    strong, weak = (_mean_square_load(start.replace(router_init_eps=eps)) for eps in (1e-2, 1e-6))
    by_biases = _mean_square_load(HARD.replace(bias_std=1e-6, T=1))
    name = "C4 b(0) = 0: mean square load at step 0, router noise of 1e-2 over 1e-6"
    yield Check(name, strong / weak, low=0.95, high=1.05)
    yield Check("C4 mean square load at step 0, biases of 1e-6 over router noise", by_biases / weak, low=2)


def _mean_square_load(problem: Problem) -> float:
    """Return the mean square load of the experts; it is kappa if all data select the same experts."""
    return float((reduced.solve(problem, Sampling(512, 64, replicates=1)).loads[..., 0] ** 2).mean())


CHECKS: Mapping[str, Callable[[bool], Iterator[Check]]] = {
    "identities": exact_identities,
    "solvers": two_solvers,
    "networks": networks_approach,
    "terms": every_term_counts,
    "shape": shape_does_not_matter,
    "alpha_star": finite_alpha_star,
    "depth": depth,
    "router": router_law,
    "hard": hard_gates,
    "error_law": error_law,
    "limits": own_limits,
    "caveats": caveats,
}
