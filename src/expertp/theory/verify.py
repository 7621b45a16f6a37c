"""Is the theory right? Every claim about it as a check with a measured value and a bound, quick or in full.

Numbers follow the list of docs/theory.md. A check is a generator of results; `CHECKS` has them all. The problem is a
polynomial of degree 4 in 3 of 20 directions; where the kernel form takes part, with few data and steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from expertp.fits import fit_slope
from expertp.theory import kernel, reduced
from expertp.theory.compare import rms_distance
from expertp.theory.finite import Size, autograd_descend, draw_weights, passes, simulate, train
from expertp.theory.identities import residuals
from expertp.theory.limits import infinite_depth, static_kernel, static_training
from expertp.theory.problem import Floats, Problem, make_data
from expertp.theory.sampling import Sampling, default_sampling
from expertp.theory.trajectory import Trajectory, distance

BASE = Problem()
HARD = Problem(gate="hard", kappa=0.25, eta_b=0.05)
# Few data and steps, and much feature learning, so that every term of the equations shows.
SMALL = Problem(P=4, T=20, L=1, gamma0=6.0, eta=0.05)
# At what share of experts two empirical laws differ by chance in 1 of 100 cases: this times sqrt(1/n + 1/m).
KS_1_PERCENT = 1.628


@dataclass(frozen=True)
class Check:
    """One measured claim.

    Args:
        check: its number in the list, and what it says.
        value: measured.
        low: least value that passes.
        high: largest value that passes.
        mc_error: Monte-Carlo error of the theory it rests on, relative to f; None where nothing was sampled.
    """

    check: str
    value: float
    low: float = -math.inf
    high: float = math.inf
    mc_error: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the value lies within its bounds."""
        return self.low <= self.value <= self.high

    @property
    def bound(self) -> str:
        """The bounds in words."""
        if math.isinf(self.low):
            return f"<= {self.high:g}"
        return f">= {self.low:g}" if math.isinf(self.high) else f"{self.low:g} .. {self.high:g}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "check": self.check,
            "value": self.value,
            "bound": self.bound,
            "mc_error": self.mc_error,
            "ok": self.ok,
        }


def near_the_limit(problem: Problem, size: Size, n_seeds: int, **options: Any) -> Trajectory:
    """Return networks whose kernels and biases start at their limits, so that few of them have a mean near it."""
    options = {"frame": "orthonormal", "biases": "stratified", "dtype": torch.float32, **options}
    return simulate(problem, size, range(n_seeds), **options)


def _finer(problem: Problem, full: bool, particles: int = 2**15) -> Sampling:
    return default_sampling(problem, particles * (4 if full else 1), replicates=4 if full else 2)


def exact_identities(full: bool) -> Iterator[Check]:
    """1: what holds at any size, and gradients by hand against automatic ones."""
    small = {"P": 6, "D": 8, "T": 12 if full else 6, "L": 3}
    size = Size(N=24, E=8, n_hid=6)
    for problem in (BASE.replace(**small), BASE.replace(gate="soft0", **small), HARD.replace(**small)):
        worst = max(residuals(problem, size).values())
        yield Check(f"1 identities of section 2, {problem.gate} gate: largest residual", worst, high=1e-12)
        data, by_hand = make_data(problem), draw_weights(problem, size, [0, 1])
        by_autograd = draw_weights(problem, size, [0, 1])
        X, y = torch.from_numpy(data.X), torch.from_numpy(data.y)
        f = np.stack([at.f_SP.numpy() for at in train(problem, by_hand, data)])
        other = []
        for _ in range(problem.T):
            other.append(passes(problem, by_autograd, X, y).f_SP.numpy())
            autograd_descend(problem, by_autograd, X, y)
        yield Check(
            f"1 gradients by hand and by autograd, {problem.gate} gate", distance(f, np.stack(other)), high=1e-12
        )


def two_solvers(full: bool) -> Iterator[Check]:
    """2: the kernel form against the reduced form."""
    problem = BASE.replace(P=4, T=20 if full else 12)
    reference = reduced.solve(problem, _finer(problem, full))
    nodes, errors = 16, []
    neurons = (16, 64, 256) if full else (8, 32, 128)
    for n in neurons:
        found = kernel.solve(problem, Sampling(nodes, n, replicates=4, dtype=torch.float64))
        errors.append(rms_distance(found, reference.f))
    particles = [nodes * n for n in neurons]
    mc = reference.mc_error
    yield Check(
        "2 kernel against reduced form: order in the number of neurons",
        fit_slope(zip(particles, errors, strict=True)),
        high=-0.4,
        mc_error=mc,
    )
    found = kernel.solve(problem, Sampling(nodes, 256, replicates=1, dtype=torch.float64))
    yield Check("2 kernel against reduced form at 4096 neurons", distance(found.f, reference.f), high=0.01, mc_error=mc)


