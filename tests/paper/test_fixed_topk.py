import math

import pytest
from made_tables import HOLDS, NOT, UNSURE, log2_lr, read, study, table, valley

from expertp.paper import fixed_topk


def control(loss):
    axes = {"fixed_topk": {"sizes": [4, 16], "sweep": ["log2_lr"]}}
    spec = study("fixed-topk", axes=axes, allow_kappa_change=True)
    return read(fixed_topk.decide({"fixed-topk": table(spec, loss)}))


def diverging(*cells):
    """Return a loss that is infinite at some (experts, log2 lr, seed), and has its optimum at the base's elsewhere."""
    return lambda run: math.inf if (run.model.n_exp, log2_lr(run), run.train.seed) in cells else valley(run, lr=-7.1)


def test_a_control_holds_when_its_optimum_moves():
    answer, number, why = control(lambda run: valley(run, lr_drift=0.5))
    assert answer == HOLDS
    assert number == "drift of the optimum: lr along fixed_topk, +0.50 [+0.50, +0.50] octaves per doubling"
    assert why.startswith("No transfer: zero-shot costs 0.0400 nats at 4 times the base")


def test_a_control_holds_when_larger_models_are_less_stable():
    answer, _, why = control(diverging((16, -6, 0), (16, -6, 2), (16, -5, 0)))
    assert answer == HOLDS
    assert why.startswith(
        "Training becomes unstable: at 4 times the base and 2 times its learning rate, 2 of 3 seeds fail"
    )
    assert "0.5 nats above the best loss" in why
    assert "Optimum: " in why


def test_a_base_that_loses_runs_at_every_learning_rate_has_no_stability_to_lose():
    def loss(run):
        is_lost = run.train.seed == 0 if run.model.n_exp == 4 else log2_lr(run) >= -6
        return math.inf if is_lost else valley(run, lr=-7.1)

    answer, number, _ = control(loss)
    assert answer == UNSURE
    assert "fail" not in number


def test_a_run_that_gets_stuck_has_failed_as_well_as_one_that_diverges():
    def stuck(run):
        is_stuck = run.model.n_exp == 16 and log2_lr(run) == -5 and run.train.seed < 2
        return valley(run, lr=-7.1) + (1.0 if is_stuck else 0.0)

    answer, number, why = control(stuck)
    assert answer == HOLDS
    assert number.endswith("; at 4 times the base and 4 times its learning rate, 2 of 3 seeds fail")
    assert "at 4 times the base and 4 times its learning rate, 2 of 3 seeds fail" in why


@pytest.mark.parametrize(
    ("cells", "expected"),
    [([(16, -5, 0)], NOT), ([(16, -6, 0), (16, -6, 1), (4, -6, 1)], NOT), ([(16, -10, 0), (16, -10, 1)], NOT)],
)
def test_one_run_or_one_below_the_optimum_or_at_the_base_as_well_is_no_loss_of_stability(cells, expected):
    answer, _, why = control(diverging(*cells))
    assert answer == expected
    assert "unstable" not in why


def test_a_control_does_not_hold_when_the_optimum_stays():
    answer, number, why = control(lambda run: valley(run, lr_drift=0.1))
    assert answer == NOT
    assert number == "drift of the optimum: lr along fixed_topk, +0.10 [+0.10, +0.10] octaves per doubling"
    assert why.startswith("The optimum transfers: zero-shot costs 0.0016 nats at 4 times the base")


def test_a_control_is_inconclusive_on_the_edge_of_the_grid():
    assert control(lambda run: valley(run, lr=-12.0))[0] == UNSURE


def test_a_control_all_of_whose_larger_runs_diverge_has_no_drift():
    answer, number, why = control(lambda run: math.inf if run.model.n_exp == 16 else valley(run))
    assert answer == HOLDS
    assert number == "drift of the optimum: lr along fixed_topk, unknown"
    assert why == "No transfer: zero-shot runs diverge at 4 times the base."


def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    control(lambda run: math.inf if run.model.n_exp == 16 else valley(run))
