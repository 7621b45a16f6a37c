"""Does the base's optimum hold along an axis? Shared by the findings about transfer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

from expertp.analysis.transfer import judge
from expertp.analysis.verdict import Conclusion, Verdict
from expertp.figures import curves
from expertp.figures.labels import HP_SHORT
from expertp.figures.save import Drawing, render
from expertp.paper.finding import Outcome, Tables
from expertp.study.table import StudyTable

# What the conclusion on one curve means for the claim that the optimum transfers; any other decides nothing.
TRANSFERS: Mapping[str | None, bool] = {"TRANSFERS": True, "FAILS": False}
# Number of reasons that are quoted.
QUOTED = 2


def decide_transfer(tables: Tables) -> Outcome:
    """Draw the loss curves of the only study, and judge the claim that every optimum transfers along every axis."""
    (table,) = tables.values()
    verdicts = judge(table).axes
    return transfer_outcome(verdicts, draw_curves(table, verdicts))


def draw_curves(table: StudyTable, verdicts: Sequence[Verdict]) -> Drawing:
    """Draw the loss curves of a study with their optima."""
    return render(table.study.name, curves.draw, curves.data(table, verdicts))


def transfer_outcome(verdicts: Sequence[Verdict], drawing: Drawing, prefix: str = "") -> Outcome:
    """Return the outcome of verdicts, one per loss curve; `prefix` begins the number."""
    number = f"cost of zero-shot: {describe_cost(verdicts[0])}"
    if len(verdicts) > 1:
        counts = Counter[str | None](each.conclusion for each in verdicts)
        listed = ", ".join(f"{counts[each]} {each}" for each in get_args(Conclusion) if counts[each])
        known = [each for each in verdicts if each.worst is not None]
        worst = max(known, key=lambda each: each.cost.value / each.worst.tolerance if each.worst else 0.0, default=None)
        number = f"{len(verdicts)} curves: {listed}" + (
            f"; largest cost of zero-shot beside its tolerance: {describe_cost(worst)}" if worst else ""
        )
    failed = [each for each in verdicts if each.conclusion == "FAILS"]
    shown = failed or [each for each in verdicts if each.conclusion != "TRANSFERS"]
    why = " ".join(f"{each.axis}, {HP_SHORT[each.hp]}: {each.reason}." for each in shown[:QUOTED])
    if len(shown) > QUOTED:
        why += f" The table lists {len(shown) - QUOTED} more."
    return Outcome(
        parts=[TRANSFERS.get(each.conclusion) for each in verdicts],
        number=f"{prefix}{number}",
        why=why or "Zero-shot costs less than its tolerance on every curve.",
        drawings=(drawing,),
        table=_table(verdicts),
    )


def describe_cost(verdict: Verdict) -> str:
    """Return the hyperparameter, the axis, and the cost of zero-shot with its interval and tolerance."""
    cost = f"{verdict.cost:.4f} nats (tolerance {verdict.worst.tolerance:.4f})" if verdict.worst else "unknown"
    return f"{HP_SHORT[verdict.hp]} along {verdict.axis}, {cost}"


def describe_drift(verdict: Verdict) -> str:
    """Return the hyperparameter, the axis, and the drift of the optimum with its interval."""
    drift = f"{verdict.drift:+.2f} octaves per doubling" if verdict.drift.is_known else "unknown"
    return f"{HP_SHORT[verdict.hp]} along {verdict.axis}, {drift}"


def _table(verdicts: Sequence[Verdict]) -> tuple[tuple[str, ...], ...]:
    head = (
        "axis",
        "hyperparameter",
        "verdict",
        "cost of zero-shot (nats)",
        "tolerance",
        "one octave off",
        "drift (octaves per doubling)",
    )
    rows = [
        (
            each.axis,
            HP_SHORT[each.hp],
            f"{each.conclusion or 'not judged'}{', NO POWER' if each.power == 'NO POWER' else ''}",
            f"{each.cost:.4f}",
            f"{each.worst.tolerance:.4f}" if each.worst else "-",
            f"{each.worst.sensitivity.value:.3f}" if each.worst else "-",
            f"{each.drift:+.2f}",
        )
        for each in verdicts
    ]
    return head, *rows
