import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from analysis.surfaces import size_of

from expertp.analysis.collapse import NO_GAP, collapse, crossings, early_gap, shrinkage, smoothed
from expertp.analysis.seed_curves import SeedCurves

STEPS = 400
T = np.arange(1, STEPS + 1)
BASE = 3 + 4 * np.exp(-T / 60)


def make_losses(scale, curve=BASE, seeds=(0, 1, 2), batch_noise=0.05, own_noise=0.002):
    """Return training losses of which most noise belongs to the batch, and batches to the seed."""
    losses = []
    for seed in seeds:
        batches = np.random.default_rng(seed).standard_normal(STEPS)
        own = np.random.default_rng((seed, int(scale * 10))).standard_normal(STEPS)
        losses.append(curve + batch_noise * batches + own_noise * own)
    return SeedCurves(tuple(seeds), tuple(T.tolist()), np.array(losses))


def by_size(*curves, **changes):
    """Return training losses by size, given as scales or as pairs of a scale and its curve or losses."""
    pairs = [each if isinstance(each, tuple) else (each, BASE) for each in curves]
    return {
        size_of(scale): losses if isinstance(losses, SeedCurves) else make_losses(scale, losses, **changes)
        for scale, losses in pairs
    }


def test_curves_that_lie_on_each_other_never_leave():
    seen = collapse(make_losses(1.0), by_size(2.0, 4.0))
    assert [each.leaves_at for each in seen.deviations] == [None, None]
    assert seen.max_deviation_until_half < 0.002
    assert seen.window == 9


def test_a_scale_leaves_where_its_curve_does():
    apart = BASE - 0.004 * np.maximum(T - 200, 0)
    seen = collapse(make_losses(1.0), by_size(2.0, (4.0, apart)))
    on, off = seen.deviations
    assert on.leaves_at is None
    # 3 s.d. of the smoothed base are about 3 * 0.05 / sqrt(9) nats, 13 steps at 0.004 a step.
    assert 205 <= off.leaves_at <= 230
    assert off.relative[-1] == pytest.approx(-0.8 / BASE[-1], rel=0.05)


def test_half_of_the_drop_ends_the_bound_on_early_deviations():
    early, late = BASE * (1 + 0.05 * (T == 20)), BASE * (1 + 0.05 * (T > 100))
    seen = collapse(make_losses(1.0), by_size((2.0, early), (4.0, late)), window=1)
    half = T[np.argmax((BASE[0] + BASE[-1]) / 2 >= BASE)]
    assert abs(seen.half_drop_step - half) <= 2
    assert seen.deviations[0].max_until_half == pytest.approx(0.05, abs=0.005)
    assert seen.deviations[1].max_until_half < 0.005
    assert seen.max_deviation_until_half == seen.deviations[0].max_until_half


def test_one_hard_batch_at_the_end_does_not_move_the_half_drop():
    hard = BASE + 0.6 * (T == STEPS)
    as_usual, seen = (collapse(make_losses(1.0, curve), {}) for curve in (BASE, hard))
    assert abs(seen.half_drop_step - as_usual.half_drop_step) <= 1


def test_pairs_of_one_seed_take_the_noise_of_batches_away():
    base = make_losses(1.0)
    paired = collapse(base, by_size(2.0)).deviations[0].relative
    strangers = replace(make_losses(2.0, seeds=(7, 8, 9)), seeds=base.seeds)
    unpaired = collapse(base, by_size((2.0, strangers))).deviations[0].relative
    assert np.std(unpaired) > 10 * np.std(paired)


def test_a_diverged_run_leaves_at_its_last_step():
    broken = make_losses(2.0)
    broken.values_ST[1, 99:] = math.nan
    seen = collapse(make_losses(1.0), by_size((2.0, broken)))
    assert seen.deviations[0].leaves_at == 100
    assert seen.deviations[0].max_until_half < 0.002


def test_one_seed_shows_deviations_and_no_departure():
    seen = collapse(make_losses(1.0, seeds=(0,)), by_size((2.0, 2 * BASE), seeds=(0,)))
    assert seen.deviations[0].leaves_at is None
    assert seen.deviations[0].max_until_half > 0.9


def test_a_size_that_shares_no_seed_with_the_base_is_left_out():
    scaled = by_size((2.0, make_losses(2.0, seeds=(2,))), (4.0, make_losses(4.0, seeds=(1, 2))))
    seen = collapse(make_losses(1.0, seeds=(0, 1)), scaled)
    assert [each.size.scale for each in seen.deviations] == [4.0]
    assert seen.max_deviation_until_half < 0.002
    assert crossings(by_size(1.0, seeds=(0,)) | by_size(2.0, seeds=(1,))) == ()


def test_a_size_that_diverges_as_a_whole_shortens_no_other():
    whole = make_losses(4.0)
    dead = SeedCurves(whole.seeds, whole.steps[:13], whole.values_ST[:, :13])
    alone, seen = (collapse(make_losses(1.0), scaled) for scaled in (by_size(2.0), by_size(2.0, (4.0, dead))))
    assert (seen.steps, seen.half_drop_step) == (alone.steps, alone.half_drop_step)
    assert seen.deviations[0] == alone.deviations[0]
    assert seen.deviations[1].leaves_at == 14
    assert seen.deviations[1].max_until_half == math.inf
    (pair,) = crossings(by_size(1.0, (4.0, dead)))
    assert not pair.larger_ends_lower


