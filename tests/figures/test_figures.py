"""Figures: their numbers are right without a backend, and their drawings are deterministic and of the page's ink."""

import ast
import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from synthetic import write_study

from expertp.analysis.balance import LoadBalance
from expertp.analysis.collapse import Collapse
from expertp.analysis.judging import tail_of_look
from expertp.analysis.transfer import judge
from expertp.figures import arms, balance, collapse, cost, curves, drift, expert_shape, scaling
from expertp.figures.labels import interval_label, summarize, thinned
from expertp.figures.save import BACKGROUND, inline_svg, render, to_csv
from expertp.figures.style import INK, OTHER, OURS, RETUNED, SIZE_COLOURS, size_colour
from expertp.study.cells import expand, unique_runs
from expertp.study.table import Result, StudyTable


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("figures") / "study").table()


@pytest.fixture(scope="module")
def verdict(table):
    return judge(table)


def panel_of(shown, axis, hp):
    return next(each for each in shown.panels if (each.axis, each.hp) == (axis, hp))


def test_a_curve_has_its_optimum_where_the_losses_have_it(table, verdict):
    shown = curves.data(table, verdict.axes)
    assert shown.shape == (2, 2)  # the panels that have data, and no empty ones
    panel = panel_of(shown, "width", "log2_lr")
    assert [line.label for line in panel.lines] == ["32", "64", "128"]
    assert all(line.star.optimum.value == pytest.approx(-7, abs=0.1) for line in panel.lines)
    assert panel.base_optimum == pytest.approx(-7, abs=0.1)
    assert [(each.axis, each.hp) for each in shown.left_out] == [
        ("experts", "log2_init_std"), ("alpha", "log2_init_std"),
    ]  # fmt: skip
    assert all(each.has_losses for each in shown.panels)


def test_diverged_runs_are_counted_and_never_averaged(table):
    shown = curves.data(table, ())
    last = panel_of(shown, "width", "log2_lr").lines[-1].losses[-4]
    assert (last.n, last.diverged, last.median, last.of) == (1, 2, None, "2/3")
    rows = [row for row in shown.rows() if row["diverged"]]
    assert [(row["size"], row["log2_value"], row["diverged"], row["median"]) for row in rows] == [(128, -4, 2, None)]


def test_a_missing_run_is_missing_and_not_zero():
    assert summarize([math.nan, 3.0, 3.2]).missing == 1
    assert summarize([math.nan] * 3).median is None


def test_another_arm_stands_beside_ours_on_shared_axes(table):
    shown = curves.arm_data(table, table.arm("sp"), ())
    assert [(panel.arm.name, panel.hp) for panel in shown.panels] == [
        ("expertp", "log2_lr"),
        ("sp", "log2_lr"),
        ("expertp", "log2_init_std"),
        ("sp", "log2_init_std"),
    ]
    stars = {line.curve.size.model.n_embd: line.star.optimum.value for line in shown.panels[1].lines}
    assert stars[128] - stars[32] == pytest.approx(-2, abs=0.2)
    assert curves.arm_data(table, table.arm("fan_in_down"), ()) is None


def test_gaps_are_signed_and_taken_seed_by_seed(table):
    by_scale = {each.size.scale: each for each in arms.data(table, table.arm("sp")).sizes}
    # The optimum of sp moves by two octaves of lr and one of init, 0.06 2^2 + 0.03; tuning lr wins back most of it.
    assert by_scale[4.0].zero_shot_gap.mean == pytest.approx(0.27, abs=0.01)
    assert 0 < by_scale[4.0].retuned_gap.mean < 0.04
    assert by_scale[4.0].retuned_at == "log2_lr -9"
    assert by_scale[2.0].retuned is None
    assert by_scale[2.0].retuned_gap is None
    assert all(each.zero_shot_gap.n == 3 for each in by_scale.values())


def test_a_gap_where_we_are_worse_is_negative_and_a_diverged_seed_is_no_gap():
    assert arms._gap([3.0, 3.1], [3.2, 3.2]).mean == pytest.approx(-0.15)
    assert arms._gap([3.0, math.inf], [3.2, 3.2]) is None
    assert arms._gap([3.0, math.nan], [3.2, 3.2]).n == 1


