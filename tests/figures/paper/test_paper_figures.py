"""Figures of the paper: their numbers from data made by hand, and that their drawings say what they show."""

import csv
import io
import math
from fractions import Fraction

import numpy as np
import pytest

from expertp.figures.paper import bias_shift, constants_load, granularity, race, weight_decay
from expertp.figures.save import render
from expertp.figures.style import new_figure
from expertp.spec import ModelSpec

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)


def records(losses, validated=True, seconds=2.0):
    """Return the records of a run with such losses, one at every step of 100 tokens."""
    return [
        {
            "step": step,
            "loss": loss,
            "val_loss": loss if validated else None,
            "tokens": 100 * step,
            "seconds": seconds * step,
        }
        for step, loss in enumerate(losses, 1)
    ]


def load_records(deviations, first=1):
    return [
        {"step": step, "max_load_deviation": [0.0, deviation], "dead_experts": [0, 0]}
        for step, deviation in enumerate(deviations, first)
    ]


def model(n_exp, n_act, alpha_ffn):
    return ModelSpec(
        n_embd=32, n_layer=2, d_head=16, n_exp=n_exp, n_act=n_act, alpha_ffn=alpha_ffn, vocab_size=64, context=16
    )


def models(losses):
    """Return models of 4, 8, 16 ... experts with a quarter of them active and as many parameters in experts."""
    return [(model(4 * 2**k, 2**k, 2.0**-k), each) for k, each in enumerate(losses)]


def panels(module, shown):
    figure = new_figure(*shown.shape)
    module.draw(figure, shown)
    return figure.axes


OURS = race.runner("MoE E4A1", {0: records([6, 4, 3, 2], seconds=5.0), 1: records([8, 6, 5, 4], seconds=7.0)}, True)
THEIRS = race.runner("dense", {0: records([7, 6, 5, 4.5])}, False)
SETS = {
    "tuned": {
        -6.0: {0: load_records([0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.3, 0.1])},
        -7.0: {0: load_records([0.2] * 8), 1: load_records([0.4] * 8)},
    },
    "all ones": {-7.0: {0: load_records([0.7] * 8)}, -6.0: {0: load_records([0.7] * 7)}},
}
FIGURES = {
    "race": (race, lambda: race.data([OURS, THEIRS])),
    "granularity": (
        granularity,
        lambda: granularity.data({"κ = 1/4": models([[3.4, 3.5], [3.2, 3.3], [3.1, math.inf]]), "empty": []}),
    ),
    "bias_shift": (bias_shift, lambda: bias_shift.data([HALF, QUARTER], [4, 8, 16], n_tests=50)),
    "weight_decay": (
        weight_decay,
        lambda: weight_decay.data({"width 32": [(0, [3.5, 3.6]), (0.1, [3.4, 3.5]), (10, [3.9, math.inf])]}),
    ),
    "constants_load": (constants_load, lambda: constants_load.data({**SETS, "paper": {}}, 0.75)),
}


def test_a_runner_has_tokens_mean_seconds_and_the_losses_of_each_seed():
    assert OURS.tokens == (100, 200, 300, 400)
    assert OURS.seconds == (6, 12, 18, 24)
    assert OURS.losses == ((6, 4, 3, 2), (8, 6, 5, 4))
    assert OURS.final == 3
    assert OURS.is_validation
    rows = race.data([OURS]).rows()
    assert rows[1] == {
        "model": "MoE E4A1", "is_ours": True, "loss_of": "validation", "tokens": 200, "seconds": 12, "mean": 5,
        "min": 4, "max": 6, "seeds": 2,
    }  # fmt: skip


def test_validations_make_the_curve_where_there_are_four():
    found = records([9.0] * 20, validated=False)
    for step in (5, 10, 15):
        found[step - 1]["val_loss"] = 3.0
    training = race.runner("few", {0: found}, True)
    assert (len(training.tokens), training.final, training.is_validation) == (20, 9.0, False)
    found[-1]["val_loss"] = 2.5
    validation = race.runner("enough", {0: found}, True)
    assert validation.tokens == (500, 1000, 1500, 2000)
    assert validation.losses == ((3.0, 3.0, 3.0, 2.5),)
    assert race.data([training]).of == "training loss, smoothed (nats)"
    assert race.data([validation]).of == "validation loss (nats)"
    assert race.speedup(validation, training) is None


def test_training_losses_are_smoothed_and_end_with_a_whole_window():
    # 200 records have a window of 5; the last batch of all is a hard one.
    found = race.runner("noisy", {0: records([5.0, 3.0] * 99 + [4.0, 50.0], validated=False)}, True)
    assert len(found.tokens) == len(found.seconds) == len(found.losses[0]) == 198
    assert found.tokens[-1] == 19800
    assert found.losses[0][100] == pytest.approx((3 * 5 + 2 * 3) / 5)


