"""Verdicts as text for a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from expertp.cli.text import columns
from expertp.report.commands import next_step, refinement

if TYPE_CHECKING:
    from expertp.analysis.transfer import StudyVerdict, Verdict


def verdict_table(verdict: "StudyVerdict", directory: Path) -> str:
    """Return a table with one row per axis and hyperparameter, the reason of each verdict, and what would decide it."""
    rows = [("axis", "hp", "verdict", "drift per doubling, octaves", "excess loss, nats", "seeds")]
    for each in verdict.axes:
        conclusion, seeds = each.conclusion or "not judged", str(each.n_seeds)
        rows.append((each.axis, each.hp, conclusion, f"{each.drift:+.2f}", f"{each.excess:.4f}", seeds))
    lines = [columns(rows), "", *(_why(each) for each in verdict.axes)]
    if any(each.remedies for each in verdict.axes):
        from expertp.study.store import read_study

        study = read_study(directory)
        lines += ["", f"to decide what is INCONCLUSIVE: {refinement(study, study.table(), verdict)}".replace("`", "")]
    return "\n".join(lines)


def _why(verdict: "Verdict") -> str:
    steps = [next_step(each, verdict.hp) for each in verdict.remedies[:1]]
    return f"{verdict.axis}, {verdict.hp}: {'. Next: '.join([verdict.reason, *steps])}"
