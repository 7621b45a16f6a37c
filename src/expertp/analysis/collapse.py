"""Do training curves of different sizes lie on each other early on, and is bigger better later?

Runs of one seed see the same batches at every size, so differences are taken seed by seed: what is hard about a batch
is hard at every size and goes away. What is left is smoothed by a running mean over `window` records, by default 2% of
them; it narrows symmetrically towards both ends, so that a slope does not shift the curve.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# S.d. over the base's seeds from which on a curve has left it.
FAR_SDS = 3.0


@dataclass(frozen=True)
class Trace:
    """Training losses of one model.

    Args:
        scale: how many times the base the model is.
        steps: the steps that have a record.
        losses: seed -> loss per step of `steps`; nan from the step on at which a run has diverged.
    """

    scale: float
    steps: tuple[int, ...]
    losses: Mapping[int, tuple[float, ...]]


@dataclass(frozen=True)
class Deviation:
    """How far the curve of one scale lies from the base's.

    Args:
        scale: how many times the base it is.
        mean: smoothed loss, mean over seeds, per step.
        relative: (loss - base loss) / base loss per step, by pairs of one seed.
        leaves_at: first step at which the deviation is more than 3 s.d. of the base, or not a number; None if never.
        max_until_half: largest |relative| up to the base's half-drop step.
    """

    scale: float
    mean: tuple[float, ...]
    relative: tuple[float, ...]
    leaves_at: int | None
    max_until_half: float


@dataclass(frozen=True)
class Collapse:
    """How training curves of all sizes compare with the base's.

    Args:
        steps: the steps.
        base: the base's smoothed loss, mean over seeds.
        base_sd: its s.d. over seeds.
        half_drop_step: where the base has made half of its whole loss drop.
        deviations: one per scale.
        window: records per running mean.
    """

    steps: tuple[int, ...]
    base: tuple[float, ...]
    base_sd: tuple[float, ...]
    half_drop_step: int
    deviations: tuple[Deviation, ...]
    window: int

    @property
    def max_deviation_until_half(self) -> float:
        """Largest relative deviation of any scale up to the half-drop step."""
        return max((each.max_until_half for each in self.deviations), default=math.nan)


@dataclass(frozen=True)
class Crossing:
    """Whether the larger of two neighbouring sizes stays the better one.

    Args:
        smaller: its scale.
        larger: its scale.
        steps: where the sign of the difference has changed, each time by more than its noise.
        gap: loss of the larger minus that of the smaller at the end, smoothed; nan where one has diverged.
    """

    smaller: float
    larger: float
    steps: tuple[int, ...]
    gap: float

    @property
    def count(self) -> int:
        """How often the curves cross."""
        return len(self.steps)

    @property
    def larger_ends_lower(self) -> bool:
        """Whether bigger is better at the end."""
        return self.gap < 0


def trace(scale: float, records: Mapping[int, Sequence[Mapping[str, Any]]]) -> Trace:
    """Return the training losses from the records of metrics.jsonl per seed.

    >>> trace(2.0, {0: [{"step": 1, "loss": 7.0}, {"step": 2, "loss": 6.0}], 1: [{"step": 1, "loss": None}]})
    Trace(scale=2.0, steps=(1, 2), losses={0: (7.0, 6.0), 1: (nan, nan)})
    """
    steps = sorted({record["step"] for of_seed in records.values() for record in of_seed})
    losses = {}
    for seed, of_seed in records.items():
        by_step = {record["step"]: record["loss"] for record in of_seed}
        found = [by_step.get(step) for step in steps]
        losses[seed] = tuple(math.nan if loss is None else loss for loss in found)
    return Trace(scale, tuple(steps), losses)


def collapse(base: Trace, scaled: Sequence[Trace], window: int | None = None) -> Collapse:
    """Compare training curves with the base's, seed by seed over the seeds that a size shares with it, at its steps.

    Args:
        base: the base's losses.
        scaled: those of other scales; one that shares no seed with the base is left out.
        window: records per running mean, odd; None: 2% of them.
    """
    window = window or default_window(len(base.steps))
    base_ST = smoothed(_matrix(base, base.steps, tuple(base.losses)), window)
    base_T, sd_T, half = base_ST.mean(0), _sd_over_seeds(base_ST, window), _half_drop(base_ST.mean(0), window)
    deviations = []
    for each in scaled:
        seeds = shared_seeds(base, each)
        if not seeds:
            continue
        raw_ST, beside_ST = _matrix(each, base.steps, seeds), _matrix(base, base.steps, seeds)
        scaled_ST, off_T = smoothed(raw_ST, window), smoothed(raw_ST - beside_ST, window).mean(0)
        # A diverged run has left the curve; where the s.d. is not known (one seed), no comparison is true.
        left = np.flatnonzero((np.abs(off_T) > FAR_SDS * sd_T) | np.isnan(off_T))
        relative_T = off_T / smoothed(beside_ST, window).mean(0)
        until_half = np.abs(relative_T)[: half + 1]
        deviations.append(
            Deviation(
                scale=each.scale,
                mean=tuple(scaled_ST.mean(0).tolist()),
                relative=tuple(relative_T.tolist()),
                leaves_at=base.steps[left[0]] if left.size else None,
                max_until_half=math.inf if np.isnan(until_half).any() else float(until_half.max()),
            )
        )
    return Collapse(
        base.steps, tuple(base_T.tolist()), tuple(sd_T.tolist()), base.steps[half], tuple(deviations), window
    )


def crossings(traces: Sequence[Trace], after: int = 0) -> tuple[Crossing, ...]:
    """Return where neighbouring scales cross after a step, such as the end of the collapse.

    A crossing counts once the difference has come out on the other side by 2 standard errors over seeds: two curves
    that lie on each other change places by chance at every step.
    """
    ordered = sorted(traces, key=lambda each: each.scale)
    return tuple(_crossing(*pair, after) for pair in itertools.pairwise(ordered) if shared_seeds(*pair))


def _crossing(smaller: Trace, larger: Trace, after: int) -> Crossing:
    steps, seeds = tuple(sorted({*smaller.steps, *larger.steps})), shared_seeds(smaller, larger)
    window = default_window(len(steps))
    off_ST = smoothed(_matrix(larger, steps, seeds) - _matrix(smaller, steps, seeds), window)
    off_T = off_ST.mean(0)
    # With one seed nothing tells the noise, and every change of sign counts.
    error_T = np.nan_to_num(_sd_over_seeds(off_ST, window)) / math.sqrt(len(seeds))
    side_T = np.where(np.abs(off_T) > 2 * error_T, np.sign(off_T), 0.0)
    sided = [(step, side) for step, side in zip(steps, side_T.tolist(), strict=True) if step > after and side]
    crossed = tuple(step for (_, before), (step, now) in itertools.pairwise(sided) if now != before)
    return Crossing(smaller.scale, larger.scale, crossed, float(off_T[-1]))


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
    """Return the s.d. per step, its square smoothed: three seeds tell little about one step. nan for one seed."""
    if len(losses_ST) < 2:
        return np.full(losses_ST.shape[-1], math.nan)
    return np.asarray(np.sqrt(smoothed(losses_ST.var(0, ddof=1), window)))


def _half_drop(base_T: Floats, window: int) -> int:
    """Return the first place at which a smoothed curve has made half of its whole drop, as far as it goes.

    It ends where its last whole window says: the very last records are hardly smoothed, and one hard batch would
    decide.
    """
    finite = base_T[~np.isnan(base_T)]
    if not finite.size:
        return 0
    end = finite[-min(window // 2 + 1, finite.size)]
    return int(np.argmax(base_T <= (finite[0] + end) / 2))


def shared_seeds(one: Trace, other: Trace) -> tuple[int, ...]:
    """Return the seeds that both traces have."""
    return tuple(sorted(set(one.losses) & set(other.losses)))


def _matrix(each: Trace, steps: Sequence[int], seeds: Sequence[int]) -> Floats:
    """Return losses [seed, step]; nan where a trace, such as that of a diverged run, has no record."""
    losses = [dict(zip(each.steps, each.losses[seed], strict=True)) for seed in seeds]
    return np.array([[of_seed.get(step, math.nan) for step in steps] for of_seed in losses], float)
