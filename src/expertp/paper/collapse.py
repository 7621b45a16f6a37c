"""Do training curves of larger models lie on the base's early in training? Shared by the findings about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from expertp.analysis.collapse import Collapse
from expertp.analysis.seed_curves import SeedCurves, training_losses
from expertp.figures import collapse
from expertp.figures.save import Drawing, render
from expertp.paper.finding import check_zero_shot_records
from expertp.study.cells import Arm, Size
from expertp.study.table import StudyTable

# Largest |loss - base loss| / base loss until the base has made half of its loss drop, by the paper's criterion.
COLLAPSED = 0.02
MARKS = f"In the figures, {collapse.MARKS}."


@dataclass(frozen=True)
class EarlyCurves:
    """Training losses by size along an axis, and their comparison with the base's."""

    losses: Mapping[Size, SeedCurves]
    collapse: Collapse

    @property
    def until(self) -> int:
        """Step at which the base has made half of its loss drop."""
        return self.collapse.half_drop_step

    @property
    def is_collapsed(self) -> bool:
        """Whether all sizes stay close to the base until then, by the paper's criterion."""
        return self.collapse.max_deviation_until_half <= COLLAPSED

    @property
    def largest(self) -> str:
        """The largest relative difference of any size until then, in words."""
        return f"{100 * self.collapse.max_deviation_until_half:.2g}%"


def early_curves(table: StudyTable, arm: Arm, name: str) -> tuple[Drawing, dict[str, EarlyCurves]]:
    """Draw the training curves of an arm's zero-shot runs under a name, and compare them with the base's, by axis."""
    check_zero_shot_records(table, arm)
    shown = collapse.data(table, arm)
    found = {axis: EarlyCurves(losses_by_size(table, axis, arm), each) for axis, each in shown.collapses.items()}
    return render(f"collapse-{name}", collapse.draw, shown), found


def losses_by_size(table: StudyTable, axis: str, arm: Arm) -> dict[Size, SeedCurves]:
    """Return the training losses of an arm's zero-shot runs along an axis."""
    return {size: training_losses(table.zero_shot_records(axis, size, arm)) for size in table.sizes(axis)}
