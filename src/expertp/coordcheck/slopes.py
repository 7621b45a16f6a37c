"""Slopes of measured sizes along each axis, compared with the expected slopes.

    size of a module  ~  scale^slope,   scale = size of the model relative to the base

Under rules that transfer, activations and their updates are of order one at every scale: slopes are 0, except for those
in `EXPECTED`. Every rule set is compared with the same table.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

from expertp.plan import multipliers_of
from expertp.rules import HALF, N_ACT, ONE, L, Monomial, N, N_gamma, a
from expertp.spec import BaseHPs, Model
from expertp.study.cells import Size, arm_hps, axis_names
from expertp.study.cells import sizes as sizes_of
from expertp.study.spec import StudySpec
from expertp.util.fits import fit_slope

if TYPE_CHECKING:
    from expertp.coordcheck.measuring import Measurement  # with torch, which reading a report does not need

SlopeVerdict = Literal["PASS", "FAIL", "-"]
Check = Literal["init", "size", "effective", "propagated"]
CHECKS: tuple[Check, ...] = get_args(Check)
HEADINGS: Mapping[Check, str] = {
    "init": "size at init",
    "size": "size",
    "effective": "(W_t-W_0) x_t",
    "propagated": "W_0 (x_t-x_0)",
}
# (axis, module, check) -> seed -> scale -> size
Sizes = Mapping[tuple[str, str, Check], Mapping[int, Mapping[float, float]]]
# Share of steps that is not used: in the first steps, slopes change from those of init to those of training.
SETTLED_FROM = Fraction(1, 3)


class Between(NamedTuple):
    """Sum of two parts that scale differently; its slope lies between theirs."""

    one: Monomial
    other: Monomial


class Expected(NamedTuple):
    """Expected scaling of the sizes of a module; None for a size that does not exist."""

    init: Monomial | Between
    size: Monomial | Between
    effective: Monomial | Between | None = None
    propagated: Monomial | Between | None = None


ROUTER_AT_INIT = N**HALF / N_gamma
MOE_AT_INIT = (a * N_ACT) ** -HALF
# After a few steps, router logits are still partly those of init.
ROUTER = Between(ROUTER_AT_INIT, ONE)
# fmt: off
EXPECTED: Mapping[str, Expected] = {
    #                       size at init          size after steps  (W_t - W_0) x_t  W_0 (x_t - x_0)
    "embedding":   Expected(ONE,                  ONE,              ONE),
    "attn_q":      Expected(ONE,                  ONE,              ONE,             ONE),
    "attn_k":      Expected(ONE,                  ONE,              ONE,             ONE),
    "attn_v":      Expected(ONE,                  ONE,              ONE,             ONE),
    "attn_o":      Expected(ONE,                  ONE,              ONE,             ONE),
    "router":      Expected(ROUTER_AT_INIT,       ROUTER,           ONE,             ROUTER_AT_INIT),
    "expert_up":   Expected(ONE,                  ONE,              ONE,             ONE),
    "expert_down": Expected(a**-HALF,             ONE,              ONE,             ONE),
    "moe_output":  Expected(MOE_AT_INIT,          ONE),
    "ffn_up":      Expected(ONE,                  ONE,              ONE,             ONE),
    "ffn_down":    Expected(a**-HALF,             ONE,              ONE,             ONE),
    "ffn_output":  Expected(a**-HALF,             ONE),
    # sum of attention and of untrained feed-forward layers
    "block_sum":   Expected(Between(L**-HALF, L**-HALF * MOE_AT_INIT), ONE),
    # sum of the embedding and of the blocks
    "stream":      Expected(Between(ONE, L**-HALF * MOE_AT_INIT), ONE),
    "logits":      Expected(N**-HALF,             ONE,              ONE,             N**Fraction(-2, 5)),
    # in other families: latent attention, dense layers and shared experts; alpha_ffn is that of routed experts
    "latent_down": Expected(ONE,                  ONE,              ONE,             ONE),
    "latent_up":   Expected(ONE,                  ONE,              ONE,             ONE),
    "dense_up":    Expected(ONE,                  ONE,              ONE,             ONE),
    "dense_down":  Expected(ONE,                  ONE,              ONE,             ONE),
    "shared_up":   Expected(ONE,                  ONE,              ONE,             ONE),
    "shared_down": Expected(Between(ONE, a**-HALF), ONE,            ONE,             ONE),
    "shared_gate": Expected(ROUTER_AT_INIT,       ROUTER,           ONE,             ROUTER_AT_INIT),
}
# fmt: on
# Largest allowed distance from the expected slope. Powers differ in steps of 1/2 in theory. Finite sizes and few steps
# move correct slopes by less: at a tuned base by up to 0.1 at init, 0.25 in sizes and 0.35 in updates.
TOLERANCES: Mapping[Check, float] = {"init": 0.2, "size": 0.3, "effective": 0.4, "propagated": 0.3}


@dataclass(frozen=True)
class Slope:
    """Slope of one module's size along an axis, and the expected slope.

    Attributes:
        slope: mean over seeds; None if no seed has a size at every scale.
        standard_error: standard error of the mean; None with fewer than two seeds.
        low, high: range of expected slopes; they differ where a sum of two parts has no single power.
    """

    axis: str
    module: str
    check: Check
    slope: float | None
    standard_error: float | None
    seeds: int
    low: float
    high: float
    tolerance: float
    verdict: SlopeVerdict


@dataclass(frozen=True)
class Divergence:
    """A run that diverged."""

    axis: str
    scale: float
    seed: int
    step: int


@dataclass(frozen=True)
class CoordinateCheck:
    """All slopes of a check and the runs that diverged."""

    rules: str
    slopes: tuple[Slope, ...]
    diverged: tuple[Divergence, ...]

    @property
    def verdict(self) -> SlopeVerdict:
        """FAIL if a slope fails or a run diverged."""
        return "FAIL" if self.diverged or any(slope.verdict == "FAIL" for slope in self.slopes) else "PASS"


def first_settled_step(steps: int) -> int:
    """Return the first step whose records are used."""
    return math.ceil(steps * SETTLED_FROM)


def analyse(table: Iterable[Measurement], study: StudySpec, rules: str, steps: int) -> CoordinateCheck:
    """Return the slopes of a table of measurements along the axes of a study, with the expected slopes."""
    sizes = settled_sizes(table := list(table), steps)
    slopes = []
    for (axis, module, check), by_seed in sizes.items():
        expected = getattr(EXPECTED[module], check)
        assert expected is not None, f"{check} of {module} is measured and has no expectation"
        on_axis = sizes_of(study, axis)
        low, high = expected_slopes(expected, study.base, on_axis, arm_hps(study, rules))
        slopes.append(judge(axis, module, check, by_seed, {size.scale for size in on_axis}, (low, high)))
    order = {module: place for place, module in enumerate(EXPECTED)}
    axes = {axis: place for place, axis in enumerate(axis_names(study))}
    slopes.sort(key=lambda each: (axes[each.axis], order[each.module], CHECKS.index(each.check)))
    diverged = [Divergence(m.axis, m.scale, m.seed, m.step) for m in table if m.quantity == "diverged"]
    return CoordinateCheck(rules, tuple(slopes), tuple(diverged))


def settled_sizes(table: Iterable[Measurement], steps: int) -> Sizes:
    """Return (axis, module, check) -> seed -> scale -> size: at init, or the geometric mean over settled steps."""
    diverged = set()
    parts: dict[tuple[str, str, Check], dict[int, dict[float, list[float]]]] = {}
    for row in table:
        if row.module == "run":
            diverged.add((row.axis, row.scale, row.seed))
            continue
        check = "init" if row.step == 0 else cast("Check", row.quantity)
        by_seed = parts.setdefault((row.axis, row.module, check), {})
        if row.step == 0 or row.step >= first_settled_step(steps):
            by_seed.setdefault(row.seed, {}).setdefault(row.scale, []).append(row.value)
    return {
        (axis, module, check): {
            seed: {
                scale: _geometric_mean(values)
                for scale, values in by_scale.items()
                if check == "init" or (axis, scale, seed) not in diverged
            }
            for seed, by_scale in by_seed.items()
        }
        for (axis, module, check), by_seed in parts.items()
    }


def judge(
    axis: str,
    module: str,
    check: Check,
    by_seed: Mapping[int, Mapping[float, float]],
    scales: set[float],
    expected: tuple[float, float],
) -> Slope:
    """Fit one slope per seed, and compare their mean with the expected range and the check's tolerance.

    Args:
        axis, module, check: labels of the slope.
        by_seed: seed -> scale -> size. Seeds without a size at one of the `scales` are not used.
        scales: scales of the axis.
        expected: lower and upper end of the expected range.
    """
    whole = [sizes for sizes in by_seed.values() if set(sizes) == scales]
    # A size that is exactly 0 at every scale, such as that of a router with zero init, has no slope.
    is_zero = bool(whole) and all(size == 0 for sizes in whole for size in sizes.values())
    slopes = [fit_slope(sizes.items()) for sizes in whole if all(size > 0 for size in sizes.values())]
    slope = statistics.fmean(slopes) if slopes else None
    error = statistics.stdev(slopes) / math.sqrt(len(slopes)) if len(slopes) > 1 else None
    low, high = expected
    tolerance = TOLERANCES[check]
    if is_zero:
        verdict: SlopeVerdict = "-"
    else:
        verdict = "PASS" if slope is not None and low - tolerance <= slope <= high + tolerance else "FAIL"
    return Slope(axis, module, check, slope, error, len(slopes), low, high, tolerance, verdict)


def expected_slopes(
    expected: Monomial | Between, base: Model, sizes: Sequence[Size], hps: BaseHPs
) -> tuple[float, float]:
    """Return the range of expected slopes along an axis: fits of the expected powers at its sizes."""
    values = {size.scale: _symbols(base, size.model, hps) for size in sizes}
    slopes = [fit_slope((scale, part(of)) for scale, of in values.items()) for part in _parts(expected)]
    # Fits to exact powers are exact up to rounding.
    low, *_, high = sorted(round(slope, 9) + 0.0 for slope in slopes * 2)
    return low, high


def expected_rows() -> list[tuple[str, ...]]:
    """Return `EXPECTED` as text: a row per module, a column per check, "1" for a size that does not depend on scale.

    >>> expected_rows()[5]
    ('router', 'm_N^1/2 m_N^-gamma', 'm_N^1/2 m_N^-gamma to 1', '1', 'm_N^1/2 m_N^-gamma')
    """
    return [
        (module, *("" if part is None else " to ".join(map(str, _parts(part))) for part in expected))
        for module, expected in EXPECTED.items()
    ]


def _parts(expected: Monomial | Between) -> tuple[Monomial, ...]:
    return tuple(expected) if isinstance(expected, Between) else (expected,)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if all(value > 0 for value in values) else 0.0


def _symbols(base: Model, model: Model, hps: BaseHPs) -> dict[str, float]:
    """Return the values of the symbols in `EXPECTED`."""
    m = multipliers_of(base, model)
    gamma = 1.0 if math.isinf(hps.gamma) else m.width**hps.gamma
    return {
        "m_N": m.width,
        "m_N^gamma": gamma,
        "m_L": m.depth,
        "m_E": m.experts,
        "m_a": m.alpha,
        "n_act": model.n_act / base.n_act,
    }