def test_no_records_are_no_runner_and_a_diverged_run_has_no_final_loss():
    assert race.runner("none", {}, True) is None
    assert race.runner("none", {0: []}, True) is None
    found = race.runner("half", {0: records([6, 5, 4, 3]), 1: records([6, 5])}, False)
    assert found.mean[:2].tolist() == [6, 5]
    assert math.isnan(found.final)
    assert [row["mean"] for row in race.data([found]).rows()] == [6, 5, None, None]
    assert "half, diverged" in render("race", race.draw, race.data([found])).svg
    assert race.speedup(OURS, found) is None


def test_a_speedup_is_that_of_the_point_at_which_ours_reaches_the_loss_of_theirs():
    # Ours falls from 5 to 4 between 200 and 300 tokens, 12 and 18 seconds; theirs ends at 4.5 with 400 and 8.
    assert race.speedup(OURS, THEIRS) == pytest.approx((400 / 250, 8 / 15))
    assert race.speedup(THEIRS, OURS) is None
    assert race.speedup(OURS, OURS) == (1, 1)


def test_a_speedup_on_power_laws_is_the_ratio_of_their_times():
    steps = np.arange(1, 2001)
    fast, slow = (race.runner("", {0: records((2 + steps**-0.5 * scale).tolist())}, True) for scale in (1, 2))
    assert race.speedup(fast, slow) == pytest.approx((4, 4), rel=1e-3)


def test_the_start_of_a_race_is_left_out_of_the_picture():
    found = race.runner("long", {0: records([100.0] * 5 + [4.0] * 45 + [3.0] * 50)}, True)
    low, high = race.loss_range([found])
    assert low < 3
    assert 4 < high < 5
    assert race.loss_range([]) == (0, 1)


def test_a_group_is_ordered_by_its_active_experts_and_says_how_large_each_is():
    shown = granularity.data({"g": models([[3.4, 3.5, 3.6], [3.3, 3.4, math.nan]])[::-1]})
    few, many = shown.groups["g"]
    assert [(each.label, each.experts, each.n_act) for each in (few, many)] == [
        ("E4A1", "4×1", 1),
        ("E8A2", "8×1/2", 2),
    ]
    rows = shown.rows()
    assert rows[0] | {"parameters": 0, "active_parameters": 0} == {
        "group": "g", "model": "E4A1", "n_act": 1, "alpha_ffn": 1.0, "parameters": 0, "active_parameters": 0,
        "median": 3.5, "min": 3.4, "max": 3.6, "n": 3, "diverged": 0, "missing": 0,
    }  # fmt: skip
    assert rows[1]["n"] == 2
    # Only routers differ: n_layer n_embd for each expert.
    assert rows[1]["parameters"] - rows[0]["parameters"] == 2 * 32 * 4
    assert rows[0]["parameters"] == model(4, 1, 1).counts().total


@pytest.mark.parametrize(
    ("losses", "falls"),
    [
        ([[3.4], [3.2], [3.1]], True),
        ([[3.4], [3.1], [3.2]], False),
        ([[3.4], [3.2], [3.2]], False),
        ([[3.4], [math.nan], [3.2]], False),
        ([[3.4, 3.4], [3.3, math.inf], [3.2, 3.2]], False),
        ([[3.4]], False),
    ],
)
def test_a_loss_is_monotone_if_every_median_falls(losses, falls):
    assert granularity.is_monotone(granularity.data({"g": models(losses)}).groups["g"]) == falls


def gain(*losses):
    return granularity.gain(granularity.data({"g": models(losses)}).groups["g"])


def test_a_gain_is_taken_seed_by_seed():
    # Seeds differ by much more than models do.
    found = gain([3.1, 4.2, 5.3, math.nan], [9.0] * 4, [3.0, 4.0, 5.0, 6.0])
    assert (found.mean, found.n) == (pytest.approx(0.2), 3)
    assert found.error == pytest.approx(0.1 / math.sqrt(3))
    assert gain([3.0], [3.5]).mean == pytest.approx(-0.5)
    assert math.isnan(gain([3.0], [3.5]).error)
    assert math.isnan(gain([3.0, math.inf], [2.0, 2.0]).mean)
    assert math.isnan(gain([math.nan, 3.0], [3.0, math.nan]).mean)


