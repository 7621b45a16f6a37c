import pytest
from made_tables import AT_CENTRE, HOLDS, LR, NOT, UNSURE, falling, study, table

from expertp.errors import RunError
from expertp.paper import loss_collapse
from expertp.paper.listing import PROFILES
from expertp.paper.profile import load_profile

FIELDS = {"width": ("n_embd", 32), "experts": ("n_exp", 4), "alpha": ("alpha_ffn", 1)}
NAMES = ("zero-shot-quarter", "zero-shot-twelfth", "zero-shot-quarter-beside")


EARLY_SEEDS = [3, 4, 5, 6, 7]


def collapse(off, off_early=None, doublings=2, noise=0.0):
    """Judge studies, given relative distances from the base at twice and four times its size, by study and axis.

    The runs of first steps have the same distances where `off_early` does not have others. With noise, the distance at
    four times the size differs by that from seed to seed.
    """

    def made(name, off, seeds):
        def records(run):
            for axis, (field, base) in FIELDS.items():
                scale = getattr(run.model, field) / base
                if scale != 1:
                    found = off.get(axis, (0.01, 0.015))[1 if scale == 4 else 0]
                    by = noise * (run.train.seed - seeds[len(seeds) // 2]) if scale == 4 else 0.0
                    return falling(found + by) if isinstance(found, float) else found
            return falling()

        return table(study(name, axes=axes, seeds=seeds, **AT_CENTRE), records=records)

    def of(name, distances):
        return {axis: found for (study_name, axis), found in distances.items() if study_name == name}

    axes = {
        axis: {"sizes": [base * 2**place for place in range(doublings + 1)], **LR} for axis, (_, base) in FIELDS.items()
    }
    early = off if off_early is None else off_early
    tables = {name: made(name, of(name, off), [0, 1, 2]) for name in NAMES}
    tables |= {each.name: made(each.name, of(name, early), EARLY_SEEDS) for name, each in loss_collapse.EARLY.items()}
    return loss_collapse.decide(tables)


def test_curves_collapse_when_gaps_halve_with_every_doubling():
    found = collapse({("zero-shot-twelfth", "alpha"): (-0.012, -0.018)})
    assert (found.answer, found.paper_answer) == (HOLDS, HOLDS)
    assert "zero-shot-quarter, width 0.50 (theory 0.50); " in found.number
    assert found.number.endswith("largest difference to the base 1.8% (zero-shot-twelfth, alpha)")
    assert "zero-shot-quarter-beside is not part of the claim" in found.why
    assert "grey band: ± 3 s.d. over the base's seeds" in found.why


def test_all_axes_stand_in_a_table_with_their_windows():
    found = collapse({})
    head, first, *_, last = found.table
    assert len(found.table) == 1 + 3 * 3
    assert len(head) == len(first)
    # The loss falls from 6 to 2 in 8 steps; step 5 is the first at which it is below 4.
    assert first == ("zero-shot-quarter", "width", "1 to 5", "1.5%", "5", "+1%", "+0.5%", "0.50", "0.50", "yes")
    assert last[:2] == ("zero-shot-quarter-beside", "alpha")


def test_two_criteria_may_disagree():
    # Far from the base, but the gap shrinks; near to it, but the gap grows.
    far = collapse({("zero-shot-quarter", "experts"): (0.04, 0.05)})
    assert (far.answer, far.paper_answer) == (HOLDS, NOT)
    grows = collapse({("zero-shot-quarter", "experts"): (0.005, 0.015)})
    assert (grows.answer, grows.paper_answer) == (NOT, HOLDS)


def test_a_gap_whose_change_noise_decides_is_open():
    found = collapse({("zero-shot-quarter", "width"): (0.01, 0.019)}, noise=0.004)
    assert found.answer == UNSURE
    assert found.table[1][-1] == "open"


def test_gaps_are_those_of_the_runs_of_first_steps_and_distances_those_of_whole_runs():
    growing = {("zero-shot-quarter", "experts"): (0.005, 0.015)}
    found = collapse({}, growing)
    assert (found.answer, found.paper_answer) == (NOT, HOLDS)
    assert (found.table[2][-1], found.table[2][3]) == ("no", "1.5%")
    far = {("zero-shot-quarter", "experts"): (0.04, 0.05)}
    assert (collapse(far, {}).answer, collapse(far, {}).paper_answer) == (HOLDS, NOT)


def test_runs_of_first_steps_begin_as_whole_runs_do_and_end_with_the_warm_up():
    for profile in map(load_profile, PROFILES):
        for name, early in loss_collapse.EARLY.items():
            whole, first = profile.study(name, "data"), profile.study(early.name, "data")
            assert first.train.steps == whole.train.warmup_steps == first.train.warmup_steps
            assert not set(first.seeds) & set(whole.seeds)
            assert (first.base, first.hps, first.axes) == (whole.base, whole.hps, whole.axes)


def test_other_constants_are_not_part_of_the_claim():
    found = collapse({("zero-shot-quarter-beside", axis): (0.1, 0.5) for axis in FIELDS})
    assert (found.answer, found.paper_answer) == (HOLDS, HOLDS)
    assert [row[-1] for row in found.table[-3:]] == ["no"] * 3


def test_curves_do_not_collapse_when_a_run_diverges_before_half_of_the_drop():
    found = collapse({("zero-shot-quarter", "width"): (0.01, falling(until=2))})
    assert (found.answer, found.paper_answer) == (NOT, NOT)
    assert "zero-shot-quarter, width nan (theory 0.50)" in found.number
    later = collapse({("zero-shot-quarter", "width"): (0.01, falling(0.015, until=6))})
    assert (later.answer, later.paper_answer) == (HOLDS, HOLDS)


def test_an_axis_of_two_sizes_is_judged_by_the_papers_criterion_only():
    found = collapse({}, doublings=1)
    assert (found.answer, found.paper_answer) == (UNSURE, HOLDS)
    assert found.table[1][4:] == ("-",) * 6


def test_curves_without_records_are_refused():
    with pytest.raises(RunError, match=r"early-quarter: 5 of 5 runs of n_embd 64, .* have no records"):
        collapse({("zero-shot-quarter", "width"): ([], [])})


@pytest.mark.heavy
def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    collapse({("zero-shot-quarter", "width"): (0.01, falling(until=1))})
