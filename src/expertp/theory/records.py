"""The records that `expertp theory` writes as JSON, and reads back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from expertp.spec import Spec
from expertp.theory import sizing
from expertp.theory.compare import Comparison
from expertp.theory.finite import Size
from expertp.theory.sizing import ErrorLaw
from expertp.theory.spec import TheorySpec
from expertp.theory.trajectory import Trajectory

Floats = tuple[float, ...]
AnyRecord = TypeVar("AnyRecord", bound="Record")
AnyNetworks = TypeVar("AnyNetworks", bound="NetworkRecord")


class Record(Spec):
    """Base of the records."""

    @classmethod
    def from_dict(cls: type[AnyRecord], values: Mapping[str, Any]) -> AnyRecord:
        """Return the record; raises ValueError if a field is missing or has another type."""
        return cls.model_validate(values)


class LimitRecord(Record):
    """The limit: loss [T], outputs f [P, T] and Monte-Carlo error, None with a single replicate."""

    loss: Floats
    f: tuple[Floats, ...]
    mc_error: float | None

    @classmethod
    def of(cls, limit: Trajectory) -> "LimitRecord":
        """Record a solved limit."""
        mc_error = None if math.isnan(limit.mc_error) else limit.mc_error
        return cls(loss=limit.loss.tolist(), f=limit.f.tolist(), mc_error=mc_error)


class SolveRecord(Record):
    """solve.json: a problem and the fields of its `LimitRecord`."""

    problem: TheorySpec
    loss: Floats
    f: tuple[Floats, ...]
    mc_error: float | None

    @classmethod
    def of(cls, problem: TheorySpec, limit: Trajectory) -> "SolveRecord":
        """Record a problem and its solved limit."""
        return cls(problem=problem, **dict(LimitRecord.of(limit)))


class NetworkRecord(Record):
    """Networks of one size: mean and standard deviation over seeds of the loss [T]; None with a single seed."""

    N: int
    E: int
    n_hid: int
    seeds: int
    loss: Floats
    loss_sd: Floats | None

    @property
    def size(self) -> Size:
        """Size of the networks."""
        return Size(self.N, self.E, self.n_hid)

    @classmethod
    def of(cls: type[AnyNetworks], size: Size, networks: Trajectory, **more: Any) -> AnyNetworks:
        """Record the trajectory of trained networks; `more` are the fields of a subclass."""
        each = networks.losses_each
        sd = each.std(0, ddof=1).tolist() if len(each) > 1 else None
        return cls(**asdict(size), seeds=len(each), loss=each.mean(0).tolist(), loss_sd=sd, **more)


class ComparedRecord(NetworkRecord):
    """Networks of one size, with the distance of f to the limit: of single networks (rms) and of their mean."""

    error: float
    error_of_mean: float


class ApproachRecord(Record):
    """The error along one dimension of the networks, with the exponent of its power law."""

    dimension: str
    values: tuple[int, ...]
    errors: Floats
    slope: float


class SimulationRecord(Record):
    """simulate.json."""

    problem: TheorySpec
    networks: tuple[NetworkRecord, ...]


class ComparisonRecord(Record):
    """compare.json."""

    problem: TheorySpec
    theory: LimitRecord
    networks: tuple[ComparedRecord, ...]
    approaches: tuple[ApproachRecord, ...]

    @classmethod
    def of(cls, problem: TheorySpec, found: Comparison) -> "ComparisonRecord":
        """Record a comparison."""
        networks = tuple(
            ComparedRecord.of(size, each, error=found.error(size), error_of_mean=found.error_of_mean(size))
            for size, each in found.networks.items()
        )
        approaches = tuple(ApproachRecord.model_validate(each, from_attributes=True) for each in found.approaches())
        return cls(problem=problem, theory=LimitRecord.of(found.theory), networks=networks, approaches=approaches)


class DeepSize(Record):
    """Size and depth of a network."""

    N: int
    E: int
    n_hid: int
    L: int

    def __str__(self) -> str:
        return f"{Size(self.N, self.E, self.n_hid)}, L {self.L}"


class AnswerRecord(Record):
    """The sizes at which a loss curve is within a distance of the limit.

    Args:
        within: the distance, relative to the limit.
        smallest: the size and depth with the fewest weights; None if no size up to 65536 suffices.
        alone: where each dimension's own part of the error is half of `within`, all others infinite.
    """

    within: float
    smallest: DeepSize | None
    alone: dict[str, float]

    @classmethod
    def of(cls, law: ErrorLaw, within: float) -> "AnswerRecord":
        """Record what an error law says about one distance."""
        found = law.smallest(within)
        smallest = found and DeepSize(**asdict(found[0]), L=found[1])
        return cls(within=within, smallest=smallest, alone=law.alone(within))


class HeldOutRecord(DeepSize):
    """Predicted and measured error of a size that the law was not fitted to."""

    predicted: float
    measured: float


class SizingRecord(Record):
    """size.json."""

    problem: TheorySpec
    answers: tuple[AnswerRecord, ...]
    held_out: HeldOutRecord

    @classmethod
    def of(cls, problem: TheorySpec, law: ErrorLaw, bounds: Sequence[float], measured: float) -> "SizingRecord":
        """Record what an error law says about each bound, and its prediction for the held-out size at depth 2 L."""
        size, L = sizing.HELD_OUT, 2 * problem.L
        held_out = HeldOutRecord(**asdict(size), L=L, predicted=law.error(size, L), measured=measured)
        answers = tuple(AnswerRecord.of(law, bound) for bound in bounds)
        return cls(problem=problem, answers=answers, held_out=held_out)
