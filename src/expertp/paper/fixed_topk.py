"""Fig. 10, Section 3.2: the negative control. More experts at a fixed number of active ones, so that kappa -> 0."""

from expertp.analysis.curves import Curve, curves
from expertp.analysis.stability import STABLE, UNSTABLE, common_octaves, unstable_runs, unstable_seeds
from expertp.analysis.transfer import judge
from expertp.analysis.verdict import Verdict
from expertp.paper.finding import Criteria, Finding, Outcome, PaperStudy, Tables
from expertp.paper.transfer import TRANSFERS, describe_drift, draw_curves
from expertp.study.table import StudyTable

CLAIM = "With a fixed number of active experts (kappa -> 0), the optimum moves, and training becomes less stable."
# Octaves by which the best value of the grid moves, by the paper's criterion.
MOVED = 1.0
CRITERIA = Criteria(
    paper="The best learning rate of the grid moves by an octave or more; and half of the runs of the largest size are "
    "unstable at a learning rate at or above zero-shot at which no run of the base is. The first part is open while a "
    "best learning rate is an end of its grid.",
    ours="Optimum: the study's verdict is FAILS; it does not move if the verdict is TRANSFERS. Stability: "
    "significantly more seeds of the largest size than of the base have an unstable run above the best learning rate "
    "of their size, up to as many octaves above it as both grids cover (Fisher's exact test, one-sided, 5%); it does "
    f"not hold if the upper 95% bound of their share is below {STABLE:.0%}. A run is unstable if it diverges, or ends "
    f"{UNSTABLE} nats above the lowest median loss of its size.",
)

STUDY = PaperStudy(
    "fixed-topk",
    cpu={
        "axes": {"fixed_topk": {"sizes": [8, 32, 128], "sweep_at": [128]}},
        "lr_octaves": [-2, -1.5, -1, -0.5, 0, 0.5, 1, 2, 3],
        "seeds": [0, 1, 2, 3, 4, 5, 6, 7],
    },
    paper={"axes": {"fixed_topk": [4, 16, 32, 100]}},
    both={"grids": {"log2_init_std": None}, "allow_kappa_change": True},
)


def decide(tables: Tables) -> Outcome:
    """Judge whether the optimum moves, and whether training becomes less stable."""
    table = tables[STUDY.name]
    (verdict,) = judge(table).axes
    swept = curves(table, verdict.axis, table.own, verdict.hp)
    base, largest = next(each for each in swept if each.size.is_base), swept[-1]
    octaves = common_octaves([base, largest])
    of_base, of_largest = (unstable_seeds(each, octaves) for each in (base, largest))
    transfers, is_less_stable = TRANSFERS.get(verdict.conclusion), of_largest.are_more_than(of_base)
    optimum = {None: "is open", True: "does not move", False: "moves"}[transfers]
    stability = {None: "open", True: "shown", False: "not shown"}[is_less_stable]
    return Outcome(
        parts=[None if transfers is None else not transfers, is_less_stable],
        paper_parts=[_moves(table, verdict), _loses_runs(base, largest)],
        number=f"drift of the optimum: {describe_drift(verdict)}; seeds with an unstable run up to {octaves:g} octaves "
        f"above the best learning rate: {of_largest} at the largest size, {of_base} at the base",
        why=f"The optimum {optimum}: {verdict.reason}. Lower stability is {stability}.",
        drawings=(draw_curves(table, [verdict]),),
    )


def _loses_runs(base: Curve, largest: Curve) -> bool:
    """Return whether half of the largest size's runs are unstable at or above zero-shot where none of the base's is."""
    of_base, of_largest = unstable_runs(base), unstable_runs(largest)
    return any(
        2 * runs.count(True) >= len(runs) - runs.count(None) > 0 and not any(of_base[value])
        for value, runs in of_largest.items()
        if value >= base.centre and value in of_base
    )


def _moves(table: StudyTable, verdict: Verdict) -> bool | None:
    """Return whether the best learning rate of the grid is another one at any size; None where one is only a bound."""
    swept = curves(table, verdict.axis, table.own, verdict.hp)
    at_base = next(each.best_value for each in swept if each.size.is_base)
    if any(abs(each.best_value - at_base) >= MOVED for each in swept):
        return True
    return None if any(each.is_best_at_edge for each in swept) else False


FINDING = Finding("fixed-topk", "Fig. 10, Section 3.2", CLAIM, CRITERIA, (STUDY,), decide)
