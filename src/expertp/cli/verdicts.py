"""Verdicts of a study as text for a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from expertp.cli.text import text_table
from expertp.errors import printable
from expertp.report.commands import deciding
from expertp.report.summary import describe_horizon

if TYPE_CHECKING:
    from expertp.analysis.verdict import Judgement, StudyVerdict


def verdict_table(verdict: "StudyVerdict", directory: Path) -> str:
    """Return a table with one row per axis, arm and hyperparameter, the reason of each verdict, and what is next."""
    rows: list[tuple[str, ...]]
    rows = [("axis", "arm", "of", "verdict", "cost of zero-shot, nats", "tolerance", "drift, octaves per doubling")]
    rows += [_row(each) for each in (*verdict.axes, *verdict.others)]
    lines = [text_table(rows), "", *(_why(each) for each in (*verdict.axes, *verdict.others))]
    if horizon := describe_horizon(verdict.horizon):
        lines += ["", horizon]
    if any(each.conclusion == "UNDECIDED" for each in verdict.axes):
        from expertp.study.store import read_study

        study = read_study(directory)
        lines += ["", f"to decide what is UNDECIDED: {deciding(study, study.table(), verdict)}".replace("`", "")]
    return "\n".join(lines)


def _row(each: "Judgement") -> tuple[str, ...]:
    conclusion = each.conclusion or "not judged"
    return (
        each.axis,
        each.arm.name,
        each.hp or "all",
        f"{conclusion}, NO POWER" if each.has_no_power else conclusion,
        f"{each.cost:.4f}" + (f" ({each.cost_confidence})" if each.cost_confidence else ""),
        f"{each.worst.tolerance:.4f}" if each.worst else "-",
        "-" if each.hp is None else f"{each.drift:+.2f}",
    )


def _why(each: "Judgement") -> str:
    place = ", ".join(printable(word) for word in (each.axis, each.arm.name, each.hp or "all hyperparameters"))
    worst, text = each.worst, f"{place}: {each.reason}"
    if worst is not None and worst.sensitivity.is_known:
        text += f"; one octave off the optimum would cost {worst.sensitivity.value:.4f}"
    if each.has_no_power:
        text += "; NO POWER: the control does not fail"
    return text
