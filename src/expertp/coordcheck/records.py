"""coordcheck.json: the stored result of a coordinate check."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from expertp.coordcheck.slopes import CoordinateCheck, Divergence, Slope, SlopeVerdict
from expertp.study.spec import StudySpec
from expertp.util.records import Count


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
        csv_sha256: hash of coordcheck.csv; None in records of earlier versions.
        spec: the study with all overrides, as plain values; None in records of earlier versions.
    """

    key: str
    study: str
    rules: str
    steps: Count
    verdict: SlopeVerdict
    diverged: tuple[Divergence, ...]
    slopes: tuple[Slope, ...]
    csv_sha256: str | None = None
    spec: dict[str, Any] | None = None

    @staticmethod
    def of(check: CoordinateCheck, key: str, study: StudySpec, steps: int, csv_sha256: str) -> CheckRecord:
        """Return the record of a check."""
        found = (check.verdict, check.diverged, check.slopes)
        return CheckRecord(key, study.name, check.rules, steps, *found, csv_sha256, study.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of coordcheck.json."""
        return asdict(self)

    @staticmethod
    def from_dict(tree: object) -> CheckRecord:
        """Return the record of a tree; any other tree is a `ValueError`."""
        return TypeAdapter(CheckRecord).validate_python(tree)
