"""Verdicts that a grid decides."""

import math

import pytest
from readings import HOLDS, NOT, UNSURE, log2_lr, outcome, reading, study, valley

from expertp.paper import transfers


def both_grids(name="study", **changes):
    grids = {"log2_lr": [-10, -9, -8, -7, -6, -5, -4], "log2_init_std": [-6, -5, -4, -3, -2]}
    return study(name, **{"axes": {"width": [32, 64, 128]}, "grids": grids, **changes})


def transfer_of(**where):
    spec = both_grids("t")
    return outcome(transfers.transfer("t")({"t": reading(spec, lambda run: valley(run, **where))}))


def test_transfer_holds_when_no_optimum_moves_much():
    verdict, number, why = transfer_of(lr_drift=0.05, init_drift=-0.1)
    assert verdict == HOLDS
    assert number == "2 curves: 2 PASS; most drift width, init std: -0.10 [-0.10, -0.10] octaves a doubling"
    assert why == "Every interval lies within its threshold."


def test_transfer_does_not_hold_when_one_optimum_moves():
    verdict, number, why = transfer_of(lr_drift=0.5, init_drift=0.1)
    assert verdict == NOT
    assert number == "2 curves: 1 PASS, 1 FAIL; most drift width, lr: +0.50 [+0.50, +0.50] octaves a doubling"
    assert why.startswith("width, lr: the optimum moves by +0.50 octaves per doubling (95%: +0.50 to +0.50), all")
    assert "init" not in why


def test_one_curve_is_not_counted():
    spec = study("t", axes={"width": [32, 64, 128]})
    _, number, _ = outcome(transfers.transfer("t")({"t": reading(spec, lambda run: valley(run, lr_drift=0.1))}))
    assert number == "width, lr: +0.10 [+0.10, +0.10] octaves a doubling"


def test_all_that_was_judged_stands_in_a_table():
    spec = both_grids("t")
    shown = transfers.transfer("t")({"t": reading(spec, lambda run: valley(run, lr_drift=0.5, init_drift=0.1))})
    head, lr, init = shown.outcome.table
    assert head == ("axis", "of", "verdict", "drift, octaves a doubling", "excess, nats")
    assert lr[:4] == ("width", "lr", "FAIL", "+0.50 [+0.50, +0.50]")
    assert init[:4] == ("width", "init std", "PASS", "+0.10 [+0.10, +0.10]")


def test_transfer_is_inconclusive_when_an_optimum_may_lie_beyond_the_grid():
    verdict, number, why = transfer_of(lr=-3.0, init_drift=0.1)
    assert verdict == UNSURE
    assert number.startswith("2 curves: 1 PASS, 1 INCONCLUSIVE; ")
    assert why.startswith("width, lr: the optimum at 1 and 2 and 4 times the base lies on the edge of the grid")


def control(loss):
    axes = {"fixed_topk": {"sizes": [4, 16], "sweep": ["log2_lr"]}}
    spec = study("c", axes=axes, allow_kappa_change=True)
    return outcome(transfers.no_transfer("c")({"c": reading(spec, loss)}))


def diverging(*cells):
    """Return a loss that is infinite at some (experts, log2 lr, seed), and has its optimum at the base's elsewhere."""
    return lambda run: math.inf if (run.model.n_exp, log2_lr(run), run.train.seed) in cells else valley(run, lr=-7.1)


def test_a_control_holds_when_its_optimum_moves():
    verdict, number, why = control(lambda run: valley(run, lr_drift=0.5))
    assert verdict == HOLDS
    assert number == "fixed_topk, lr: +0.50 [+0.50, +0.50] octaves a doubling"
    assert why.startswith("No transfer: the optimum moves by +0.50 octaves per doubling")


def test_a_control_holds_when_larger_models_are_less_stable():
    verdict, _, why = control(diverging((16, -6, 0), (16, -6, 2), (16, -5, 0)))
    assert verdict == HOLDS
    assert why.startswith(
        "Stability is lost: at 4 times the base and 2 times its learning rate 2 of 3 seeds fail (diverge, or end 0.5 "
        "nats above the best of their size), and none of the base's. As to the optimum itself, "
    )


def test_a_base_that_loses_runs_at_every_learning_rate_has_no_stability_to_lose():
    def loss(run):
        is_lost = run.train.seed == 0 if run.model.n_exp == 4 else log2_lr(run) >= -6
        return math.inf if is_lost else valley(run, lr=-7.1)

    verdict, number, _ = control(loss)
    assert verdict == UNSURE
    assert "fail" not in number


def test_a_run_that_gets_stuck_has_failed_as_well_as_one_that_diverges():
    def stuck(run):
        is_stuck = run.model.n_exp == 16 and log2_lr(run) == -5 and run.train.seed < 2
        return valley(run, lr=-7.1) + (1.0 if is_stuck else 0.0)

    verdict, number, why = control(stuck)
    assert verdict == HOLDS
    assert number.endswith("; at 4 times the base and 4 times its learning rate 2 of 3 seeds fail")
    assert why.startswith("Stability is lost: at 4 times the base and 4 times its learning rate 2 of 3 seeds fail")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [([(16, -5, 0)], NOT), ([(16, -6, 0), (16, -6, 1), (4, -6, 1)], UNSURE), ([(16, -10, 0), (16, -10, 1)], NOT)],
)
def test_one_run_or_one_below_the_optimum_or_at_the_base_as_well_is_no_loss_of_stability(cells, expected):
    verdict, _, why = control(diverging(*cells))
    assert verdict == expected
    assert "Stability" not in why


