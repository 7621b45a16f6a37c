"""Fig. 10, Section 3.2: the negative control. More experts at a fixed number of active ones, so that kappa -> 0."""

from expertp.analysis.curves import curves
from expertp.analysis.stability import STABLE, UNSTABLE, UnstableRuns, total, unstable_by_value
from expertp.analysis.transfer import judge
from expertp.analysis.verdict import Verdict
from expertp.paper.finding import Criteria, Finding, Outcome, PaperStudy, Tables
from expertp.paper.transfer import TRANSFERS, describe_drift, draw_curves
from expertp.study.table import StudyTable

CLAIM = "With a fixed number of active experts (kappa -> 0), the optimum moves, and training becomes less stable."
# Octaves by which the best value of the grid moves, by the paper's criterion.
MOVED = 1.0
CRITERIA = Criteria(
    paper="The best learning rate of the grid moves by an octave or more; or half of the runs of the largest size are "
    "unstable at a learning rate at or above zero-shot at which no run of the base is.",
    ours="Optimum: the study's verdict is FAILS; it does not move if the verdict is TRANSFERS. Stability: at learning "
    "rates at or above zero-shot, significantly more runs of the largest size are unstable than of the base (Fisher's "
    f"exact test, one-sided, 5%); it does not hold if the upper 95% bound of their share is below {STABLE:.0%}. A run "
    f"is unstable if it diverges, or ends {UNSTABLE} nats above the lowest median loss of its size.",
)

STUDY = PaperStudy(
    "fixed-topk",
    cpu={
        "axes": {"fixed_topk": [8, 32, 128]},
        "lr_octaves": [-1, -0.5, 0, 0.5, 1, 2, 3],
        "seeds": [0, 1, 2, 3],
    },
    paper={"axes": {"fixed_topk": [4, 16, 32, 100]}},
    both={"grids": {"log2_init_std": None}, "allow_kappa_change": True},
)


def decide(tables: Tables) -> Outcome:
    """Judge whether the optimum moves, and whether training becomes less stable."""
    table = tables[STUDY.name]
    (verdict,) = judge(table).axes
    base, largest = _unstable(table, verdict)
    of_base, of_largest = total(base.values()), total(largest.values())
    transfers, is_less_stable = TRANSFERS.get(verdict.conclusion), of_largest.are_more_than(of_base)
    optimum = {None: "is open", True: "does not move", False: "moves"}[transfers]
    stability = {None: "open", True: "shown", False: "not shown"}[is_less_stable]
    half_unstable = [
        value for value, each in largest.items() if 2 * each.unstable >= each.runs and not base[value].unstable
    ]
    return Outcome(
        parts=[None if transfers is None else not transfers, is_less_stable],
        paper_parts=[_moves(table, verdict) or bool(half_unstable)],
        number=f"drift of the optimum: {describe_drift(verdict)}; unstable runs at or above the learning rate of "
        f"zero-shot: {of_largest} at the largest size, {of_base} at the base",
        why=f"The optimum {optimum}: {verdict.reason}. Lower stability is {stability}.",
        drawings=(draw_curves(table, [verdict]),),
    )


def _unstable(table: StudyTable, verdict: Verdict) -> tuple[dict[float, UnstableRuns], dict[float, UnstableRuns]]:
    """Return the unstable runs of base and largest size by learning rate, at or above that of zero-shot."""
    swept = curves(table, verdict.axis, table.own, verdict.hp)
    base = next(each for each in swept if each.size.is_base)
    of_base, of_largest = (
        {value: each for value, each in unstable_by_value(found).items() if value >= found.centre}
        for found in (base, swept[-1])
    )
    return of_base, of_largest


def _moves(table: StudyTable, verdict: Verdict) -> bool:
    """Return whether the best learning rate of the grid is another one at any size."""
    best = {each.size: each.best_value for each in curves(table, verdict.axis, table.own, verdict.hp)}
    at_base = best[table.base(verdict.axis)]
    return any(abs(value - at_base) >= MOVED for value in best.values())


FINDING = Finding("fixed-topk", "Fig. 10, Section 3.2", CLAIM, CRITERIA, (STUDY,), decide)
