"""Sections of a report that show runs: a question and a figure that answers it, or a box that says what is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from expertp.figures import arms, balance, bigger, collapse, cost, curves, drift, expert_shape, scaling
from expertp.figures.arms import ArmsData, Gap
from expertp.figures.collapse import CollapseData
from expertp.figures.curves import CurvesData
from expertp.figures.labels import HP_SHORT, LossSummary, axis_title, signed
from expertp.figures.save import Drawable, Drawing, render
from expertp.figures.style import Figure
from expertp.report import commands
from expertp.report.elements import Item, Missing, Note, Picture, Section, Table
from expertp.report.reading import Reading
from expertp.study.cells import Arm
from expertp.study.spec import HPS
from expertp.study.table import ENDED

_Data = TypeVar("_Data", bound=Drawable)
# How to read loss curves over a hyperparameter.
CURVES = (
    "Line: median over seeds. Band: minimum to maximum. Star: fitted optimum of a size. Dotted vertical line: "
    "optimum of the base. Marks above the horizontal line: “2/3” means that 2 of 3 runs diverged at this value, "
    "“2/3s” that 2 of 3 were stopped early. Such a value has no median. A triangle means that the loss is above the "
    "range shown."
)


class Text(NamedTuple):
    """Texts of a section with one figure; `lead` may have fields to fill in."""

    number: str
    question: str
    lead: str
    title: str
    caption: str
    missing: str


# By anchor, which is also the name of the figure.
TEXTS = {
    "curves": Text(
        "1",
        "Where is the optimum at each size?",
        "Rule set {rules}. The hyperparameters transfer along an axis if the stars of all sizes lie on the dotted "
        "line, the base's optimum.",
        "Loss over learning rate and init std at every size",
        f"Final validation loss over one hyperparameter, one curve per size. {CURVES}",
        "No run of a sweep has ended yet.",
    ),
    "drift": Text(
        "3",
        "How far does the optimum drift?",
        "Optima come from a polynomial fit around the zero-shot value of each curve of section 1. The verdict does not "
        "depend on the drift: a flat curve has an uncertain optimum and costs nothing.",
        "Shift of the optimum from the base's, in octaves",
        "Optimum of each size minus the base's in octaves (factors of two), with its interval. Grey band: half a "
        "step of the learning-rate grid. Arrow: the optimum lies on the edge of the grid and is only a bound.",
        "The optimum of the base or of all other sizes is unknown.",
    ),
    "cost": Text(
        "4",
        "What does zero-shot cost?",
        "The cost of zero-shot is what tuning again at the larger size would gain.",
        "Cost of zero-shot beside its tolerance and the gain from scale",
        "Top: cost of zero-shot at each size, which is its loss minus the fitted minimum of that size, paired by seed, "
        "with its interval. Dotted marks: tolerance. Bottom: the same cost (filled) and what one octave off the "
        "optimum would cost (open) beside the gain from scale (bars), which is the lowest loss of the base minus that "
        "of the size.",
        "No cost is known: it needs the sweeps of the base and of another size.",
    ),
    "bigger": Text(
        "6",
        "Is bigger better?",
        "After the common early phase, a larger model should always have a lower loss than a smaller one.{result}",
        "Training loss of each size minus that of the next smaller one",
        "Training loss of each size minus that of the next smaller one; below zero the larger model is better. "
        "The number after each pair in the legend counts crossings after the dotted line, the step at which the "
        "base has completed half of its loss decrease. Crosses mark them.",
        "No two neighbouring sizes have finished their zero-shot runs.",
    ),
    "balance": Text(
        "7",
        "Are all experts at work?",
        "The load of an expert is the fraction of tokens routed to it. With perfect balance it is κ = {kappa} for "
        "every expert of the base.",
        "Largest deviation of an expert's load, and dead experts, during training",
        "Top: largest |Load − κ| over all experts and layers, mean over seeds. 0 is perfect balance; 1 − κ, the "
        "upper end, is one expert that gets every token. Bottom: share of experts without a token in a step.",
        "No zero-shot run has ended yet.",
    ),
    "scaling": Text(
        "9",
        "How does loss fall with size?",
        "Zero-shot loss over all parameters, over the parameters that are active per token, and over parameters "
        "without embeddings.",
        "Zero-shot loss over the number of parameters, with a power law per axis",
        "Final validation loss, mean over seeds, over the number of parameters. Line: L = A · "
        "parameters^−exponent, fitted per axis. With few sizes, R² says how straight the line is, not whether it "
        "extends to larger sizes.",
        "No axis has three sizes at which the zero-shot runs of every seed have finished.",
    ),
    "expert-shape": Text(
        "10",
        "More experts or larger experts?",
        "Zero-shot loss at equal numbers of expert parameters.",
        "Loss with more experts beside loss with larger experts",
        "Final validation loss over the scale of the experts, median and range over seeds. At the same scale, both "
        "models have the same number of expert parameters, in total and per token.",
        "The axes `experts` and `alpha` need finished zero-shot runs at a common scale.",
    ),
}


@runtime_checkable
class Render(Protocol):
    """Draws a figure, given the `draw` and the data of its module."""

    def __call__(self, name: str, draw: Callable[[Figure, _Data], None], data: _Data) -> Drawing:
        """Return the figure."""


@dataclass(frozen=True)
class Album:
    """Draws the figures of a study and collects them, to be written beside the page."""

    reading: Reading
    render: Render = render
    drawings: list[Drawing] = field(default_factory=list)

    def picture(
        self, name: str, draw: Callable[[Figure, _Data], None], data: _Data, title: str, caption: str, counts: str
    ) -> Picture:
        """Draw a figure with the `draw` of its module."""
        drawing = self.render(name, draw, data)
        self.drawings.append(drawing)
        inline = drawing.inline(title, f"{caption} {counts}.".replace("`", ""))
        return Picture(drawing.name, inline, caption, counts, drawing.csv)

    def missing(self, text: str) -> Missing:
        """Return a box that says what is missing, with the command that trains it."""
        if all(result.status in ENDED for result in self.reading.table.results):
            text += " All runs of this study have ended: add sizes, values or arms to the study file."
        return Missing(text, commands.sweep(self.reading.directory.path))

    def left_out(self, axes: Sequence[str], shown: Sequence[str], why: str) -> str:
        """Return a sentence about axes without data, which a figure does not show; empty if there is none."""
        gone = [axis_title(axis) for axis in axes if axis not in shown]
        if not gone:
            return ""
        return f" Not shown: {', '.join(gone)}. {why} `{commands.sweep(self.reading.directory.path)}` trains more."

    def section(
        self,
        anchor: str,
        draw: Callable[[Figure, _Data], None],
        data: _Data,
        is_known: object,
        counts: str,
        **facts: str,
    ) -> Section:
        """Return a section with one figure, drawn if `is_known`; `facts` are the fields of its lead."""
        text = TEXTS[anchor]
        item: Item = self.missing(text.missing)
        if is_known:
            gone = self.left_out(self.reading.table.axes, getattr(data, "axes", self.reading.table.axes), text.missing)
            item = self.picture(anchor, draw, data, text.title, f"{text.caption}{gone}", counts)
        return Section(anchor, text.question, text.lead.format(**facts), (item,), text.number)


def run_sections(reading: Reading, album: Album) -> list[Section]:
    """Return all sections that show runs."""
    study, table, verdicts = reading.study, reading.table, reading.verdict.axes
    swept, zero_shot = reading.curve_counts(), reading.zero_shot_counts(table.own)
    of_drift, of_cost, of_scaling = drift.data(study, verdicts), cost.data(study, verdicts), scaling.data(table)
    of_balance, of_shape = balance.data(table), expert_shape.data(table)
    compared, result = bigger.data(table, collapse.data(table, table.own)), ""
    if compared.pairs:
        better = sum(pair.crossing.larger_ends_lower for pair in compared.pairs)
        result = f" This is so at the end of training for {better} of {len(compared.pairs)} pairs; "
        result += f"crossings: {compared.count}."
    kappa = str(study.base.kappa)
    loads = album.section("balance", balance.draw, of_balance, of_balance.lines, zero_shot, kappa=kappa)
    if not study.base.is_moe:
        loads = replace(loads, items=(Note("The models of this study are dense; they have no experts."),))
    return [
        curves_section(reading, album),
        arms_section(reading, album),
        album.section("drift", drift.draw, of_drift, of_drift.has_shifts, swept),
        album.section("cost", cost.draw, of_cost, of_cost.points, swept),
        collapse_section(reading, album),
        album.section("bigger", bigger.draw, compared, compared.pairs, zero_shot, result=result),
        loads,
        album.section("scaling", scaling.draw, of_scaling, of_scaling.fits, zero_shot),
        album.section("expert-shape", expert_shape.draw, of_shape, of_shape.is_comparable, zero_shot),
    ]


def headline(reading: Reading, album: Album) -> Picture | None:
    """Return the figure of the first screen: zero-shot losses of the study's own arm and the first other one."""
    _own, *others = reading.table.arms
    shown = [compared for arm in others[:1] if (compared := arms.headline_data(reading.table, arm)).has_losses]
    if not shown:
        return None
    own, other = shown[0].own.name, shown[0].other.name
    title = f"Zero-shot loss of {own} and {other} over scale"
    caption = (
        f"Loss with the base's hyperparameters, carried over by {own} and by {other}: median and range over seeds."
    )
    return album.picture("headline", arms.draw_headline, shown[0], title, caption, reading.zero_shot_counts(others[0]))


