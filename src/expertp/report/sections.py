"""The sections of a report that show runs: a question each, and a figure that answers it, or what is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from expertp.figures import balance, bigger, collapse, contrast, curves, drift, excess, expert_shape, scaling
from expertp.figures.collapse import CollapseData
from expertp.figures.contrast import ContrastData, Gap
from expertp.figures.labels import Cell, axis_title, signed
from expertp.figures.save import Drawing, render
from expertp.report.reading import Reading
from expertp.report.views import Item, Missing, Note, Picture, Section, Table
from expertp.study import HPS
from expertp.study_store import ENDED


@dataclass(frozen=True)
class Album:
    """Draws figures and keeps them, for the files beside the page."""

    drawings: list[Drawing] = field(default_factory=list)

    def picture(self, name: str, module: ModuleType, data: Any, title: str, caption: str, counts: str) -> Picture:
        """Draw what `module.draw` makes of `data`."""
        drawing = render(name, module.draw, data)
        self.drawings.append(drawing)
        described = f"{caption} {counts}."
        return Picture(drawing.name, drawing.inline(title, described), caption, counts, drawing.csv)


Maker = Callable[[Reading, Album], Section]


def sections(reading: Reading, album: Album) -> list[Section]:
    """Return all sections that show runs, in the order of the page."""
    makers: Sequence[Maker] = (
        _curves,
        _contrasts,
        _drift,
        _excess,
        _collapse,
        _bigger,
        _balance,
    )
    return [make(reading, album) for make in makers]


def later_sections(reading: Reading, album: Album) -> list[Section]:
    """Return the sections after the coordinate check."""
    return [_scaling(reading, album), _expert_shape(reading, album)]


def _missing(reading: Reading, text: str) -> Missing:
    if all(result.status in ENDED for result in reading.results):
        text += " All runs of this study have ended: its file must ask for more sizes, values or rules."
    return Missing(text, reading.command("sweep"))


def _curves(reading: Reading, album: Album) -> Section:
    study = reading.study
    shown = curves.data(reading.table, reading.optima)
    item: Item = _missing(reading, "No run over a grid has ended yet.")
    if shown.has_losses:
        item = album.picture(
            "curves",
            curves,
            shown,
            "Loss over learning rate and init std at every size",
            "Line: median over seeds, band: least to most. Star: fitted optimum of that size; dotted line: the base's "
            "optimum. “2/3” on the frame: so many of the runs diverged there, and the cell has no median. Triangle on "
            "the frame: the loss lies above.",
            _curve_counts(reading),
        )
    return Section(
        "curves",
        "Where is the optimum at each size?",
        f"Rules {study.hps.rules}. Transfer shows as stars on one vertical line: the base's.",
        (item,),
        "1",
    )


def _curve_counts(reading: Reading, rules: str | None = None) -> str:
    study, rules = reading.study, rules or reading.study.hps.rules
    runs = [
        run
        for axis in study.axis_names
        for scale, model in study.models(axis).items()
        for hp in HPS
        if reading.table.curve(axis, scale, rules, hp)
        for cell in study.curve(axis, model, rules, hp)
        for run in cell
    ]
    return reading.seeds_and_counts(runs, "point")


def _contrasts(reading: Reading, album: Album) -> Section:
    study = reading.study
    items: list[Item] = []
    for rules in study.contrasts:
        items += _contrast(reading, album, rules)
    if not items:
        items = [
            Missing(
                "The study has no contrast; add `contrasts: {sp: {axes: [width]}}` to its file.",
                reading.command("sweep"),
            )
        ]
    return Section(
        "contrasts",
        "What do other rules do?",
        "Compared in two ways: with the base's values copied (zero-shot), and with lr and init swept at that very size "
        "(re-tuned). Gaps are signed: positive where the transferred model has the lower loss. Re-tuned takes the best "
        "of a grid, and what is best by chance flatters it a little.",
        tuple(items),
        "2",
    )


def _contrast(reading: Reading, album: Album, rules: str) -> list[Item]:
    ours = reading.study.hps.rules
    items: list[Item] = []
    swept = curves.contrast_data(reading.table, rules, reading.optima)
    if swept and swept.has_losses:
        items.append(
            album.picture(
                f"curves-{rules}",
                curves,
                swept,
                f"Loss curves of {ours} and {rules} on shared axes",
                f"Left {ours}, right {rules}, on shared axes. Dashed: the best loss of {rules} at any size and value; "
                "dotted: each rule set's own base optimum.",
                f"{rules}: {_curve_counts(reading, rules)}",
            )
        )
    compared = contrast.data(reading.table, rules)
    if not compared.has_losses:
        return [*items, _missing(reading, f"No loss of both {ours} and {rules} yet.")]
    items.append(
        album.picture(
            f"contrast-{rules}",
            contrast,
            compared,
            f"{ours} beside {rules}, zero-shot and re-tuned, with signed gaps",
            "Above: losses, median with least to most over seeds. Below: loss of "
            f"{rules} minus {ours}, mean with least to most over seeds that both have.",
            f"{ours} {reading.zero_shot_counts(ours)}; {rules} zero-shot {reading.zero_shot_counts(rules)}",
        )
    )
    items.append(_gap_table(compared))
    return items


def _gap_table(compared: ContrastData) -> Table:
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
        f"Loss of {compared.rules} minus {compared.ours}, in nats; positive: {compared.ours} is lower. Brackets: least "
        "and most over seeds.",
        ("axis", "size", compared.ours, f"{compared.rules} copied", "gap", f"{compared.rules} re-tuned", "gap"),
        tuple(rows),
        numeric=5,
    )


def _loss(found: Cell) -> str:
    if found.diverged:
        return f"{found.of} diverged"
    return "–" if found.median is None else f"{found.median:.4f} (n {found.n})"


def _gap(gap: Gap | None) -> str:
    return "–" if gap is None else signed(gap.mean, 4) + f" [{signed(gap.low, 4)}, {signed(gap.high, 4)}]"


def _drift(reading: Reading, album: Album) -> Section:
    shown = drift.data(reading.study, reading.verdict.axes)
    item: Item = _missing(reading, "The optimum is known at fewer than two sizes, or not at the base.")
    if shown.has_shifts:
        item = album.picture(
            "drift",
            drift,
            shown,
            "Shift of the optimum against the base, in octaves",
            "Optimum of each size minus the base's, with its 95% interval. Grey band: half a step of the grid. Dotted: "
            "what the study allows. Arrow: the optimum lies on the grid's edge, and is a bound.",
            _curve_counts(reading),
        )
    return Section(
        "drift",
        "How far does the optimum drift?",
        "From a log-quadratic fit round each minimum, its noise pooled over cells.",
        (item,),
        "3",
    )


def _excess(reading: Reading, album: Album) -> Section:
    shown = excess.data(reading.table, reading.verdict.axes)
    item: Item = _missing(reading, "No size beside the base has both its grid and its zero-shot run.")
    if shown.points:
        item = album.picture(
            "excess",
            excess,
            shown,
            "Zero-shot excess loss against seed noise and against the gain from scale",
            "Above: loss at the base's optimum minus the fitted best of that size. Below: the same beside what the "
            "size gains over the base.",
            _curve_counts(reading),
        )
    return Section(
        "excess", "What does zero-shot cost?", "Loss that tuning at the large size would win back.", (item,), "4"
    )


def _collapse(reading: Reading, album: Album) -> Section:
    study = reading.study
    items: list[Item] = []
    for rules in (study.hps.rules, *study.contrasts):
        shown = collapse.data(study, rules, reading.records)
        if not shown.has_curves:
            items.append(_missing(reading, f"{rules}: the base and another size have not both ended a zero-shot run."))
            continue
        name = "collapse" if rules == study.hps.rules else f"collapse-{rules}"
        items.append(
            album.picture(
                name,
                collapse,
                shown,
                f"Training curves of all sizes under {rules}, and their difference to the base",
                f"{rules}, zero-shot. Above: smoothed training loss. Below: relative difference to the base, seed by "
                f"seed; {collapse.MARKS}; {_largest_difference(shown)}.",
                reading.zero_shot_counts(rules),
            )
        )
    return Section(
        "collapse",
        "Do training curves collapse?",
        "Right rules make early training the same at every size; later the larger model is lower.",
        tuple(items),
        "5",
    )


def _largest_difference(shown: CollapseData) -> str:
    worst = max(each.collapse.max_deviation_until_half for each in shown.axes if each.collapse)
    if not math.isfinite(worst):
        return "before that a run has diverged"
    return f"up to there the largest difference is {100 * worst:.2g}%"


def _bigger(reading: Reading, album: Album) -> Section:
    study = reading.study
    shown = bigger.data(study, collapse.data(study, study.hps.rules, reading.records), reading.records)
    item: Item = _missing(reading, "No two neighbouring sizes have ended their zero-shot runs.")
    lead = "After the collapse a larger model should never be above a smaller one."
    if shown.pairs:
        item = album.picture(
            "bigger",
            bigger,
            shown,
            "Loss of each size minus the next smaller one",
            "Below zero the larger model is better. Beside each pair: crossings after the dotted line, where the base "
            "has made half of its way; a cross marks each.",
            reading.zero_shot_counts(study.hps.rules),
        )
        better = sum(pair.crossing.larger_ends_lower for pair in shown.pairs)
        lead += f" {better} of {len(shown.pairs)} pairs end that way, with {shown.count} crossings."
    return Section("bigger", "Is bigger better?", lead, (item,), "6")


def _balance(reading: Reading, album: Album) -> Section:
    shown = balance.data(reading.study, reading.records)
    item: Item = _missing(reading, "No zero-shot run has ended yet.")
    if reading.study.base.ffn == "dense":
        item = Note("The models of this study are dense; they have no experts to balance.")
    elif shown.lines:
        item = album.picture(
            "balance",
            balance,
            shown,
            "Largest deviation of an expert's load, and dead experts, over training",
            "Above: the largest |Load − κ| of any expert of any layer, mean over seeds, on all of its range: 0 is "
            "even, 1 − κ is one expert that takes every token. Below: share of experts without a token in a step.",
            reading.zero_shot_counts(reading.study.hps.rules),
        )
    lead = f"Load is the share of tokens that an expert gets; κ = {reading.study.base.kappa} is even."
    return Section("balance", "Are all experts at work?", lead, (item,), "7")


def _scaling(reading: Reading, album: Album) -> Section:
    shown = scaling.data(reading.table)
    item: Item = _missing(reading, "No axis has three sizes of which every seed has finished its zero-shot run.")
    if shown.fits:
        item = album.picture(
            "scaling",
            scaling,
            shown,
            "Zero-shot loss over parameters, with a power law per axis",
            "Mean over seeds. Line: L = A · parameters^−exponent, fitted per axis. With few sizes R² says how straight "
            "the line is, not that it goes on.",
            reading.zero_shot_counts(reading.study.hps.rules),
        )
    return Section(
        "scaling",
        "How does loss fall with size?",
        "All parameters, those a token meets, and without tables.",
        (item,),
        "9",
    )


def _expert_shape(reading: Reading, album: Album) -> Section:
    shown = expert_shape.data(reading.table)
    item: Item = _missing(
        reading, "The study needs a common scale on the axes `experts` and `alpha`, with its zero-shot runs."
    )
    if shown.is_comparable:
        item = album.picture(
            "expert-shape",
            expert_shape,
            shown,
            "Loss with more experts beside loss with larger experts",
            "Median with least to most over seeds. At one scale both models have as many expert parameters, in all and "
            "per token.",
            reading.zero_shot_counts(reading.study.hps.rules),
        )
    return Section(
        "expert-shape", "More experts or larger experts?", "Zero-shot, at matched expert parameters.", (item,), "10"
    )
