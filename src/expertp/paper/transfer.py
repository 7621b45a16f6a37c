"""Does the base's optimum hold along an axis? Shared by the findings about transfer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from expertp.analysis.transfer import Verdict, judge
from expertp.figures import curves
from expertp.figures.labels import HP_SHORT
from expertp.figures.save import Drawing, render
from expertp.paper.finding import Outcome, Tables
from expertp.study.table import StudyTable

# What the conclusion on one curve means for the claim that the optimum transfers; any other decides nothing.
TRANSFERS: Mapping[str | None, bool] = {"PASS": True, "FAIL": False}
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
    number = f"drift of the optimum: {describe_drift(verdicts[0])}"
    if len(verdicts) > 1:
        counts = Counter(each.conclusion for each in verdicts)
        listed = ", ".join(f"{counts[each]} {each}" for each in ("PASS", "INCONCLUSIVE", "FAIL") if counts[each])
        known = [each for each in verdicts if each.drift.is_known]
        worst = max(known, key=lambda each: abs(each.drift.value), default=None)
        number = f"{len(verdicts)} curves: {listed}" + (
            f"; largest drift of an optimum: {describe_drift(worst)}" if worst else ""
        )
    failed = [each for each in verdicts if each.conclusion == "FAIL"]
    shown = failed or [each for each in verdicts if each.conclusion != "PASS"]
    why = " ".join(f"{each.axis}, {HP_SHORT[each.hp]}: {each.reason}." for each in shown[:QUOTED])
    if len(shown) > QUOTED:
        why += f" The table lists {len(shown) - QUOTED} more."
    return Outcome(
        parts=[TRANSFERS.get(each.conclusion) for each in verdicts],
        number=f"{prefix}{number}",
        why=why or "Every interval lies within its threshold.",
        drawings=(drawing,),
        table=_table(verdicts),
    )


def describe_drift(verdict: Verdict) -> str:
    """Return the hyperparameter, the axis, and the drift of the optimum with its interval."""
    drift = f"{verdict.drift:+.2f} octaves per doubling" if verdict.drift.is_known else "unknown"
    return f"{HP_SHORT[verdict.hp]} along {verdict.axis}, {drift}"


def _table(verdicts: Sequence[Verdict]) -> tuple[tuple[str, ...], ...]:
    head = ("axis", "hyperparameter", "verdict", "drift (octaves per doubling)", "excess loss (nats)")
    rows = [
        (each.axis, HP_SHORT[each.hp], each.conclusion or "not judged", f"{each.drift:+.2f}", f"{each.excess:.4f}")
        for each in verdicts
    ]
    return head, *rows