def curves_section(reading: Reading, album: Album) -> Section:
    """Section 1: the loss curves of the study's own arm."""
    text, shown = TEXTS["curves"], curves.data(reading.table, reading.verdict.axes)
    item: Item = album.missing(text.missing)
    if shown.has_losses:
        caption = f"{text.caption}{_not_swept(shown)}"
        item = album.picture("curves", curves.draw, shown, text.title, caption, reading.curve_counts())
    lead = text.lead.format(rules=reading.study.hps.rules)
    return Section("curves", text.question, lead, (item,), text.number)


def _not_swept(shown: CurvesData) -> str:
    """Return sentences about panels that are not drawn, and what would fill them; empty if there is none."""
    sentences = ""
    for hp in HPS:
        gone = [each for each in shown.left_out if each.hp == hp]
        waiting = ", ".join(axis_title(each.axis) for each in gone if each.lines)
        unswept = [each.axis for each in gone if not each.lines]
        if waiting:
            sentences += f" No run over {HP_SHORT[hp]} has ended along: {waiting}."
        if unswept and (arm := shown.reference):
            fields = ", ".join(f"`arms.{arm.name}.retune.{axis}`" for axis in unswept)
            sentences += f" {arm.name} is not swept over {HP_SHORT[hp]} where {fields} gives no size."
        elif unswept:
            titles = ", ".join(map(axis_title, unswept))
            sentences += f" The study does not sweep {HP_SHORT[hp]} along: {titles}. To sweep it, add `{hp}` to "
            sentences += "`sweep` of these axes in the study file."
    return sentences


