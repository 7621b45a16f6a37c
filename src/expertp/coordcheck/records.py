"""coordcheck.json: the stored result of a coordinate check."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from expertp.coordcheck.slopes import CoordinateCheck, Divergence, Slope, SlopeVerdict


@dataclass(frozen=True)
class CheckRecord:
    """The stored result of `expertp coordcheck`.

    Args:
        key: identity of the measurements.
        study: name of the study.
        rules: the rule set or arm that was checked.
        steps: optimizer steps of each run.
        verdict: FAIL when a slope failed or a run diverged.
        diverged: runs that diverged.
        slopes: all slopes with their expected values.
    """

    key: str
    study: str
    rules: str
    steps: int
    verdict: SlopeVerdict
    diverged: tuple[Divergence, ...]
    slopes: tuple[Slope, ...]

    @staticmethod
    def of(check: CoordinateCheck, key: str, study: str, steps: int) -> CheckRecord:
        """Return the record of a check."""
        return CheckRecord(key, study, check.rules, steps, check.verdict, check.diverged, check.slopes)

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of coordcheck.json."""
        return asdict(self)

    @staticmethod
    def from_dict(tree: object) -> CheckRecord:
        """Return the record of a tree; any other tree is a `ValueError`."""
        return TypeAdapter(CheckRecord).validate_python(tree)