def test_bigger_is_better_without_crossings():
    losses = by_size(*((scale, BASE - 0.05 * np.log2(scale) * T / STEPS) for scale in (4.0, 1.0, 2.0)))
    seen = crossings(losses, after=100)
    assert [(each.smaller.scale, each.larger.scale, each.count) for each in seen] == [(1, 2, 0), (2, 4, 0)]
    assert all(each.larger_ends_lower for each in seen)
    assert seen[0].gap == pytest.approx(-0.05, abs=0.01)


def test_crossings_are_counted_where_they_are():
    wave = BASE + 0.05 * np.cos(np.pi * T / 130)
    (seen,) = crossings(by_size(1.0, (2.0, wave)))
    assert seen.count == 3
    assert all(abs(step - at) < 12 for step, at in zip(seen.steps, (65, 195, 325), strict=True))
    assert seen.larger_ends_lower
    (late,) = crossings(by_size(1.0, (2.0, wave)), after=150)
    assert late.steps == seen.steps[1:]


def test_curves_on_each_other_hardly_cross():
    losses = by_size(*map(float, range(1, 9)))
    sign_changes = 0
    for smaller, larger in itertools.pairwise(losses.values()):
        gap = (larger.values_ST - smaller.values_ST).mean(0)
        sign_changes += int((np.diff(np.sign(smoothed(gap, 9))) != 0).sum())
    seen = crossings(losses)
    assert sum(each.count for each in seen) < sign_changes / 2


def test_smoothing_keeps_a_straight_line():
    line = np.arange(50.0)
    assert np.allclose(smoothed(line, 9), line)


def apart(*gaps, **changes):
    """Return losses of sizes 1, 2, 4 ...; each lies by a gap above the size before it."""
    factors = np.cumprod([1.0, *(1 + gap for gap in gaps)])
    return by_size(*((2.0**place, BASE * factor) for place, factor in enumerate(factors)), **changes)


def test_a_gap_is_the_mean_relative_difference_in_its_window():
    later = BASE * np.where(T <= 50, 1.02, 2.0)
    losses = by_size(1.0, (2.0, later), batch_noise=0.0, own_noise=0.0)
    small, large = losses
    found = early_gap(losses, small, large, until=46)  # the running mean reaches four steps further
    assert found.by_seed == {0: pytest.approx(0.02), 1: pytest.approx(0.02), 2: pytest.approx(0.02)}
    assert str(found) == "+2%"
    assert early_gap(losses, small, large, until=100).mean > 0.3


def test_gaps_that_halve_per_doubling_shrink_as_in_theory():
    found = shrinkage(apart(0.02, 0.01), until=50)
    assert (found.first.larger.scale, found.last.larger.scale) == (2, 4)
    assert found.is_shrinking is True
    assert found.ratio == pytest.approx(0.5, rel=0.05)
    assert found.expected == 0.5
    assert shrinkage(apart(0.02, 0.02, 0.01), until=50).expected == 0.25


def test_a_gap_shrinks_whichever_sign_it_has():
    assert shrinkage(apart(-0.02, 0.01), until=50).is_shrinking is True
    assert shrinkage(apart(0.01, -0.02), until=50).is_shrinking is False


def test_gaps_that_grow_or_that_noise_decides_do_not_shrink():
    assert shrinkage(apart(0.01, 0.02), until=50).is_shrinking is False
    assert shrinkage(apart(0.02, 0.019, own_noise=0.5), until=50).is_shrinking is None


def test_gaps_too_small_to_matter_need_not_shrink():
    assert shrinkage(apart(0.5 * NO_GAP, 0.9 * NO_GAP), until=50).is_shrinking is True
    assert shrinkage(apart(0.5 * NO_GAP, 2 * NO_GAP), until=50).is_shrinking is False


def test_noise_around_no_gap_does_not_add_up():
    losses = apart(0.0, 0.02, own_noise=0.1)
    found = shrinkage(losses, until=50)
    assert found.first.mean == pytest.approx(np.mean(list(found.first.by_seed.values())))
    assert found.last.beyond(found.first).mean == pytest.approx(abs(found.last.mean) - abs(found.first.mean))


def test_a_run_that_diverges_in_the_window_has_no_gap_and_shrinks_nothing():
    losses = apart(0.02, 0.01)
    list(losses.values())[-1].values_ST[1, 20:] = math.nan
    found = shrinkage(losses, until=50)
    assert found.last.by_seed[1] == math.inf
    assert (str(found.last), found.is_shrinking) == ("unknown, a run diverges", False)
    assert math.isnan(found.ratio)
    assert shrinkage(losses, until=15).is_shrinking is True


def test_two_sizes_have_one_gap_and_no_shrinkage():
    assert shrinkage(apart(0.02), until=50) is None