def arms_section(reading: Reading, album: Album) -> Section:
    """Section 2: other arms beside the study's own."""
    _own, *others = reading.table.arms
    items = [item for arm in others for item in _arm(reading, album, arm)]
    if not items:
        text = "The study compares no other arm; add `arms: {sp: {axes: [width]}}` to the study file."
        items = [Missing(text, commands.sweep(reading.directory.path))]
    lead = (
        "Other rule sets or hyperparameters are compared in two ways: zero-shot (the values tuned at the base, carried "
        "over) and re-tuned (learning rate and init std swept again at that size). Re-tuned is the best point of a "
        "sweep, which favours it slightly."
    )
    return Section("arms", "What do other rules do?", lead, tuple(items), "2")


def _arm(reading: Reading, album: Album, arm: Arm) -> list[Item]:
    own, items = reading.table.own.name, list[Item]()
    swept = curves.arm_data(reading.table, arm, reading.verdict.axes)
    if swept and swept.has_losses:
        title = f"Loss curves of {own} and {arm.name} on shared axes"
        caption = (
            f"Final validation loss of {own} (left) and {arm.name} (right) over one hyperparameter. {CURVES} "
            f"Dashed horizontal line: lowest loss of {arm.name} at any size and value.{_not_swept(swept)}"
        )
        counts = f"{arm.name}: {reading.curve_counts(arm)}"
        items.append(album.picture(f"curves-{arm.name}", curves.draw, swept, title, caption, counts))
    compared = arms.data(reading.table, arm)
    if not compared.has_losses:
        return [*items, album.missing(f"No size has losses of both {own} and {arm.name} yet.")]
    title = f"{own} beside {arm.name}, zero-shot and re-tuned, with signed gaps"
    caption = (
        "Top: final validation loss over scale, median and range over seeds. Bottom: gap, the loss of "
        f"{arm.name} minus that of {own}, paired by seed, mean and range."
    )
    ours, theirs = (reading.zero_shot_counts(each) for each in (reading.table.own, arm))
    counts = f"{own}: {ours}; {arm.name} zero-shot: {theirs}"
    return [*items, album.picture(f"arm-{arm.name}", arms.draw, compared, title, caption, counts), _gap_table(compared)]