def networks_approach(full: bool) -> Iterator[Check]:
    """3: finite networks approach the theory."""
    limit = reduced.solve(BASE, _finer(BASE, full))
    seeds = range(16 if full else 6)
    widths = (32, 64, 128, 256) if full else (32, 64, 128)
    errors = [
        rms_distance(simulate(BASE, Size(N, 64, 64), seeds, biases="stratified", dtype=torch.float32), limit.f)
        for N in widths
    ]
    yield Check("3 order of the error in N", fit_slope(zip(widths, errors, strict=True)), -0.65, -0.4, limit.mc_error)
    counts = (8, 16, 32, 64) if full else (8, 16, 32)
    many = range(32 if full else 16)
    errors = [
        rms_distance(simulate(BASE, Size(256, E, 128), many, frame="orthonormal", dtype=torch.float32), limit.f)
        for E in counts
    ]
    yield Check("3 order of the error in E", fit_slope(zip(counts, errors, strict=True)), -0.65, -0.4, limit.mc_error)
    networks = near_the_limit(BASE, Size(128, 64, 64), 16 if full else 4)
    yield Check(
        "3 mean of networks at N=128, E=Ne=64", distance(networks.f, limit.f), high=0.01, mc_error=limit.mc_error
    )


def every_term_counts(full: bool) -> Iterator[Check]:
    """4: leaving a term out is seen."""
    networks = near_the_limit(SMALL, Size(256, 128, 512), 16 if full else 4)
    sampling = Sampling(nodes=32, neurons=128 if full else 32, replicates=2, dtype=torch.float64)
    whole = kernel.solve(SMALL, sampling)
    kept = distance(whole.f, networks.f)
    terms: tuple[kernel.Term, ...] = ("R_phi", "R_g", "sigma_in_z")
    for term in terms:
        without = kernel.solve(SMALL, sampling, drop=frozenset({term}))
        ratio = distance(without.f, networks.f) / kept
        yield Check(
            f"4 without {term}: distance to networks, times that of the theory", ratio, low=5, mc_error=whole.mc_error
        )
    missed = residuals(BASE.replace(P=6, D=8, T=6), Size(24, 8, 6), drop=frozenset({"M_AA"}))
    yield Check("4 without M_AA: residual of the identity of g", max(missed.values()), low=1e-6)


def shape_does_not_matter(full: bool) -> Iterator[Check]:
    """5: at alpha_star near 0 only kappa matters, not the FFN ratio; at alpha_star = 1 it does."""
    limit, n = reduced.solve(BASE, _finer(BASE, full)), 12 if full else 3
    shapes = {"2": Size(128, 20, 256), "1/2": Size(128, 40, 64), "1/8": Size(128, 144, 16)}
    found = {name: near_the_limit(BASE, size, n).f for name, size in shapes.items()}
    apart = max(distance(f, found["1/2"]) for f in found.values())
    yield Check(
        "5 Ne/N of 2, 1/2 and 1/8 at alpha_star <= 0.03: largest distance", apart, high=0.015, mc_error=limit.mc_error
    )
    joint = (Size(64, 64, 64), Size(128, 128, 32), Size(192, 64, 64) if full else Size(160, 64, 64))
    far = max(distance(near_the_limit(BASE, size, n).f, limit.f) for size in joint)
    yield Check(
        "5 three joint scalings with alpha_star -> 0: largest distance to the limit",
        far,
        high=0.015,
        mc_error=limit.mc_error,
    )
    wide = near_the_limit(BASE, Size(1024, 16, 32), 8 if full else 2)
    yield Check(
        "5 alpha_star = 1: distance to the limit of alpha_star = 0",
        distance(wide.f, limit.f),
        low=0.08,
        mc_error=limit.mc_error,
    )