def test_a_control_does_not_hold_when_the_optimum_stays():
    verdict, number, why = control(lambda run: valley(run, lr_drift=0.1))
    assert verdict == NOT
    assert number == "fixed_topk, lr: +0.10 [+0.10, +0.10] octaves a doubling"
    assert why.startswith("The optimum stays: the optimum moves by +0.10 octaves")


def test_a_control_is_inconclusive_on_the_edge_of_the_grid():
    assert control(lambda run: valley(run, lr=-12.0))[0] == UNSURE


def test_a_control_all_of_whose_larger_runs_diverge_has_no_drift():
    verdict, number, why = control(lambda run: math.inf if run.model.n_exp == 16 else valley(run))
    assert verdict == HOLDS
    assert number == "fixed_topk, lr: unknown"
    assert why == "No transfer: runs at 4 times the base diverge at every value."


def beside(ours, theirs):
    specs = {name: both_grids(name) for name in ("ours", "theirs")}
    shown = transfers.same_transfer("ours", "theirs")(
        {"ours": reading(specs["ours"], ours), "theirs": reading(specs["theirs"], theirs)}
    )
    return shown.outcome


def test_a_transfer_is_the_same_when_optima_drift_alike_even_if_they_drift():
    found = beside(lambda run: valley(run, lr_drift=0.5, init_drift=0.1), lambda run: valley(run, lr_drift=0.4))
    assert found.verdict == HOLDS
    assert found.number == (
        "drift of the optimum beside that of theirs, octaves a doubling: "
        "width, lr +0.10 [+0.10, +0.10]; width, init std +0.10 [+0.10, +0.10]"
    )
    head, lr, _ = found.table
    assert head == ("axis", "of", "drift of ours", "of theirs", "difference")
    assert lr == ("width", "lr", "+0.50 [+0.50, +0.50]", "+0.40 [+0.40, +0.40]", "+0.10 [+0.10, +0.10]")


def test_a_transfer_is_another_when_one_optimum_drifts_otherwise():
    assert beside(lambda run: valley(run, lr_drift=0.2), lambda run: valley(run, lr_drift=-0.2)).verdict == NOT


def test_whether_a_transfer_is_the_same_is_open_on_the_edge_of_a_grid():
    assert beside(lambda run: valley(run, lr=-3.0), valley).verdict == UNSURE


def test_whether_a_transfer_is_the_same_is_open_without_an_optimum():
    found = beside(lambda run: math.inf if run.model.n_embd > 32 else valley(run), valley)
    assert found.verdict == UNSURE
    assert "width, lr -;" in found.number


def horizon(short, long):
    joint = {"larger": {"models": [{"n_embd": 64, "n_layer": 4}]}}  # four times the base
    specs = {"s": both_grids("s"), "l": both_grids("l", axes={}, joint=joint)}
    return outcome(
        transfers.longer_horizon("s", "l")({"s": reading(specs["s"], short), "l": reading(specs["l"], long)})
    )


def test_a_longer_horizon_holds_when_the_short_ones_optima_are_still_about_right():
    verdict, number, _ = horizon(valley, lambda run: valley(run, lr=-6.8, init=-4.1))
    assert verdict == HOLDS
    assert number == (
        "optimum of larger at the long horizon beside the base's at the short one, octaves: lr +0.20, init std -0.10; "
        "2 curves: 2 PASS; most drift larger, lr: +0.10 [+0.10, +0.10] octaves a doubling"
    )


def test_a_longer_horizon_that_moves_all_its_optima_alike_does_not_hold():
    verdict, number, why = horizon(valley, lambda run: valley(run, lr=-8.0, init=-4.1))
    assert verdict == NOT
    assert "octaves: lr -1.00, init std -0.10; 2 curves: 1 PASS, 1 FAIL; most drift larger, lr: -0.50" in number
    assert why.startswith("larger, lr: the optimum moves by -0.50 octaves per doubling")


def test_a_longer_horizon_is_inconclusive_on_the_edge_of_the_grid():
    assert horizon(lambda run: valley(run, init=-8), lambda run: valley(run, lr=-6.8, init=-8))[0] == UNSURE


def test_a_longer_horizon_without_an_optimum_of_the_larger_model_has_no_shift():
    verdict, number, why = horizon(valley, lambda run: math.inf if run.model.n_embd == 64 else valley(run))
    assert verdict == NOT
    assert "octaves: unknown; 2 curves: 2 FAIL" in number
    assert "runs at 4 times the base diverge at every value" in why


@pytest.mark.parametrize(
    "show",
    [
        lambda: control(lambda run: math.inf if run.model.n_exp == 16 else valley(run)),
    ],
)
def test_runs_that_diverge_can_be_drawn(drawings, show):
    drawings()
    show()
