import pytest
from made_tables import AT_CENTRE, BASE, HOLDS, LR, NOT, falling, read, study, table

from expertp.errors import RunError
from expertp.paper import loss_collapse

FIELDS = {"width": "n_embd", "depth": "n_layer", "experts": "n_exp", "alpha": "alpha_ffn"}


def collapse(off):
    """Judge two studies, given relative distances from the base, or records, by study and axis."""

    def of(name):
        def records(run):
            moved = [axis for axis, field in FIELDS.items() if getattr(run.model, field) != BASE.get(field, 1)]
            found = off.get((name, moved[0]), 0.01) if moved else 0.0
            return falling(found) if isinstance(found, float) else found

        return records

    axes = {
        axis: {"sizes": sizes, **LR} for axis, sizes in zip(FIELDS, ([32, 64], [2, 4], [4, 8], [1, 2]), strict=True)
    }
    tables = {name: table(study(name, axes=axes, **AT_CENTRE), records=of(name)) for name in ("one", "two")}
    return read(loss_collapse.decide(tables))


def test_curves_collapse_when_all_sizes_stay_close_to_the_base():
    answer, number, why = collapse({("two", "alpha"): -0.015, ("one", "depth"): 0.3})
    assert answer == HOLDS
    assert number.endswith(": 1.5% (two, alpha)")
    assert why.startswith("All 6 axes stay within 2%. Not part of the claim: one, depth 30%, two, depth 1%.")
    assert "grey band: ± 3 s.d. over the base's seeds" in why


def test_curves_do_not_collapse_when_one_size_lies_off():
    answer, number, why = collapse({("one", "experts"): 0.03, ("two", "width"): -0.041})
    assert answer == NOT
    assert number.endswith(": 4.1% (two, width)")
    assert why.startswith("Above 2%: one, experts 3%, two, width 4.1%.")


def test_curves_do_not_collapse_when_a_run_diverges_before_half_of_the_drop():
    answer, number, _ = collapse({("one", "width"): falling(until=2)})
    assert answer == NOT
    assert number.endswith(": inf% (one, width)")
    assert collapse({("one", "width"): falling(until=6)})[0] == HOLDS


def test_curves_without_records_are_refused():
    with pytest.raises(RunError, match=r"one: 3 of 3 runs of n_embd 64, .* have no records"):
        collapse({("one", "width"): []})


@pytest.mark.heavy
def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    collapse({("one", "width"): falling(until=1)})