def finite_alpha_star(full: bool) -> Iterator[Check]:
    """6: the theory of alpha_star = 1."""
    for L, size in ((1, Size(1600, 40, 40)), (3, Size(1728, 24, 24))):
        problem = BASE.replace(P=4, T=12, eta=0.1, L=L, alpha_star=1.0)
        networks = near_the_limit(problem, size, 32 if full else 8, together=2)
        with_noise = kernel.solve(problem, Sampling(16, 128 if full else 64, replicates=2, dtype=torch.float64))
        without = reduced.solve(problem.replace(alpha_star=0.0), _finer(problem, full))
        mc = with_noise.mc_error
        yield Check(
            f"6 alpha_star = 1, L={L}: theory against networks",
            distance(with_noise.f, networks.f),
            high=0.015,
            mc_error=mc,
        )
        yield Check(
            f"6 alpha_star = 1, L={L}: theory of alpha_star = 0 against them",
            distance(without.f, networks.f),
            low=0.08,
            mc_error=mc,
        )


def depth(full: bool) -> Iterator[Check]:
    """7: the error of a finite depth is 1 / L."""
    depths = (4, 8, 16, 32) if full else (4, 8, 16)
    sampling = Sampling(16, 4096 if full else 1024, replicates=2)
    found = [reduced.solve(BASE.replace(L=L), sampling) for L in depths]
    steps = [distance(shallow.f, deep.f) for shallow, deep in itertools.pairwise(found)]
    for L, ratio in zip(depths, np.array(steps[:-1]) / steps[1:], strict=False):
        yield Check(f"7 |f_{L} - f_{2 * L}| / |f_{2 * L} - f_{4 * L}|", float(ratio), 1.6, 2.4, found[-1].mc_error)
    noisy = BASE.replace(P=4, T=12, eta=0.1, alpha_star=1.0)
    sampling = Sampling(16, 256 if full else 128, replicates=2, dtype=torch.float64)
    L = 4 if full else 2
    shallow, middle, deep = (kernel.solve(noisy.replace(L=depth), sampling) for depth in (L, 2 * L, 4 * L))
    ratio = distance(shallow.f, middle.f) / distance(middle.f, deep.f)
    what = f"7 alpha_star = 1 (SDE in depth): |f_{L} - f_{2 * L}| / |f_{2 * L} - f_{4 * L}|"
    yield Check(what, ratio, 1.6, 2.4, deep.mc_error)


def router_law(full: bool) -> Iterator[Check]:
    """8: the law of p over experts."""
    problem = BASE.replace(n_hid=32.0)
    theory = reduced.solve(problem, Sampling(4096 if full else 2048, 32, replicates=1))
    networks = near_the_limit(problem, Size(512 if full else 256, 256, 32), 4 if full else 2)
    steps = range(1, problem.T, 3)
    cases = [
        ks_distance(networks.p[seed, l, :, x, t], theory.p[0, l, :, x, t])
        for seed in range(len(networks.p))
        for l in range(problem.L)
        for x in range(problem.P)
        for t in steps
    ]
    critical = KS_1_PERCENT * math.sqrt(1 / networks.p.shape[2] + 1 / theory.p.shape[2])
    share = float(np.mean(np.array(cases) < critical))
    yield Check("8 law of p_k: share of cases below the 1% critical value of Kolmogorov-Smirnov", share, low=0.95)
    spreads = []
    for n_hid in (16, 64, 256):
        narrow = BASE.replace(gate="soft0", n_hid=float(n_hid))
        found = reduced.solve(narrow, Sampling(512 if full else 128, n_hid, replicates=1))
        spreads.append(float(found.p[0, ..., -1].std(axis=1).mean()) * math.sqrt(n_hid))
    yield Check(
        "8 soft0: std of p_k times sqrt(Ne) at Ne = 16, 64, 256, largest over least",
        max(spreads) / min(spreads),
        high=1.15,
    )


def ks_distance(one: Floats, other: Floats) -> float:
    """Return the largest difference between two empirical laws.

    >>> ks_distance(np.array([1.0, 2.0]), np.array([1.5, 2.5]))
    0.5
    """
    places = np.concatenate([one, other])
    shares = [np.searchsorted(np.sort(each), places, side="right") / each.size for each in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())


def hard_gates(full: bool) -> Iterator[Check]:
    """9: top-K gates."""
    size = Size(128, 64, 64)
    networks = near_the_limit(HARD, size, 16 if full else 6)
    off = float(np.abs(networks.loads.sum(2) - HARD.kappa * size.E).max())
    yield Check("9 hard gates: experts per datum beside K in networks", off, high=1e-5)
    problem = HARD.replace(n_hid=64.0)
    theory = reduced.solve(problem, Sampling(2048 if full else 512, 64, replicates=2))
    share = float(np.abs(theory.loads.mean(2) - HARD.kappa).max())
    yield Check("9 hard gates: [1_{q >= q_star}] beside kappa", share, high=1 / theory.loads.shape[2])
    yield Check(
        "9 hard gates: theory of finite Ne against networks",
        distance(networks.f, theory.f),
        high=0.01,
        mc_error=theory.mc_error,
    )


