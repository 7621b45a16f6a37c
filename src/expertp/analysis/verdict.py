"""Verdicts as values: the cost of zero-shot at each size, the verdict of each axis and arm, and those of a study."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from expertp.analysis.curve_fit import CurveFit, Noise
from expertp.study.cells import Arm, Size
from expertp.study.spec import HP
from expertp.util.statistics import TAIL, UNKNOWN, Estimate, confidence

Conclusion = Literal["TRANSFERS", "FAILS", "UNDECIDED"]
Power = Literal["control fails", "NO POWER", "no control"]


@dataclass(frozen=True)
class SizeCost:
    """What zero-shot costs at one size, nats.

    Args:
        size: the size.
        cost: loss of zero-shot minus the lowest loss; infinite where zero-shot runs diverge. Of an arm that is not
            re-tuned, minus the lowest loss of the study's own arm: negative where the arm is ahead of all its values.
        growth: this cost minus that at the base.
        tolerance: largest cost that the study allows at this size.
        gain: lowest loss of the base minus lowest loss of the size.
        sensitivity: what one octave off the optimum would cost; unknown for an arm that is not re-tuned.
        gap: zero-shot loss of an arm that is not re-tuned minus that of the study's own arm, paired by seed.
        diverged: zero-shot runs that diverge where they are too few to fail, in words; the cost is unknown then.
    """

    size: Size
    cost: Estimate
    growth: Estimate
    tolerance: float
    gain: float
    sensitivity: Estimate = UNKNOWN
    gap: Estimate = UNKNOWN
    diverged: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of one size in verdict.json."""
        return {
            "scale": self.size.scale,
            **_tree("cost", self.cost),
            **_tree("growth", self.growth),
            "tolerance": _or_null(self.tolerance),
            "gain": _or_null(self.gain),
            **_tree("sensitivity", self.sensitivity),
            **_tree("gap", self.gap),
        }

    @property
    def is_within(self) -> bool:
        """Whether the whole interval of the cost lies within the tolerance."""
        return self.cost.high <= self.tolerance

    @property
    def is_beyond(self) -> bool:
        """Whether the whole interval of the growth lies beyond the tolerance."""
        return self.growth.low > self.tolerance

    @property
    def is_explained_by_base(self) -> bool:
        """Whether zero-shot costs more than the tolerance, but about as much at the base itself."""
        return self.cost.low > self.tolerance >= self.growth.value


@dataclass(frozen=True, eq=False, kw_only=True)
class Judgement:
    """Whether what was tuned at the base holds along one axis in one arm.

    Args:
        axis: the axis.
        arm: the arm.
        conclusion: None where the study asks for no verdict (`verdict: null`).
        reason: one sentence with numbers.
        costs: the cost of zero-shot at each size but the base.
        base_cost: what the base's hyperparameters cost at the base itself, nats.
        n_seeds: number of seeds.
        tail: probability that each interval leaves out on each side.
        hp: the hyperparameter; None for an arm that is not re-tuned, whose hyperparameters are judged together.
        drift: octaves of the optimum per doubling of the size, for a joint axis per doubling of each dimension; unknown
            where it cannot be estimated, an end of the interval infinite where an optimum is only a bound.
        power: whether an arm that should fail on this axis does.
    """

    axis: str
    arm: Arm
    conclusion: Conclusion | None = None
    reason: str = "the study asks for no verdict (verdict: null)"
    costs: tuple[SizeCost, ...]
    base_cost: Estimate
    n_seeds: int
    tail: float = TAIL
    hp: HP | None = None
    drift: Estimate = UNKNOWN
    power: Power = "no control"

    @property
    def has_no_power(self) -> bool:
        """Whether the study could not have seen a failure: the control does not fail."""
        return self.power == "NO POWER"

    @property
    def cost_confidence(self) -> str:
        """The confidence of the interval of the cost, as text; empty where it is 95% or the cost is unknown."""
        return confidence(self.tail) if self.tail < TAIL and self.cost.is_known else ""

    @property
    def worst(self) -> SizeCost | None:
        """The size that decides: one that is certainly beyond its tolerance, else the farthest from being within it."""
        rank = lambda each: (each.is_beyond, bool(each.diverged), each.cost.high - each.tolerance)  # noqa: E731
        return max(self.costs, key=rank, default=None)

    @property
    def cost(self) -> Estimate:
        """The cost of zero-shot at the size that decides."""
        return self.worst.cost if self.worst else UNKNOWN

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of one entry of verdict.json; a number that is not finite becomes null."""
        return {
            "axis": self.axis,
            "arm": self.arm.name,
            "verdict": self.conclusion,
            "reason": self.reason,
            "sizes": [each.to_dict() for each in self.costs],
            **_tree("base_cost", self.base_cost),
            "confidence": round(1 - 2 * self.tail, 6),
            "n_seeds": self.n_seeds,
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Verdict(Judgement):
    """Whether one hyperparameter transfers along one axis, from curves at every size.

    Args:
        hp: the hyperparameter.
        fits: the fitted curve of each size.
        noise: noise of a run.
    """

    hp: HP
    fits: Mapping[Size, CurveFit]
    noise: Noise

    @property
    def base_fit(self) -> CurveFit | None:
        """The fitted curve of the base, where it is known."""
        return next((fit for size, fit in self.fits.items() if size.is_base), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of one entry of verdict.json."""
        return {**super().to_dict(), "hp": self.hp, **_tree("drift", self.drift), "power": self.power}


@dataclass(frozen=True, eq=False)
class StudyVerdict:
    """The verdicts of a study.

    Args:
        study: name of the study.
        axes: verdicts of the study's own arm.
        others: verdicts of other arms.
        horizon: octaves by which the base's optimal learning rate moves per doubling of steps.
        diverged: number of diverged runs of all arms.
        stopped: number of runs that an adaptive sweep has stopped early.
        failed: number of failed runs.
        missing: number of runs without a result.
    """

    study: str
    axes: tuple[Verdict, ...]
    others: tuple[Judgement, ...]
    horizon: Estimate
    diverged: int
    stopped: int
    failed: int
    missing: int

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of verdict.json."""
        return {
            "study": self.study,
            "axes": [each.to_dict() for each in self.axes],
            "others": [each.to_dict() for each in self.others],
            **_tree("horizon", self.horizon),
            "diverged": self.diverged,
            "stopped": self.stopped,
            "failed": self.failed,
            "missing": self.missing,
        }


def _or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _tree(name: str, estimate: Estimate) -> dict[str, Any]:
    return {name: _or_null(estimate.value), f"{name}_ci": [_or_null(estimate.low), _or_null(estimate.high)]}
