import pytest
from made_tables import AT_CENTRE, HOLDS, LR, NOT, UNSURE, falling, study, table

from expertp.errors import RunError
from expertp.paper import loss_collapse

FIELDS = {"width": ("n_embd", 32), "experts": ("n_exp", 4), "alpha": ("alpha_ffn", 1)}
NAMES = ("zero-shot-quarter", "zero-shot-twelfth", "zero-shot-quarter-beside")


def collapse(off, names=NAMES, doublings=2, noise=0.0):
    """Judge studies, given relative distances from the base at twice and four times its size, by study and axis.

    With noise, the distance at four times the size differs by that from seed to seed.
    """

    def of(name):
        def records(run):
            for axis, (field, base) in FIELDS.items():
                scale = getattr(run.model, field) / base
                if scale != 1:
                    found = off.get((name, axis), (0.01, 0.015))[1 if scale == 4 else 0]
                    by = noise * (run.train.seed - 1) if scale == 4 else 0.0
                    return falling(found + by) if isinstance(found, float) else found
            return falling()

        return records

    axes = {
        axis: {"sizes": [base * 2**place for place in range(doublings + 1)], **LR} for axis, (_, base) in FIELDS.items()
    }
    tables = {name: table(study(name, axes=axes, **AT_CENTRE), records=of(name)) for name in names}
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
    assert first == ("zero-shot-quarter", "width", "1 to 5", "1.5%", "+1%", "+0.5%", "0.50", "0.50", "yes")
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
    assert found.table[1][4:] == ("-",) * 5


def test_curves_without_records_are_refused():
    with pytest.raises(RunError, match=r"zero-shot-quarter: 3 of 3 runs of n_embd 64, .* have no records"):
        collapse({("zero-shot-quarter", "width"): ([], [])})


@pytest.mark.heavy
def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    collapse({("zero-shot-quarter", "width"): (0.01, falling(until=1))}, NAMES[:1])