def error_law(full: bool) -> Iterator[Check]:
    """10: under E = N, Ne = sqrt N, L = sqrt N / 4 the error falls as the 1/6th power of the number of weights."""
    sampling = Sampling(16, 2048 if full else 512, replicates=2)
    limit = infinite_depth(BASE.replace(L=16 if full else 8), lambda problem: reduced.solve(problem, sampling)).f
    counts, errors = [], []
    for root in (4, 8, 12, 16, 20) if full else (4, 8, 12):
        problem, size = BASE.replace(L=root // 4), Size(root**2, root**2, root)
        networks = simulate(problem, size, range(24 if root < 12 else 12 if full else 6), dtype=torch.float32)
        counts.append(size.parameters(problem))
        errors.append(rms_distance(networks, limit))
    yield Check(
        "10 order of the error in the number of weights", fit_slope(zip(counts, errors, strict=True)), -0.21, -0.13
    )


def own_limits(full: bool) -> Iterator[Check]:
    """11: limits of the theory itself."""
    still = BASE.replace(gamma0=0.02)
    sampling = _finer(still, full)
    theory = reduced.solve(still, sampling)
    static = static_training(still, static_kernel(still, sampling))
    yield Check(
        "11 gamma0 = 0.02 against the static kernel", distance(theory.f, static), high=0.002, mc_error=theory.mc_error
    )
    sampling = Sampling(4, 512, replicates=1)
    one = reduced.solve(BASE.replace(gate="hard", kappa=1.0), sampling)
    other = reduced.solve(BASE.replace(gate="soft0"), sampling)
    yield Check("11 hard gates with kappa = 1 against soft0", distance(one.f, other.f), high=1e-6)
    paths = []
    for finer in (1, 2, 4):
        slower = BASE.replace(eta=BASE.eta / finer, T=1 + (BASE.T - 1) * finer)
        paths.append(reduced.solve(slower, Sampling(16, 512, replicates=1)).f[:, ::finer])
    ratio = distance(paths[0], paths[1]) / distance(paths[1], paths[2])
    yield Check("11 eta, eta/2, eta/4: ratio of the distances", ratio, 1.8, 2.2)


def caveats(full: bool) -> Iterator[Check]:
    """Where claims of the paper need a word more: C1 is the second check of 8, the others are here."""
    limit = reduced.solve(BASE, _finer(BASE, full))
    n = 8 if full else 3
    for ratio, size in (("1", Size(128, 128, 16)), ("1/32", Size(512, 16, 16))):
        far = distance(near_the_limit(BASE, size, n).f, limit.f)
        bounds = {"high": 0.02} if ratio == "1" else {"low": 0.08}
        what = (
            f"C2 nu = E/N = {ratio} at Ne = 16, L = 2 (alpha_star {size.alpha_star(BASE):.2g}): distance to the limit"
        )
        yield Check(what, far, mc_error=limit.mc_error, **bounds)

    errors = {}
    for eta_b in (0.05, 0.0):
        problem = HARD.replace(bias_std=0.1, eta_b=eta_b)
        wide = reduced.solve(problem, Sampling(128, 1024 if full else 256, replicates=2))
        narrow = reduced.solve(problem.replace(n_hid=16.0), Sampling(4096 if full else 2048, 16, replicates=2))
        errors[eta_b] = distance(narrow.f, wide.f)
    yield Check(
        "C3 error of Ne = 16 under hard gates: with bias updates, times that without", errors[0.05] / errors[0.0], low=2
    )

    start = HARD.replace(bias="zero", T=1)
    noisy = [_mean_square_load(start.replace(router_init_eps=eps)) for eps in (1e-2, 1e-6)]
    ordered = _mean_square_load(HARD.replace(bias_std=1e-6, T=1))
    yield Check(
        "C4 b(0) = 0: mean square load at step 0 by router noise of 1e-2, over 1e-6", noisy[0] / noisy[1], 0.95, 1.05
    )
    yield Check("C4 the same by biases of 1e-6, over that by router noise", ordered / noisy[1], low=2)


def _mean_square_load(problem: Problem) -> float:
    """Return the mean square over experts of the share of data that they see; 1 times kappa where data agree."""
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