@pytest.mark.heavy
def test_stopped_runs_have_a_mark_of_their_own(table):
    """Stopped and diverged runs at one value: both are counted, none is averaged."""
    results = [
        replace(each, status="stopped") if each.status == "diverged" and each.run.train.seed == 0 else each
        for each in table.results
    ]
    stopped = StudyTable.join(table.study, results)
    shown = curves.data(stopped, judge(stopped).axes)
    last = shown.panels[0].lines[-1].losses[-4]
    assert (last.n, last.diverged, last.stopped, last.median, last.mark) == (1, 1, 1, None, "1/3 1/3s")
    assert "1/3 1/3s" in render("curves", curves.draw, shown).svg
    assert [row["stopped"] for row in shown.rows() if row["stopped"]] == [1]


@pytest.mark.parametrize("has_diverged", [False, True])
def test_diverged_runs_of_expert_shapes_and_arms_are_on_the_frame(table, has_diverged):
    lost = summarize([3.0, 3.1, math.inf if has_diverged else 3.2])
    shapes = expert_shape.data(table)
    points = tuple(replace(each, losses=lost) if each.size.scale == 4 else each for each in shapes.points)
    beside = arms.data(table, table.arm("sp"))
    sizes = tuple(replace(each, zero_shot=lost) if each.size.scale == 4 else each for each in beside.sizes)
    for drawing in (
        render("shape", expert_shape.draw, replace(shapes, points=points)),
        render("arms", arms.draw, replace(beside, sizes=sizes)),
    ):
        assert ("1/3" in drawing.svg) == has_diverged
        assert ("diverged" in drawing.svg) == has_diverged


@pytest.mark.heavy
def test_tuning_again_is_judged_by_the_mean_as_its_gap_is(table):
    """The median of the zero-shot losses is the lower one; their mean is not."""
    sp = table.arm("sp")
    zero_shot, tuned = (3.0, 3.0, 3.9), (3.1, 3.1, 3.1)
    special = {sp.hps: zero_shot, sp.hps.replace(lr=2.0**-9): tuned}
    results = [
        Result(run, "", "finished", val_loss=special.get(run.hps, (5.0,) * 3)[run.train.seed])
        for run in unique_runs(expand(table.study))
    ]
    largest = table.sizes("width")[-1]
    found = arms._retuned(StudyTable.join(table.study, results), "width", largest, sp)
    assert found == (tuned, "log2_lr -9")


@pytest.mark.heavy
def test_tuning_again_is_judged_over_the_seeds_that_all_values_share(table):
    """Zero-shot has the lowest mean only by a seed that the other values lack."""
    sp = table.arm("sp")
    zero_shot, tuned = (3.2, 3.2, 2.0), (3.1, 3.1, None)
    special = {sp.hps: zero_shot, sp.hps.replace(lr=2.0**-9): tuned}
    losses = {run: special.get(run.hps, (5.0, 5.0, None))[run.train.seed] for run in unique_runs(expand(table.study))}
    results = [
        Result(run, "", "missing" if loss is None else "finished", val_loss=loss) for run, loss in losses.items()
    ]
    found, value = arms._retuned(StudyTable.join(table.study, results), "width", table.sizes("width")[-1], sp)
    assert (found[:2], value) == (tuned[:2], "log2_lr -9")


def test_the_confidence_of_intervals_is_that_of_the_verdicts(verdict):
    own = verdict.axes[0]
    assert interval_label([own], own.hp) == "lr, 95% interval"
    looked_at = [replace(own, tail=tail_of_look(look)) for look in (1, 2)]
    assert interval_label(looked_at, own.hp) == "lr, 97.5% to 99.2% interval"
    wide = drift.shifts(looked_at[1]).values()
    narrow = drift.shifts(own).values()
    assert all(a.octaves.low <= b.octaves.low for a, b in zip(wide, narrow, strict=True))


def test_drift_and_cost_are_those_of_the_verdict(table, verdict):
    shown = drift.data(table.study, verdict.axes)
    assert shown.half_grid == 0.5
    for each in shown.verdicts:
        first, *others = (shift.octaves for shift in drift.shifts(each).values())
        assert first.value == 0
        assert all(abs(each.value) < 0.2 and each.low < each.high for each in others)
    found = [each for _, each in cost.data(table.study, verdict.axes).points]
    assert {each.size.scale for each in found} == {2.0, 4.0}
    assert all(each.gain == pytest.approx(0.08 * math.log2(each.size.scale), abs=0.01) for each in found)
    assert all(each.tolerance == max(0.005, 0.1 * each.gain) for each in found)


