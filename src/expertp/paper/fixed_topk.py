"""Fig. 10, Section 3.2: the negative control. More experts at a fixed number of active ones, so that kappa -> 0.

Criterion: the study's verdict is FAILS; or training loses its stability: at a learning rate at or above the base's,
half of a size's runs fail and no run of the base does. A run fails if it diverges, or ends 0.5 nats above the best loss
of its size.
"""

import math

from expertp.analysis.curves import Curve, curves
from expertp.analysis.transfer import judge
from expertp.analysis.verdict import Verdict
from expertp.paper.finding import Finding, Outcome, PaperStudy, Tables
from expertp.paper.transfer import describe_drift, draw_curves
from expertp.study.table import StudyTable

CLAIM = "With a fixed number of active experts (kappa -> 0), the optimum moves, or training becomes unstable."

# Nats above the best median loss of its size from which on a run has failed.
FAILED = 0.5

STUDY = PaperStudy(
    "fixed-topk",
    cpu={"axes": {"fixed_topk": [4, 16, 64]}},
    paper={"axes": {"fixed_topk": [4, 16, 32, 100]}},
    both={"grids": {"log2_init_std": None}, "allow_kappa_change": True},
)


def decide(tables: Tables) -> Outcome:
    """Judge whether the optimum moves or training becomes unstable."""
    table = tables[STUDY.name]
    (verdict,) = judge(table).axes
    number, lost = f"drift of the optimum: {describe_drift(verdict)}", _lost_stability(table, verdict)
    is_shown, why = None, f"{verdict.axis}: {verdict.reason}."
    if verdict.conclusion == "FAILS":
        is_shown, why = True, f"No transfer: {verdict.reason}."
    elif lost:
        is_shown, number = True, f"{number}; {lost}"
        failing = f"A run fails if it diverges, or ends {FAILED} nats above the best loss of its size"
        unstable = f"Training becomes unstable: {lost}. {failing}; no run of the base fails there."
        why = f"{unstable} Optimum: {verdict.reason}."
    elif verdict.conclusion == "TRANSFERS":
        is_shown, why = False, f"The optimum transfers: {verdict.reason}."
    return Outcome([is_shown], number, why, (draw_curves(table, [verdict]),))


def _lost_stability(table: StudyTable, verdict: Verdict) -> str:
    """Return where half of a size's runs fail and none of the base does; empty where training stays stable."""
    swept = curves(table, verdict.axis, table.own, verdict.hp)
    of_base = next(_failed(each) for each in swept if each.size.is_base)
    found = []
    for each in swept:
        half = each.n_seeds / 2
        lost = {value: n for value, n in _failed(each).items() if n >= half and not of_base[value]}
        if lost:
            rate = f"{2 ** (min(lost) - each.centre):g} times its learning rate"
            where = f"at {each.size.scale:g} times the base and {rate}"
            found.append(f"{where}, {lost[min(lost)]} of {each.n_seeds} seeds fail")
    return "; ".join(found)


def _failed(curve: Curve) -> dict[float, int]:
    """Return the number of failed runs at each value from the base's on."""
    best = curve.medians[curve.best_place]
    return {
        value: sum(loss == math.inf or loss > best + FAILED for loss in losses)
        for value, losses in zip(curve.log2_values, curve.losses, strict=True)
        if value >= curve.centre
    }


FINDING = Finding("fixed-topk", "Fig. 10, Section 3.2", CLAIM, (STUDY,), decide)
