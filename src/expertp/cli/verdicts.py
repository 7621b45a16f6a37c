"""How verdicts look on a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from expertp.cli.text import columns
from expertp.wording import with_interval

if TYPE_CHECKING:
    from expertp.analysis.transfer import AxisVerdict, StudyVerdict


def verdict_table(verdict: "StudyVerdict", directory: Path) -> str:
    """Return one row per axis and hyperparameter, and below it the reason of each and what would settle it there."""
    rows = [("axis", "hp", "verdict", "drift per doubling, octaves", "excess loss, nats", "seeds")]
    for each in verdict.axes:
        drift = with_interval(each.drift, each.drift_ci, "+.2f")
        excess = with_interval(each.excess, each.excess_ci, ".4f")
        rows.append((each.axis, each.hp, each.verdict or "not judged", drift, excess, str(each.n_seeds)))
    return "\n".join(
        [columns(rows), "", *(f"{each.axis}, {each.hp}: {_why(each, directory)}" for each in verdict.axes)]
    )


def _why(verdict: "AxisVerdict", directory: Path) -> str:
    return ". Next: ".join([verdict.reason, *(need.told(directory) for need in verdict.needs[:1])])