def test_scaling_has_a_law_per_axis_and_way_of_counting(table):
    assert len(scaling.data(table).fits) == 9
    assert {row["counted"] for row in scaling.data(table).rows()} == {"total", "active", "non_embedding"}


def test_experts_and_their_size_are_compared_at_one_scale(table):
    shown = expert_shape.data(table)
    assert shown.is_comparable
    assert [(each.label, each.size.scale) for each in shown.of("alpha")] == [("1", 1.0), ("2", 2.0), ("4", 4.0)]


@pytest.mark.heavy
def test_a_drawing_is_the_same_bytes_each_time_and_its_csv_the_numbers(table):
    data = curves.data(table, ())
    first, second = (render("curves", curves.draw, data) for _ in range(2))
    assert first == second
    rows = list(csv.DictReader(io.StringIO(first.csv)))
    assert len(rows) == len(data.rows())
    assert float(rows[0]["median"]) == pytest.approx(data.rows()[0]["median"], rel=1e-6)
    assert INK in first.svg
    assert BACKGROUND in first.svg
    assert "DejaVu" not in first.svg
    assert "<metadata>" not in first.svg


@pytest.mark.heavy
def test_an_inline_figure_has_ids_of_its_own_a_title_and_the_ink_of_the_page(table):
    data = curves.data(table, ())
    inline = render("curves", curves.draw, data).inline("A <title>", "What it shows")
    assert INK not in inline
    assert BACKGROUND not in inline
    assert "<style" not in inline
    assert '<title id="curves-title">A &lt;title&gt;</title>' in inline
    assert 'role="img"' in inline
    assert "http" not in inline
    assert all(identity.startswith("curves-") for identity in ids(inline))


def ids(svg):
    return [part.split('"')[0] for part in svg.split(' id="')[1:]]


def test_inline_figures_do_not_share_what_they_refer_to():
    svg = '<svg viewBox="0 0 72 72"><clipPath id="p"/><g clip-path="url(#p)"><use xlink:href="#p"/></g></svg>'
    inline = inline_svg(svg, "name", "t", "d")
    assert 'id="name-p"' in inline
    assert "url(#name-p)" in inline
    assert 'href="#name-p"' in inline
    assert "width:96px" in inline


def test_a_picture_says_over_how_many_seeds_it_is(table):
    load = LoadBalance((1, 2), (0.1, 0.2), (0.0, 0.0), n_seeds=3)
    trace = Collapse((1, 2), (3.0, 2.0), (0.1, 0.1), 1, (), window=1, n_seeds=3)
    base = table.base("width")
    for draw, shown, seeds in (
        (curves.draw, curves.data(table, ()), "n = 2–3 seeds"),  # one run is missing
        (expert_shape.draw, expert_shape.data(table), "n = 3 seeds"),
        (
            balance.draw,
            balance.BalanceData(("width",), (balance.LoadLine("width", base, load),), 1.0),
            "n = 3 seeds",
        ),
        (collapse.draw, collapse.CollapseData(("width",), table.own, base, {"width": trace}), "n = 3 seeds"),
    ):
        figure = Figure()
        draw(figure, shown)
        assert figure.axes[0].get_ylabel().endswith(seeds)


def test_csv_of_nothing_is_a_header():
    assert to_csv([]) == "nothing\n"


def test_a_number_that_is_unknown_is_an_empty_field():
    assert to_csv([{"low": math.nan, "high": math.inf}]) == "low,high\n,inf\n"


def test_long_series_are_thinned_and_keep_their_ends():
    places = thinned(range(1000))
    assert (places[0], places[-1]) == (0, 999)
    assert len(places) <= 160


def test_sizes_take_the_ends_of_the_colours():
    assert len({size_colour(place, 4) for place in range(4)}) == 4


@pytest.mark.parametrize("path", sorted(Path(curves.__file__).parent.rglob("*.py")), ids=lambda path: path.stem)
def test_matplotlib_is_imported_when_something_is_drawn(path):
    top = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {alias.name for node in top for alias in node.names} | {getattr(node, "module", "") for node in top}
    assert not [name for name in names if name and name.startswith("matplotlib")]


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("paper", ["#ffffff", "#101419"])
@pytest.mark.parametrize("colour", [*SIZE_COLOURS, OURS, OTHER, RETUNED])
def test_colours_can_be_seen_on_light_and_on_dark(colour, paper):
    dark, light = sorted([luminance(colour), luminance(paper)])
    assert (light + 0.05) / (dark + 0.05) >= 3
