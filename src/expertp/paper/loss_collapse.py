"""Fig. 3, Finding 1.2: early in training, curves of larger models lie on the base's.

Criterion: on every axis of the claim, every size stays within 2% of the base's loss until the base has made half of its
loss drop. A larger difference counts against the claim where it also exceeds the noise of the base's seeds.
"""

from expertp.analysis.collapse import Collapse
from expertp.paper import transfer_quarter, transfer_twelfth
from expertp.paper.collapse import COLLAPSED, MARKS, MEASURED, NOISE, compare_with_base, is_collapsed, largest
from expertp.paper.finding import Finding, Outcome, Tables

CLAIM = (
    "With transferred hyperparameters, the training curves of wider models and of models with more or larger experts "
    "lie on the base's early in training."
)

# The axes of the paper's Finding 1.2; other axes are drawn, but not judged.
AXES = ("width", "experts", "alpha")


def decide(tables: Tables) -> Outcome:
    """Compare the training curves of all studies with their bases."""
    drawings = []
    judged: dict[str, Collapse] = {}
    others: dict[str, Collapse] = {}
    for name, table in tables.items():
        drawing, by_axis = compare_with_base(table, table.own, name)
        drawings.append(drawing)
        for axis, found in by_axis.items():
            (judged if axis in AXES else others)[f"{name}, {axis}"] = found
    worst = max(judged, key=lambda place: judged[place].max_deviation_until_half)
    far = {place: found for place, found in judged.items() if found.max_deviation_until_half > COLLAPSED}
    why = f"All {len(judged)} axes stay within {COLLAPSED:.0%}."
    if far:
        listed = ", ".join(f"{place} {largest(found)}" for place, found in far.items())
        why = f"Above {COLLAPSED:.0%}: {listed}. A difference counts where it also exceeds {NOISE}."
    if others:
        listed = ", ".join(f"{place} {largest(found)}" for place, found in others.items())
        why += f" Not part of the claim: {listed}."
    return Outcome(
        parts=[is_collapsed(found) for found in judged.values()],
        number=f"{MEASURED}: {largest(judged[worst])} ({worst})",
        why=f"{why} {MARKS}",
        drawings=tuple(drawings),
    )


FINDING = Finding(
    "loss-collapse", "Fig. 3, Finding 1.2", CLAIM, (transfer_quarter.STUDY, transfer_twelfth.STUDY), decide
)
