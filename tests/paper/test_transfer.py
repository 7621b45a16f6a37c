"""Findings that the verdicts of one study decide: transfer-quarter, transfer-twelfth and joint-scale."""

import math

import pytest
from made_tables import HOLDS, NOT, UNSURE, both_grids, read, study, table, valley

from expertp.paper import joint_scale, transfer_quarter, transfer_twelfth
from expertp.paper.transfer import decide_transfer


def transfer_of(**where):
    return read(decide_transfer({"study": table(both_grids(), lambda run: valley(run, **where))}))


def test_transfer_holds_when_no_optimum_moves_much():
    answer, number, why = transfer_of(lr_drift=0.05, init_drift=-0.1)
    assert answer == HOLDS
    assert number.startswith("2 curves: 2 TRANSFERS; ")
    assert "init std along width, 0.0004 [" in number, "at twice the base, where the tolerance is the smaller one"
    assert why == "Zero-shot costs less than its tolerance on every curve."


def test_transfer_does_not_hold_when_one_optimum_moves():
    answer, number, why = transfer_of(lr_drift=1.0, init_drift=0.1)
    assert answer == NOT
    assert number.startswith("2 curves: 1 TRANSFERS, 1 FAILS; ")
    assert "lr along width, 0.1600 [" in number
    assert why.startswith("width, lr: zero-shot costs 0.1600 nats at 4 times the base (95%: ")
    assert "init" not in why


def test_one_curve_is_not_counted():
    spec = study(axes={"width": [32, 64, 128]})
    _, number, _ = read(decide_transfer({"study": table(spec, lambda run: valley(run, lr_drift=0.1))}))
    assert number.startswith("cost of zero-shot: lr along width, 0.0004 [")


def test_all_verdicts_stand_in_a_table():
    shown = decide_transfer({"study": table(both_grids(), lambda run: valley(run, lr_drift=1.0, init_drift=0.1))})
    head, lr, init = shown.table
    assert len(head) == len(lr) == len(init)
    assert head[:2] == ("study", "axis")
    assert lr[:4] == ("study", "width", "lr", "FAILS")
    assert lr[4].startswith("0.1600 [")
    assert init[:4] == ("study", "width", "init std", "TRANSFERS")
    assert init[-2].startswith("+0.1")
    assert init[-1] == "none"


@pytest.mark.parametrize(
    ("drift", "answer"), [(0.0, HOLDS), (0.25, HOLDS), (0.5, NOT), (-1.0, NOT)]
)  # 4x is two doublings, and half an octave counts as the same
def test_by_the_papers_criterion_the_best_values_of_the_grid_coincide(drift, answer):
    found = decide_transfer({"study": table(both_grids(), lambda run: valley(run, lr_drift=drift))})
    assert found.paper_answer == answer


def test_best_values_do_not_coincide_with_those_of_runs_that_diverge():
    def loss(run):
        return math.inf if run.model.n_embd == 128 else valley(run)

    assert decide_transfer({"study": table(both_grids(), loss)}).paper_answer == NOT


def test_a_study_beside_the_claim_is_shown_and_not_judged():
    moved = table(both_grids("beside"), lambda run: valley(run, lr_drift=1.0))
    found = decide_transfer({"study": table(both_grids(), valley), "beside": moved}, beside=["beside"])
    assert (found.answer, found.paper_answer) == (HOLDS, HOLDS)
    assert found.number.startswith("2 curves: 2 TRANSFERS; ")
    assert found.why.endswith("Not part of the claim: beside 2 curves: 1 TRANSFERS, 1 FAILS.")
    assert [row[0] for row in found.table] == ["study", "study", "study", "beside", "beside"]
    assert [drawing.name for drawing in found.drawings] == ["study", "beside"]


@pytest.mark.heavy
def test_reasons_beyond_the_first_two_are_counted():
    axes = {"width": [32, 64], "depth": [2, 4]}
    spec = both_grids(axes=axes)
    _, _, why = read(decide_transfer({"study": table(spec, lambda run: valley(run, lr_drift=1, init_drift=1))}))
    assert why.count("zero-shot costs") == 2
    assert "2 more" in why


def test_transfer_is_inconclusive_when_the_base_is_not_tuned():
    answer, number, why = transfer_of(lr=-6.0, init_drift=0.1)
    assert answer == UNSURE
    assert number.startswith("2 curves: 1 TRANSFERS, 1 UNDECIDED; ")
    assert "tune the base first" in why


@pytest.mark.heavy
@pytest.mark.parametrize("finding", [transfer_quarter, transfer_twelfth, joint_scale])
def test_a_finding_about_transfer_is_decided_by_its_own_study(finding):
    names = [study.name for study in finding.FINDING.studies]
    assert names[0] == finding.STUDY.name
    tables = {name: table(both_grids(name), lambda run: valley(run, lr_drift=1)) for name in names}
    outcome = finding.FINDING.decide(tables)
    assert outcome.answer == NOT
    assert [drawing.name for drawing in outcome.drawings] == names


def test_other_constants_stand_beside_transfer_quarter():
    names = [study.name for study in transfer_quarter.FINDING.studies]
    tables = {name: table(both_grids(name), lambda run: valley(run, lr_drift=1)) for name in names[2:]}
    tables |= {name: table(both_grids(name), valley) for name in names[:2]}
    assert names[2] == "transfer-quarter-beside"
    assert transfer_quarter.FINDING.decide(tables).answer == HOLDS