def _gap_table(compared: ArmsData) -> Table:
    own, other = compared.own.name, compared.other.name
    rows = [
        (
            axis_title(each.axis),
            each.label,
            _loss(each.ours),
            _loss(each.zero_shot),
            _gap(each.zero_shot_gap),
            _loss(each.retuned) if each.retuned else each.retuned_at or "not swept",
            _gap(each.retuned_gap),
        )
        for each in compared.sizes
    ]
    return Table(
        f"Median losses, and gaps (loss of {other} minus {own}) in nats with their range over seeds. Positive: {own} "
        "has the lower loss.",
        ("axis", "size", own, f"{other} zero-shot", "gap", f"{other} re-tuned", "gap"),
        tuple(rows),
        numeric=5,
    )


def _loss(found: LossSummary) -> str:
    if found.diverged:
        return f"{found.of} diverged"
    return "–" if found.median is None else f"{found.median:.4f} (n = {found.n})"


def _gap(gap: Gap | None) -> str:
    return "–" if gap is None else f"{signed(gap.mean, 4)} [{signed(gap.low, 4)}, {signed(gap.high, 4)}]"


def collapse_section(reading: Reading, album: Album) -> Section:
    """Section 5: training curves of all sizes."""
    items: list[Item] = []
    for arm in reading.table.arms:
        shown = collapse.data(reading.table, arm)
        if not shown.collapses:
            items.append(
                album.missing(f"{arm.name}: the zero-shot runs of the base and of another size have not ended.")
            )
            continue
        name = "collapse" if arm == reading.table.own else f"collapse-{arm.name}"
        title = f"Training curves of all sizes under {arm.name}, and their difference from the base"
        caption = (
            f"Zero-shot runs of {arm.name}. Top: smoothed training loss. Bottom: relative difference from the "
            f"base, paired by seed; {collapse.MARKS}; {_largest_difference(shown)}."
        ) + album.left_out(
            reading.table.axes_of(arm), shown.axes, "The zero-shot runs of the base or of all other sizes are missing."
        )
        items.append(album.picture(name, collapse.draw, shown, title, caption, reading.zero_shot_counts(arm)))
    lead = "Under correct rules, all sizes follow one training curve early on; later, larger models reach a lower loss."
    return Section("collapse", "Do training curves collapse?", lead, tuple(items), "5")


def _largest_difference(shown: CollapseData) -> str:
    worst = max(each.max_deviation_until_half for each in shown.collapses.values())
    if not math.isfinite(worst):
        return "a run diverged before that step"
    return f"up to that step the largest difference is {100 * worst:.2g}%"
