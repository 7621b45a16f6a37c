import math
from fractions import Fraction

import numpy as np
import pytest
from made_tables import HOLDS, NOT, check_drawing, read

from expertp.paper import bias_shift

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)


def test_the_same_seed_gives_the_same_shifts_whichever_others_are_asked_for():
    found = bias_shift.data([HALF, QUARTER], [8, 16], n_tests=100)
    assert bias_shift.data([HALF, QUARTER], [8, 16], n_tests=100) == found
    assert bias_shift.data([QUARTER], [16], n_tests=100).lines == {QUARTER: [found.lines[QUARTER][-1]]}
    assert bias_shift.data([HALF, QUARTER], [8, 16], n_tests=100, seed=1) != found


def test_sparsities_stand_where_they_are_a_whole_number_of_experts():
    found = bias_shift.data([Fraction(1, 12), Fraction(1, 8)], [8, 12, 24], n_tests=10)
    assert {kappa: [(each.n_exp, each.n_act) for each in line] for kappa, line in found.lines.items()} == {
        Fraction(1, 12): [(12, 1), (24, 2)],
        Fraction(1, 8): [(8, 1), (24, 3)],
    }
    last = found.lines[Fraction(1, 8)][1]
    assert found.rows()[3] == {
        "kappa": "1/8", "n_exp": 24, "n_act": 3, "share_exchanged": last.share,
        "standard_error": last.error, "tests": 10,
    }  # fmt: skip


def test_a_token_that_visits_all_experts_exchanges_none():
    found = bias_shift.data([Fraction(1)], [4, 8], n_tests=20)
    assert [(each.share, each.error) for each in found.lines[Fraction(1)]] == [(0, 0), (0, 0)]
    assert bias_shift.spread(found) == {1: 1.0}


def test_the_share_that_is_exchanged_hardly_depends_on_the_number_of_experts():
    found = bias_shift.data([HALF, QUARTER], [4, 16, 64, 256], n_tests=1000)
    ratios = bias_shift.spread(found)
    assert set(ratios) == {HALF, QUARTER}
    assert all(1 < ratio < 1.3 for ratio in ratios.values())
    # It does depend on sparsity: the fewer are active, the more of them lie near the threshold.
    assert min(each.share for each in found.lines[QUARTER]) > 1.5 * max(each.share for each in found.lines[HALF])


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
    (found,) = bias_shift.data([HALF], [16], n_tests=10).lines[HALF]
    assert sizes == [4, 4, 2]
    values = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert found.share == pytest.approx(np.mean(values))
    assert found.error == pytest.approx(np.std(values, ddof=1) / math.sqrt(10))


def test_a_spread_leaves_out_what_has_few_active_experts():
    shifts = [bias_shift.Shift(2 * n, n, share, 0.0) for n, share in ((2, 0.9), (4, 0.2), (8, 0.1), (16, 0.15))]
    assert bias_shift.spread(bias_shift.BiasShiftData({HALF: shifts}, 1)) == {HALF: 2}
    assert bias_shift.spread(bias_shift.BiasShiftData({HALF: shifts[:2]}, 1)) == {}
    none = bias_shift.Shift(64, 32, 0.0, 0.0)
    assert bias_shift.spread(bias_shift.BiasShiftData({HALF: [*shifts, none]}, 1)) == {HALF: math.inf}


def shifts(last):
    lines = {HALF: (0.10, 0.10, 0.101), QUARTER: (0.05, 0.20, last)}
    made = {
        kappa: [bias_shift.Shift(n, int(kappa * n), share, 0.001) for n, share in zip((8, 16, 32), line, strict=True)]
        for kappa, line in lines.items()
    }
    return bias_shift.BiasShiftData(made, 100)


@pytest.mark.parametrize(
    ("last", "answer", "by_paper", "change"),
    [(0.203, HOLDS, HOLDS, "+1.5%"), (0.19, NOT, HOLDS, "-5.0%"), (0.23, NOT, NOT, "+15.0%")],
)
def test_bias_shifts_are_level_by_their_last_doubling_or_flat(monkeypatch, last, answer, by_paper, change):
    monkeypatch.setattr(bias_shift, "data", lambda **_: shifts(last))
    outcome = bias_shift.decide({})
    found, number, why = read(outcome)
    assert (found, outcome.paper_answer) == (answer, by_paper)
    assert "with 32 experts" in number
    assert number.endswith(f": 10.1% (+1.0%) at kappa 1/2, {last:.1%} ({change}) at kappa 1/4")
    ratio = max(0.2, last) / min(0.2, last)  # with a quarter active, 8 experts have too few
    assert why.endswith(f"is 1.01 at kappa 1/2, {ratio:.2f} at kappa 1/4.")


@pytest.mark.heavy
def test_the_figure_says_what_it_shows():
    words = ("κ = 1/2", "κ = 1/4", "experts (n_exp)", "n = 50 tokens", "%")
    check_drawing(bias_shift.draw, lambda: bias_shift.data([HALF, QUARTER], [4, 8, 16], n_tests=50), 1, words)
