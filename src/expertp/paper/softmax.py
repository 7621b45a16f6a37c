"""Fig. 18, appendix D.3: softmax instead of sigmoid gates.

Criterion: on every curve, the interval of the difference in drift to transfer_quarter lies within a quarter of an
octave per doubling.
"""

from expertp.analysis.transfer import judge
from expertp.figures.labels import HP_SHORT
from expertp.paper import transfer_quarter
from expertp.paper.finding import Finding, Outcome, PaperStudy, Tables
from expertp.paper.transfer import draw_curves

CLAIM = "Softmax gates instead of sigmoid gates do not change the transfer."

STUDY = PaperStudy(
    "softmax",
    cpu={
        "axes": {"width": [96, 384], "experts": [4, 16]},
        "grids": {"log2_lr": [-10, -9, -8, -7, -6]},
        "seeds": [0, 1, 2, 3, 4, 5, 6, 7],
    },
    paper={"axes": {"width": [512, 1024], "experts": [4, 16]}},
    both={"base": {"gate": "softmax"}, "grids": {"log2_init_std": None}},
)
REFERENCE = transfer_quarter.STUDY
# Octaves per doubling by which the two drifts may differ.
ALLOWED = 0.25


def decide(tables: Tables) -> Outcome:
    """Compare the drift of every optimum with that of the reference."""
    table = tables[STUDY.name]
    verdicts = judge(table).axes
    reference = {(each.axis, each.hp): each.drift for each in judge(tables[REFERENCE.name]).axes}
    head = ("axis", "hyperparameter", f"drift of {STUDY.name}", f"drift of {REFERENCE.name}", "difference")
    labels = [(each.axis, HP_SHORT[each.hp]) for each in verdicts]
    drifts = [(each.drift, reference[each.axis, each.hp]) for each in verdicts]
    differences = [ours - theirs for ours, theirs in drifts]
    rows = [
        (*label, *(f"{each:+.2f}" for each in (*pair, difference)))
        for label, pair, difference in zip(labels, drifts, differences, strict=True)
    ]
    listed = "; ".join(f"{axis}, {hp} {difference}" for axis, hp, *_, difference in rows)
    return Outcome(
        parts=[difference.is_within(ALLOWED) for difference in differences],
        number=f"drift of the optimum minus that of {REFERENCE.name}, octaves per doubling: {listed}",
        why=f"The whole interval of each difference must lie within ±{ALLOWED:g}.",
        drawings=(draw_curves(table, verdicts),),
        table=(head, *rows),
    )


FINDING = Finding("softmax", "Fig. 18, appendix D.3", CLAIM, (STUDY, REFERENCE), decide)