def test_panels_of_groups_have_one_scale_each_around_its_own_losses():
    shown = granularity.data({"a": models([[3.4], [3.2]]), "b": models([[2.11], [2.1]])})
    ranges = [ax.get_ylim() for ax in panels(granularity, shown)]
    assert [sum(each) / 2 for each in ranges] == pytest.approx([3.3, 2.105])
    assert np.diff(ranges[0]) == pytest.approx(np.diff(ranges[1]))
    assert np.diff(ranges[0]) > 0.2


def test_the_same_seed_gives_the_same_shifts_whichever_others_are_asked_for():
    found = bias_shift.data([HALF, QUARTER], [8, 16], n_tests=100)
    assert bias_shift.data([HALF, QUARTER], [8, 16], n_tests=100) == found
    assert bias_shift.data([0.25], [16], n_tests=100).shifts == (found.shifts[-1],)
    assert bias_shift.data([HALF, QUARTER], [8, 16], n_tests=100, seed=1) != found


def test_sparsities_stand_where_they_are_a_whole_number_of_experts():
    found = bias_shift.data([1 / 12, 1 / 8], [8, 12, 24], n_tests=10)
    assert [(each.kappa, each.n_exp, each.n_act) for each in found.shifts] == [
        (Fraction(1, 12), 12, 1),
        (Fraction(1, 12), 24, 2),
        (Fraction(1, 8), 8, 1),
        (Fraction(1, 8), 24, 3),
    ]
    assert found.rows()[3] == {
        "kappa": "1/8", "n_exp": 24, "n_act": 3, "share_exchanged": found.shifts[3].share,
        "standard_error": found.shifts[3].error, "tests": 10,
    }  # fmt: skip


def test_a_token_that_visits_all_experts_exchanges_none():
    found = bias_shift.data([1], [4, 8], n_tests=20)
    assert [(each.share, each.error) for each in found.shifts] == [(0, 0), (0, 0)]
    assert bias_shift.spread(found) == {1: 1.0}


def test_the_share_that_is_exchanged_hardly_depends_on_the_number_of_experts():
    found = bias_shift.data([HALF, QUARTER], [4, 16, 64, 256], n_tests=1000)
    ratios = bias_shift.spread(found)
    assert set(ratios) == {HALF, QUARTER}
    assert all(1 < ratio < 1.3 for ratio in ratios.values())
    # It does depend on sparsity: the fewer are active, the more of them lie near the threshold.
    assert min(each.share for each in found.of(QUARTER)) > 1.5 * max(each.share for each in found.of(HALF))


def test_shares_are_those_of_sorting_each_token():
    rng = np.random.default_rng(3)
    shares = bias_shift._exchanged(rng, 12, 3, 40)
    rng = np.random.default_rng(3)
    scores = 1 / (1 + np.exp(-0.02 * rng.standard_normal((40, 12)))) + 0.05 * rng.random((40, 12))
    updated = scores + 0.01 * rng.random((40, 12))
    kept = [len({*np.argsort(a)[-3:]} & {*np.argsort(b)[-3:]}) for a, b in zip(scores, updated, strict=True)]
    assert shares.tolist() == pytest.approx([1 - each / 3 for each in kept])
    assert 0 < shares.mean() < 1


def test_tests_in_batches_are_all_counted(monkeypatch):
    sizes = []

    def exchanged(rng, n_exp, n_act, n_tests):
        sizes.append(n_tests)
        return np.arange(n_tests, dtype=float)

    monkeypatch.setattr(bias_shift, "BATCH", 64)
    monkeypatch.setattr(bias_shift, "_exchanged", exchanged)
    (found,) = bias_shift.data([HALF], [16], n_tests=10).shifts
    assert sizes == [4, 4, 2]
    values = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert found.share == pytest.approx(np.mean(values))
    assert found.error == pytest.approx(np.std(values, ddof=1) / math.sqrt(10))


def test_a_spread_leaves_out_what_has_few_active_experts():
    shifts = [bias_shift.Shift(HALF, 2 * n, n, share, 0.0) for n, share in ((2, 0.9), (4, 0.2), (8, 0.1), (16, 0.15))]
    assert bias_shift.spread(bias_shift.BiasShiftData(tuple(shifts), 1)) == {HALF: 2}
    assert bias_shift.spread(bias_shift.BiasShiftData(tuple(shifts[:2]), 1)) == {}
    none = bias_shift.Shift(HALF, 64, 32, 0.0, 0.0)
    assert bias_shift.spread(bias_shift.BiasShiftData((*shifts, none), 1)) == {HALF: math.inf}


