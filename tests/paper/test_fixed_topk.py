import math

import pytest
from made_tables import HOLDS, NOT, UNSURE, doublings, log2_lr, study, table, valley

from expertp.paper import fixed_topk


def control(loss, seeds=8):
    axes = {"fixed_topk": {"sizes": [4, 16], "sweep": ["log2_lr"]}}
    spec = study("fixed-topk", axes=axes, allow_kappa_change=True, seeds=list(range(seeds)))
    return fixed_topk.decide({"fixed-topk": table(spec, loss)})


def diverging(*cells, **where):
    """Return a loss that is infinite at some (experts, log2 lr, seed), and has an optimum elsewhere."""
    return lambda run: math.inf if (run.model.n_exp, log2_lr(run), run.train.seed) in cells else valley(run, **where)


# Five of eight seeds.
LOST = [(16, rate, seed) for rate in (-5, -4) for seed in range(5)]


def test_a_control_holds_when_its_optimum_moves_and_training_is_less_stable():
    found = control(diverging(*LOST, lr_drift=0.5))
    assert (found.answer, found.paper_answer) == (HOLDS, HOLDS)
    assert found.number.startswith("drift of the optimum: lr along fixed_topk, +0.50 [")
    assert found.number.endswith("above the best learning rate: 5 of 8 at the largest size, 0 of 8 at the base")
    assert found.why.startswith("The optimum moves: zero-shot costs 0.0400 nats at 4 times the base")
    assert found.why.endswith("Lower stability is shown.")


def test_an_optimum_that_moves_alone_is_half_of_the_claim():
    found = control(lambda run: valley(run, lr_drift=0.5))
    assert (found.parts, found.paper_parts) == ([True, False], [True, False])
    assert (found.answer, found.paper_answer) == (NOT, NOT)
    assert found.why.endswith("Lower stability is not shown.")


def test_lower_stability_alone_is_half_of_the_claim():
    found = control(diverging(*LOST))
    assert (found.parts, found.paper_parts) == ([False, True], [False, True])
    assert (found.answer, found.paper_answer) == (NOT, NOT)
    assert found.why.startswith("The optimum does not move: ")


def test_two_of_four_seeds_are_no_evidence_however_many_of_their_runs_diverge_but_enough_for_the_paper():
    found = control(diverging(*((16, rate, seed) for rate in (-6, -5, -4) for seed in (0, 1))), seeds=4)
    assert "2 of 4 at the largest size, 0 of 4 at the base" in found.number
    assert (found.parts, found.paper_parts) == ([False, None], [False, True])
    assert found.why.endswith("Lower stability is open.")


@pytest.mark.parametrize(
    ("cells", "is_less_stable"), [([(16, -5, 0)], None), ([(16, -10, seed) for seed in range(8)], False)]
)
def test_one_run_or_runs_below_zero_shot_are_no_loss_of_stability(cells, is_less_stable):
    found = control(diverging(*cells))
    assert found.parts == [False, is_less_stable]
    assert found.paper_answer == NOT


def test_an_optimum_that_moves_down_is_no_loss_of_stability():
    def steep(run):
        return valley(run, lr_drift=-0.5) + (1.0 if log2_lr(run) > -6 - doublings(run) / 2 else 0.0)

    found = control(steep)
    assert "8 of 8 at the largest size, 8 of 8 at the base" in found.number
    assert found.parts[1] is None


def test_a_base_that_is_unstable_as_often_has_no_stability_to_lose():
    found = control(diverging(*LOST, *((4, rate, seed) for _, rate, seed in LOST)))
    assert found.parts == [False, None]
    assert found.paper_answer == NOT


def test_a_run_that_gets_stuck_is_unstable_as_well_as_one_that_diverges():
    def stuck(run):
        is_stuck = run.model.n_exp == 16 and log2_lr(run) >= -6 and run.train.seed < 5
        return valley(run) + (1.0 if is_stuck else 0.0)

    found = control(stuck)
    assert "5 of 8 at the largest size" in found.number
    assert found.parts[1] is True


def test_a_control_is_open_on_the_edge_of_the_grid():
    found = control(lambda run: valley(run, lr=-12.0))
    assert found.parts[0] is None
    assert found.paper_parts == [None, False]
    assert found.answer == UNSURE


def test_a_control_all_of_whose_larger_runs_diverge_has_no_drift():
    found = control(lambda run: math.inf if run.model.n_exp == 16 else valley(run))
    assert (found.answer, found.paper_answer) == (HOLDS, HOLDS)
    assert found.number.startswith("drift of the optimum: lr along fixed_topk, unknown; ")
    assert found.why.startswith("The optimum moves: zero-shot runs diverge at 4 times the base.")


def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    control(lambda run: math.inf if run.model.n_exp == 16 else valley(run))
