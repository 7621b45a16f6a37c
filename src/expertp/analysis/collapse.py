"""Collapse of training curves: do all sizes follow the base early on, and do larger models win later?

Runs of one seed see the same batches at every size, so differences are paired by seed: the difficulty of a batch
cancels. Differences are smoothed by a running mean over `window` records, by default 2% of them. The window narrows
symmetrically towards both ends, so that a slope does not shift the curve.

The gap between two sizes is the mean of (loss of the larger - loss of the smaller) / loss of the smaller, from the
start to the step at which the base has made half of its loss decrease. In theory, a loss differs from its limit by
about 1 / size, so that the gap of a doubling is half of the gap of the doubling before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expertp.analysis.paired import PairedDifference, paired
from expertp.analysis.seed_curves import SeedCurves
from expertp.study.cells import Size

Floats = NDArray[np.float64]
# A curve has left the base when it differs by more than this many s.d. over the base's seeds.
FAR_SDS = 3.0
# Gaps of at most this are none: 0.2% of the loss.
NO_GAP = 0.002


@dataclass(frozen=True)
class Deviation:
    """Deviation of the training curve of one size from the base's.

    Args:
        size: the size.
        mean: smoothed loss, mean over seeds, per step.
        relative: (loss - base loss) / base loss per step, paired by seed.
        leaves_at: first step at which the deviation exceeds 3 s.d. of the base or a run has diverged; None if never.
        max_until_half: largest |relative| up to the base's half-drop step.
        n_seeds: number of seeds.
    """

    size: Size
    mean: tuple[float, ...]
    relative: tuple[float, ...]
    leaves_at: int | None
    max_until_half: float
    n_seeds: int


@dataclass(frozen=True)
class Collapse:
    """Training curves of all sizes compared with the base's.

    Args:
        steps: the steps.
        base: the base's smoothed loss, mean over seeds.
        base_sd: its s.d. over seeds.
        half_drop_step: step at which the base has completed half of its total loss decrease.
        deviations: one per size other than the base.
        window: records per running mean.
        n_seeds: number of seeds of the base.
    """

    steps: tuple[int, ...]
    base: tuple[float, ...]
    base_sd: tuple[float, ...]
    half_drop_step: int
    deviations: tuple[Deviation, ...]
    window: int
    n_seeds: int

    @property
    def max_deviation_until_half(self) -> float:
        """Largest relative deviation of any size up to the half-drop step."""
        return max((each.max_until_half for each in self.deviations), default=math.nan)


@dataclass(frozen=True)
class Crossing:
    """Comparison of the training losses of two neighbouring sizes.

    Args:
        smaller: the smaller size.
        larger: the larger size.
        steps: steps at which the curves cross, by more than the noise.
        gap: smoothed loss of the larger minus that of the smaller at the end; nan where one has diverged.
    """

    smaller: Size
    larger: Size
    steps: tuple[int, ...]
    gap: float

    @property
    def count(self) -> int:
        """How often the curves cross."""
        return len(self.steps)

    @property
    def larger_ends_lower(self) -> bool:
        """Whether the larger model has the lower loss at the end."""
        return self.gap < 0


@dataclass(frozen=True)
class Gap:
    """Relative difference between the training losses of two sizes early in training.

    Args:
        smaller: the smaller size.
        larger: the larger size.
        by_seed: mean difference by seed; inf where a run has diverged.
    """

    smaller: Size
    larger: Size
    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        """Mean over seeds; inf where a run has diverged."""
        return float(np.mean(list(self.by_seed.values())))

    @property
    def expected(self) -> float:
        """The gap in units of 1 / size, as the theory has it."""
        return 1 / self.smaller.scale - 1 / self.larger.scale

    @property
    def is_none(self) -> bool:
        """Whether |gap| is at most `NO_GAP`, beyond noise."""
        sizes = self._sizes(list(self.by_seed))
        return paired(sizes, [0.0] * len(sizes)).is_at_most(NO_GAP) is True

    def beyond(self, other: Gap) -> PairedDifference:
        """Return |gap| minus that of another gap, paired by seed."""
        seeds = [seed for seed in self.by_seed if seed in other.by_seed]
        return paired(self._sizes(seeds), other._sizes(seeds))

    def _sizes(self, seeds: Sequence[int]) -> list[float]:
        """Return |gap| of some seeds: with the sign of the mean over seeds, so that noise around 0 does not add up."""
        return [math.copysign(1, self.mean) * self.by_seed[seed] for seed in seeds]

    def __str__(self) -> str:
        return "unknown, a run diverges" if math.isinf(self.mean) else f"{100 * self.mean:+.2g}%"


@dataclass(frozen=True)
class Shrinkage:
    """The gap of the first doubling along an axis, and that of the last."""

    first: Gap
    last: Gap

    @property
    def ratio(self) -> float:
        """|gap| of the last doubling divided by that of the first; nan where a run has diverged."""
        has_diverged = math.isinf(self.first.mean) or math.isinf(self.last.mean)
        return math.nan if has_diverged or self.first.mean == 0 else abs(self.last.mean / self.first.mean)

    @property
    def expected(self) -> float:
        """The same ratio in theory: 1/2 for sizes of 1, 2 and 4."""
        return self.last.expected / self.first.expected

    @property
    def is_shrinking(self) -> bool | None:
        """Whether the last gap is significantly smaller, or surely there is no gap; None where noise decides."""
        if math.isinf(self.first.mean) or math.isinf(self.last.mean):
            return False
        if self.first.is_none and self.last.is_none:
            return True
        change = self.last.beyond(self.first)
        return True if change.is_lower else False if change.is_higher else None


def early_gap(losses: Mapping[Size, SeedCurves], smaller: Size, larger: Size, until: int) -> Gap:
    """Return the gap between two sizes from the start to a step.

    Args:
        losses: training losses of these sizes.
        smaller: the smaller size.
        larger: the larger size.
        until: last step of the window, such as the base's half-drop step.
    """
    small, large = losses[smaller], losses[larger]
    seeds, window = small.shared_seeds(large), default_window(len(small.steps))
    small_ST, large_ST = (each.at(small.steps, seeds) for each in (small, large))
    relative_ST = smoothed(large_ST - small_ST, window) / smoothed(small_ST, window)
    gaps_S = relative_ST[:, np.asarray(small.steps) <= until].mean(axis=1)
    by_seed = {seed: math.inf if math.isnan(gap) else gap for seed, gap in zip(seeds, gaps_S.tolist(), strict=True)}
    return Gap(smaller, larger, by_seed)


def shrinkage(losses: Mapping[Size, SeedCurves], until: int) -> Shrinkage | None:
    """Return the gaps of the first and last pair of neighbouring sizes; None with fewer than three sizes."""
    ordered = sorted(losses, key=lambda size: size.scale)
    if len(ordered) < 3:
        return None
    first, last = (early_gap(losses, *pair, until) for pair in ((ordered[0], ordered[1]), (ordered[-2], ordered[-1])))
    return Shrinkage(first, last)


def collapse(base: SeedCurves, scaled: Mapping[Size, SeedCurves], window: int | None = None) -> Collapse:
    """Compare training losses with the base's, paired by seed, at the base's steps.

    Args:
        base: training losses of the base.
        scaled: training losses of other sizes; sizes that share no seed with the base are left out.
        window: records per running mean, odd; None: 2% of them.
    """
    window = window or default_window(len(base.steps))
    base_ST = smoothed(base.values_ST, window)
    base_T, sd_T, half = base_ST.mean(0), _sd_over_seeds(base_ST, window), _half_drop(base_ST.mean(0), window)
    deviations = []
    for size, losses in scaled.items():
        seeds = base.shared_seeds(losses)
        if not seeds:
            continue
        raw_ST, beside_ST = losses.at(base.steps, seeds), base.at(base.steps, seeds)
        scaled_ST, off_T = smoothed(raw_ST, window), smoothed(raw_ST - beside_ST, window).mean(0)
        # A diverged run (nan) has left the curve. With one seed the s.d. is nan, and no curve ever leaves.
        left = np.flatnonzero((np.abs(off_T) > FAR_SDS * sd_T) | np.isnan(off_T))
        relative_T = off_T / smoothed(beside_ST, window).mean(0)
        until_half = np.abs(relative_T)[: half + 1]
        deviations.append(
            Deviation(
                size=size,
                mean=tuple(scaled_ST.mean(0).tolist()),
                relative=tuple(relative_T.tolist()),
                leaves_at=base.steps[left[0]] if left.size else None,
                max_until_half=math.inf if np.isnan(until_half).any() else float(until_half.max()),
                n_seeds=len(seeds),
            )
        )
    means, sds = tuple(base_T.tolist()), tuple(sd_T.tolist())
    return Collapse(base.steps, means, sds, base.steps[half], tuple(deviations), window, len(base.seeds))


def crossings(losses: Mapping[Size, SeedCurves], after: int = 0) -> tuple[Crossing, ...]:
    """Return where the training losses of neighbouring sizes cross after a step, such as the end of the collapse.

    A crossing counts once the difference has the other sign by 2 standard errors over seeds: the sign of the difference
    between two equal curves changes by chance at every step.
    """
    ordered = sorted(losses, key=lambda size: size.scale)
    pairs = itertools.pairwise(ordered)
    return tuple(_crossing(losses, *pair, after) for pair in pairs if losses[pair[0]].shared_seeds(losses[pair[1]]))


def _crossing(losses: Mapping[Size, SeedCurves], smaller: Size, larger: Size, after: int) -> Crossing:
    small, large = losses[smaller], losses[larger]
    steps, seeds = tuple(sorted({*small.steps, *large.steps})), small.shared_seeds(large)
    window = default_window(len(steps))
    off_ST = smoothed(large.at(steps, seeds) - small.at(steps, seeds), window)
    off_T = off_ST.mean(0)
    # With one seed the noise is unknown, and every change of sign counts.
    error_T = np.nan_to_num(_sd_over_seeds(off_ST, window)) / math.sqrt(len(seeds))
    side_T = np.where(np.abs(off_T) > 2 * error_T, np.sign(off_T), 0.0)
    sided = [(step, side) for step, side in zip(steps, side_T.tolist(), strict=True) if step > after and side]
    crossed = tuple(step for (_, before), (step, now) in itertools.pairwise(sided) if now != before)
    return Crossing(smaller, larger, crossed, float(off_T[-1]))


def default_window(n: int) -> int:
    """Return 2% of the number of records, made odd.

    >>> default_window(10), default_window(300), default_window(1000)
    (1, 7, 21)
    """
    return n // 50 | 1


def smoothed(losses: Floats, window: int) -> Floats:
    """Return the running mean along the last axis; nan stays nan and does not spread.

    >>> smoothed(np.array([0.0, 1.0, 5.0, 3.0, 4.0]), 3).tolist()
    [0.0, 2.0, 3.0, 4.0, 4.0]
    """
    n = losses.shape[-1]
    sums, counts = _running_sum(np.nan_to_num(losses)), _running_sum((~np.isnan(losses)).astype(float))
    places = np.arange(n)
    reach = np.minimum(window // 2, np.minimum(places, n - 1 - places))
    first, last = places - reach, places + reach + 1
    total, count = sums[..., last] - sums[..., first], counts[..., last] - counts[..., first]
    return np.where(np.isnan(losses), math.nan, total / np.maximum(count, 1))


def _running_sum(values: Floats) -> Floats:
    """Return sums of the first 0, 1, ... values of the last axis."""
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)


def _sd_over_seeds(losses_ST: Floats, window: int) -> Floats:
    """Return the s.d. per step with its square smoothed, since one step has few values; nan with one seed."""
    if len(losses_ST) < 2:
        return np.full(losses_ST.shape[-1], math.nan)
    return np.asarray(np.sqrt(smoothed(losses_ST.var(0, ddof=1), window)))


def _half_drop(base_T: Floats, window: int) -> int:
    """Return the index at which a smoothed curve has completed half of its total decrease.

    The final value is that of the last full window: the very last records are hardly smoothed, and one hard batch
    could decide.
    """
    finite = base_T[~np.isnan(base_T)]
    if not finite.size:
        return 0
    end = finite[-min(window // 2 + 1, finite.size)]
    return int(np.argmax(base_T <= (finite[0] + end) / 2))