def test_no_decay_stands_apart_at_the_left_edge():
    shown = weight_decay.data({"32": [(10.0, [4.0]), (0.1, [3.3, 3.5]), (1, [3.0]), (0, [3.6, 3.8])]})
    assert [(row["tau"], row["median"], row["min"], row["n"]) for row in shown.rows()] == [
        (0, pytest.approx(3.7), 3.6, 2),
        (0.1, pytest.approx(3.4), 3.3, 2),
        (1, 3.0, 3.0, 1),
        (10, 4.0, 4.0, 1),
    ]
    (ax,) = panels(weight_decay, shown)
    labels = [(tick, text.get_text()) for tick, text in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)]
    assert labels == [(0.025, "0"), (0.1, "0.1"), (1, "1"), (10, "10")]
    # Lines of points, and not the one that sets zero off.
    zero, rest = (box.lines[0] for box in ax.containers)
    assert (list(zero.get_xdata()), list(zero.get_ydata())) == ([0.025], pytest.approx([3.7]))
    assert zero.get_linestyle() == "None"
    assert list(rest.get_xdata()) == [0.1, 1, 10]


def test_without_a_run_of_zero_decay_the_axis_has_no_zero():
    (ax,) = panels(weight_decay, weight_decay.data({"32": [(0.1, [3.3]), (10, [3.0])]}))
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0.1", "1", "10"]
    assert ax.get_xlim()[0] > 0.05


def test_diverged_runs_have_a_strip_above_all_losses():
    shown = weight_decay.data({"32": [(0.1, [3.3, 3.4]), (10, [3.9, math.inf])], "64": [(0.1, [3.0])]})
    (ax,) = panels(weight_decay, shown)
    assert shown.rows()[1]["median"] is None
    assert {"1/2", "diverged"} == {text.get_text() for text in ax.texts}
    (border,) = [line.get_ydata()[0] for line in ax.get_lines() if list(line.get_xdata()) == [0, 1]]
    assert 3.4 < border < ax.get_ylim()[1]
    assert max(ax.get_yticks()) < border


def test_loads_are_listed_by_set_rate_and_step():
    shown = constants_load.data({**SETS, "paper": {-7.0: {0: []}}}, 0.75)
    assert shown.sets["paper"] == ()
    rows = shown.rows()
    assert len(rows) == 8 + 8 + 8 + 7
    assert rows[9] == {
        "constants": "tuned", "log2_lr": -6.0, "step": 2, "max_load_deviation": 0.5,
        "running_mean": pytest.approx(0.5), "seeds": 1,
    }  # fmt: skip
    assert rows[0]["max_load_deviation"] == pytest.approx(0.3)
    assert rows[0]["seeds"] == 2


def test_a_rate_has_one_look_in_all_panels_and_the_range_is_the_whole_one():
    tuned, ones = panels(constants_load, constants_load.data(SETS, 0.75))
    looks = [
        {line.get_label(): (line.get_color(), line.get_linestyle()) for line in ax.get_lines()} for ax in (tuned, ones)
    ]
    for label in ("log₂ lr −7", "log₂ lr −6"):
        assert looks[0][label] == looks[1][label]
    assert looks[0]["log₂ lr −7"] != looks[0]["log₂ lr −6"]
    assert tuned.get_ylim() == ones.get_ylim() == (0, 0.75)
    assert constants_load.DIVERGED in looks[1]
    assert constants_load.DIVERGED not in looks[0]


@pytest.mark.parametrize(
    ("name", "n_panels", "words"),
    [
        (
            "race",
            2,
            ("MoE E4A1, 3.00", "dense, 4.50", "tokens", "seconds of training", "validation loss", "n = 1–2"),
        ),
        ("granularity", 2, ("κ = 1/4", "E16A4", "16×1/4", "n = 2 seeds", "1/2", "diverged", "no model yet")),
        ("bias_shift", 1, ("κ = 1/2", "κ = 1/4", "experts (n_exp)", "n = 50 tokens", "%")),
        ("weight_decay", 1, ("width 32", "τ = steps", "n = 2 seeds", "validation loss (nats)", "diverged")),
        (
            "constants_load",
            3,
            ("tuned (n = 1–2 seeds)", "all ones", "log₂ lr −6", "Load − κ", "diverges", "no run yet"),
        ),
    ],
)
def test_a_drawing_has_its_panels_and_words_and_the_same_bytes_each_time(name, n_panels, words):
    module, make = FIGURES[name]
    shown = make()
    assert len(panels(module, shown)) == n_panels
    first, second = (render(name, module.draw, each) for each in (shown, make()))
    assert first == second
    assert [word for word in words if word not in first.svg] == []
    assert first.png.startswith(b"\x89PNG")
    assert len(list(csv.DictReader(io.StringIO(first.csv)))) == len(shown.rows())
    assert "http" not in first.inline("title", "description")
