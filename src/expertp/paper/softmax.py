"""Fig. 18, appendix D.3: softmax instead of sigmoid gates."""

from __future__ import annotations

from dataclasses import replace

from expertp.analysis.transfer import judge
from expertp.figures.labels import HP_SHORT
from expertp.paper import transfer_quarter
from expertp.paper.finding import Finding, Outcome, PaperStudy, Tables
from expertp.paper.transfer import CRITERIA, draw_curves, transfer_outcome

CLAIM = "Softmax gates instead of sigmoid gates do not change the transfer."

STUDY = PaperStudy(
    "softmax",
    cpu={"axes": {"width": [64, 256], "experts": [8, 32]}},
    paper={"axes": {"width": [512, 1024], "experts": [4, 16]}},
    both={"base": {"gate": "softmax"}, "grids": {"log2_init_std": None}},
    is_adaptive=True,
)
REFERENCE = transfer_quarter.STUDY


def decide(tables: Tables) -> Outcome:
    """Judge the transfer with softmax gates, and show its drift beside that of sigmoid gates."""
    table = tables[STUDY.name]
    verdicts = judge(table).axes
    reference = {(each.axis, each.hp): each.drift for each in judge(tables[REFERENCE.name]).axes}
    outcome = transfer_outcome({STUDY.name: verdicts}, (draw_curves(table, verdicts),))
    differences = "; ".join(
        f"{each.axis}, {HP_SHORT[each.hp]} {each.drift - reference[each.axis, each.hp]:+.2f}" for each in verdicts
    )
    why = f"{outcome.why} Drift of the optimum minus that of {REFERENCE.name}, octaves per doubling: {differences}."
    return replace(outcome, why=why)


FINDING = Finding("softmax", "Fig. 18, appendix D.3", CLAIM, CRITERIA, (STUDY, REFERENCE), decide)
