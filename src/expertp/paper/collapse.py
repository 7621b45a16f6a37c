"""Do training curves of larger models lie on the base's early in training? Shared by the findings about it."""

from __future__ import annotations

from expertp.analysis.collapse import FAR_SDS, Collapse
from expertp.figures import collapse
from expertp.figures.save import Drawing, render
from expertp.paper.finding import check_zero_shot_records
from expertp.study.cells import Arm
from expertp.study.table import StudyTable

# Largest allowed |loss - base loss| / base loss until the base has made half of its loss drop.
COLLAPSED = 0.02
MEASURED = "largest relative difference to the base until half of its loss drop"
NOISE = f"{FAR_SDS:g} s.d. of the base's seeds"
MARKS = f"In the figures, {collapse.MARKS}."


def compare_with_base(table: StudyTable, arm: Arm, name: str) -> tuple[Drawing, dict[str, Collapse]]:
    """Draw the training curves of an arm's zero-shot runs under a name, and compare them with the base's, by axis."""
    check_zero_shot_records(table, arm)
    shown = collapse.data(table, arm)
    drawing = render(f"collapse-{name}", collapse.draw, shown)
    return drawing, dict(shown.collapses)


def is_collapsed(found: Collapse) -> bool | None:
    """Return whether all curves lie on the base's; None where they are off, but within the noise of its seeds."""
    far = [each for each in found.deviations if each.max_until_half > COLLAPSED]
    if not far:
        return True
    has_left = any(each.leaves_at is not None and each.leaves_at <= found.half_drop_step for each in far)
    return False if has_left else None


def largest(found: Collapse) -> str:
    """Return the largest relative difference of any size, in words."""
    return f"{100 * found.max_deviation_until_half:.2g}%"
