"""Verdicts as text for a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from expertp.cli.text import columns
from expertp.report.commands import next_step

if TYPE_CHECKING:
    from expertp.analysis.transfer import StudyVerdict, Verdict


def verdict_table(verdict: "StudyVerdict", directory: Path) -> str:
    """Return a table with one row per axis and hyperparameter, and the reason of each verdict with the next step."""
    rows = [("axis", "hp", "verdict", "drift per doubling, octaves", "excess loss, nats", "seeds")]
    for each in verdict.axes:
        conclusion, seeds = each.conclusion or "not judged", str(each.n_seeds)
        rows.append((each.axis, each.hp, conclusion, f"{each.drift:+.2f}", f"{each.excess:.4f}", seeds))
    return "\n".join(
        [columns(rows), "", *(f"{each.axis}, {each.hp}: {_why(each, directory)}" for each in verdict.axes)]
    )


def _why(verdict: "Verdict", directory: Path) -> str:
    steps = [next_step(each, verdict.hp, directory) for each in verdict.remedies[:1]]
    return ". Next: ".join([verdict.reason, *steps])
