"""Does the base's optimum hold along an axis? Shared by the findings about transfer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from expertp.analysis.transfer import judge
from expertp.analysis.verdict import Conclusion, Verdict
from expertp.figures import curves
from expertp.figures.labels import HP_SHORT
from expertp.figures.save import Drawing, render
from expertp.paper.finding import Criteria, Outcome, Tables
from expertp.study.table import StudyTable
from expertp.util.text import plural

# What the conclusion on one curve means for the claim that the optimum transfers; any other decides nothing.
TRANSFERS: Mapping[str | None, bool] = {"TRANSFERS": True, "FAILS": False}
# Octaves between best values of a grid that count as the same; the paper's grids have whole octaves.
SAME = 0.5
CRITERIA = Criteria(
    paper=f"The best value of the grid is the same at every size, to {SAME:g} octaves.",
    ours="On every curve, what zero-shot costs lies within the study's tolerance (TRANSFERS), beyond noise.",
)
# Number of reasons that are quoted.
QUOTED = 2


def decide_transfer(tables: Tables, beside: Collection[str] = ()) -> Outcome:
    """Draw the loss curves of all studies, and judge the claim that every optimum transfers along every axis.

    Args:
        tables: the tables of all studies.
        beside: names of studies that are shown, but not part of the claim.
    """
    judged = {name: judge(table) for name, table in tables.items()}
    found = {name: each.axes for name, each in judged.items()}
    drawings = tuple(draw_curves(table, found[name]) for name, table in tables.items())
    outcome = transfer_outcome(found, drawings, beside=beside)
    moves = [f"{each.horizon:+.2f} ({name})" for name, each in judged.items() if each.horizon.is_known]
    if not moves:
        return outcome
    by_horizon = f"Per doubling of steps, the base's optimal learning rate moves by {', '.join(moves)} octaves."
    return replace(outcome, why=f"{outcome.why} {by_horizon}")


def draw_curves(table: StudyTable, verdicts: Sequence[Verdict]) -> Drawing:
    """Draw the loss curves of a study with their optima."""
    return render(table.study.name, curves.draw, curves.data(table, verdicts))


def coincides(verdict: Verdict) -> bool | None:
    """Return whether the best values of the grid are the same at all sizes; None where the base has no curve."""
    if any(each.cost.value == math.inf for each in verdict.costs):  # zero-shot runs diverge
        return False
    base, best = verdict.base_fit, [fit.curve.best_value for fit in verdict.fits.values()]
    return None if base is None else all(is_same(value, base.curve.best_value) for value in best)


def is_same(one: float, other: float) -> bool:
    """Return whether two values of a grid, log2, count as the same.

    >>> is_same(-7.5, -7.0), is_same(-8.0, -7.0)
    (True, False)
    """
    return abs(one - other) <= SAME + 1e-9


def transfer_outcome(
    found: Mapping[str, Sequence[Verdict]],
    drawings: tuple[Drawing, ...],
    prefix: str = "",
    beside: Collection[str] = (),
) -> Outcome:
    """Return the outcome of verdicts, one per loss curve.

    Args:
        found: the verdicts by study.
        drawings: the figures.
        prefix: begins the number.
        beside: names of studies that are not part of the claim.
    """
    verdicts = [each for name, of_study in found.items() if name not in beside for each in of_study]
    number = f"cost of zero-shot: {describe_cost(verdicts[0])}"
    if len(verdicts) > 1:
        known = [each for each in verdicts if each.worst is not None]
        worst = max(known, key=lambda each: each.cost.value / each.worst.tolerance if each.worst else 0.0, default=None)
        number = _counted(verdicts) + (
            f"; largest cost of zero-shot beside its tolerance: {describe_cost(worst)}" if worst else ""
        )
    failed = [each for each in verdicts if each.conclusion == "FAILS"]
    shown = failed or [each for each in verdicts if each.conclusion != "TRANSFERS"]
    why = " ".join(f"{each.axis}, {HP_SHORT[each.hp]}: {each.reason}." for each in shown[:QUOTED])
    if len(shown) > QUOTED:
        why += f" The table lists {len(shown) - QUOTED} more."
    why = why or "Zero-shot costs less than its tolerance on every curve."
    others = [f"{name} {_counted(found[name])}" for name in beside]
    return Outcome(
        parts=[TRANSFERS.get(each.conclusion) for each in verdicts],
        paper_parts=[coincides(each) for each in verdicts],
        number=f"{prefix}{number}",
        why=f"{why} Not part of the claim: {'; '.join(others)}." if others else why,
        drawings=drawings,
        table=_table(found),
    )


def _counted(verdicts: Sequence[Verdict]) -> str:
    """Return the number of curves, and of every conclusion."""
    counts = Counter[str | None](each.conclusion for each in verdicts)
    listed = ", ".join(f"{counts[each]} {each}" for each in get_args(Conclusion) if counts[each])
    return f"{plural(len(verdicts), 'curve')}: {listed or 'not judged'}"


def describe_cost(verdict: Verdict) -> str:
    """Return the hyperparameter, the axis, and the cost of zero-shot with its interval and tolerance."""
    cost = f"{verdict.cost:.4f} nats (tolerance {verdict.worst.tolerance:.4f})" if verdict.worst else "unknown"
    return f"{HP_SHORT[verdict.hp]} along {verdict.axis}, {cost}"


def describe_drift(verdict: Verdict) -> str:
    """Return the hyperparameter, the axis, and the drift of the optimum with its interval."""
    drift = f"{verdict.drift:+.2f} octaves per doubling" if verdict.drift.is_known else "unknown"
    return f"{HP_SHORT[verdict.hp]} along {verdict.axis}, {drift}"


def _table(found: Mapping[str, Sequence[Verdict]]) -> tuple[tuple[str, ...], ...]:
    head = (
        "study",
        "axis",
        "hyperparameter",
        "verdict",
        "cost of zero-shot (nats)",
        "tolerance",
        "one octave off",
        "drift (octaves per doubling)",
        "control",
    )
    rows = [
        (
            name,
            each.axis,
            HP_SHORT[each.hp],
            each.conclusion or "not judged",
            f"{each.cost:.4f}",
            f"{each.worst.tolerance:.4f}" if each.worst else "-",
            f"{each.worst.sensitivity.value:.3f}" if each.worst else "-",
            f"{each.drift:+.2f}",
            "fails" if each.power == "control fails" else "none" if each.power == "no control" else each.power,
        )
        for name, verdicts in found.items()
        for each in verdicts
    ]
    return head, *rows
