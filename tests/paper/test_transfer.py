"""Findings that the verdicts of one study decide: transfer-quarter, transfer-twelfth and joint-scale."""

import pytest
from made_tables import HOLDS, NOT, UNSURE, both_grids, read, study, table, valley

from expertp.paper import joint_scale, transfer_quarter, transfer_twelfth
from expertp.paper.transfer import decide_transfer


def transfer_of(**where):
    return read(decide_transfer({"study": table(both_grids(), lambda run: valley(run, **where))}))


def test_transfer_holds_when_no_optimum_moves_much():
    answer, number, why = transfer_of(lr_drift=0.05, init_drift=-0.1)
    assert answer == HOLDS
    assert number.startswith("2 curves: 2 PASS; ")
    assert "init std along width, -0.10 [-0.10, -0.10] octaves per doubling" in number
    assert why == "Every interval lies within its threshold."


def test_transfer_does_not_hold_when_one_optimum_moves():
    answer, number, why = transfer_of(lr_drift=0.5, init_drift=0.1)
    assert answer == NOT
    assert number.startswith("2 curves: 1 PASS, 1 FAIL; ")
    assert "lr along width, +0.50 [+0.50, +0.50] octaves per doubling" in number
    assert why.startswith("width, lr: the optimum moves by +0.50 octaves per doubling (95%: +0.50 to +0.50)")
    assert "init" not in why


def test_one_curve_is_not_counted():
    spec = study(axes={"width": [32, 64, 128]})
    _, number, _ = read(decide_transfer({"study": table(spec, lambda run: valley(run, lr_drift=0.1))}))
    assert number == "drift of the optimum: lr along width, +0.10 [+0.10, +0.10] octaves per doubling"


def test_all_verdicts_stand_in_a_table():
    shown = decide_transfer({"study": table(both_grids(), lambda run: valley(run, lr_drift=0.5, init_drift=0.1))})
    head, lr, init = shown.table
    assert len(head) == 5
    assert head[0] == "axis"
    assert lr[:4] == ("width", "lr", "FAIL", "+0.50 [+0.50, +0.50]")
    assert init[:4] == ("width", "init std", "PASS", "+0.10 [+0.10, +0.10]")


@pytest.mark.heavy
def test_reasons_beyond_the_first_two_are_counted():
    axes = {"width": [32, 64], "depth": [2, 4]}
    spec = both_grids(axes=axes)
    _, _, why = read(decide_transfer({"study": table(spec, lambda run: valley(run, lr_drift=0.5, init_drift=0.5))}))
    assert why.count("the optimum moves") == 2
    assert "2 more" in why


def test_transfer_is_inconclusive_when_an_optimum_may_lie_beyond_the_grid():
    answer, number, why = transfer_of(lr=-3.0, init_drift=0.1)
    assert answer == UNSURE
    assert number.startswith("2 curves: 1 PASS, 1 INCONCLUSIVE; ")
    assert why.startswith("width, lr: the optimum at 1 and 2 and 4 times the base lies on the edge of the grid")


@pytest.mark.heavy
@pytest.mark.parametrize("finding", [transfer_quarter, transfer_twelfth, joint_scale])
def test_a_finding_about_transfer_is_decided_by_its_own_study(finding):
    name = finding.STUDY.name
    assert finding.FINDING.studies == (finding.STUDY,)
    outcome = finding.FINDING.decide({name: table(both_grids(name), lambda run: valley(run, lr_drift=0.5))})
    assert outcome.answer == NOT
    assert [drawing.name for drawing in outcome.drawings] == [name]
