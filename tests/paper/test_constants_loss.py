import pytest
from made_tables import HOLDS, INF, LR, NOT, UNSURE, log2_lr, study, table

from expertp.paper import constants_loss

RATES = [-8, -7, -6, -5, -4]
SEEDS = 8
EVEN = [3.5] * SEEDS
PAPER = [[3.4] * SEEDS, [3.0, 3.1, 3.2, 3.3] * 2, *[EVEN] * 3]
SAME = [EVEN, [3.02, 3.08, 3.2, 3.3] * 2, *[EVEN] * 3]  # mean difference 0.000 at the best learning rate
WORSE = [[3.10, 3.22, 3.34, 3.46] * 2, *[EVEN] * 4]  # the best learning rate is another one
LOST = [INF] * 5 + [3.5] * 3


def decide(ones, paper=PAPER):
    """Judge losses[log2 lr][seed]."""
    retuned = {"axes": ["width"], "retune": {"width": [32]}}
    arms = {
        "tuned": {**retuned, "hps": {"constants": {"router_lr": 0.25}}},
        "all ones": {**retuned, "hps": {"constants": "ones"}},
    }
    hps = {"lr": 2.0**-7, "init_std": 2.0**-4, "constants": "paper"}
    axes = {"width": {"sizes": [32], **LR}}
    spec = study(
        "constants", axes=axes, hps=hps, grids={"log2_lr": RATES}, arms=arms, verdict=None, seeds=list(range(SEEDS))
    )

    def loss(run):
        losses = ones if run.hps.constants == "ones" else paper
        return losses[RATES.index(round(log2_lr(run)))][run.train.seed]

    return constants_loss.decide({"constants": table(spec, loss)})


def test_constants_hold_when_all_ones_has_a_higher_loss_and_is_unstable_above_its_best_learning_rate():
    found = decide([*WORSE[:2], LOST, LOST, LOST])
    assert (found.answer, found.paper_answer) == (HOLDS, HOLDS)
    # 0.10, 0.12, 0.14 and 0.16 more.
    assert "tuned minus paper +0.0000 ± 0.0000; all ones minus paper +0.1300 ± 0.0085; " in found.number
    assert found.number.endswith("unstable run up to 3 octaves above it: paper 0 of 8, tuned 0 of 8, all ones 5 of 8")
    assert found.why == "Best learning rates: paper 2^-7, tuned 2^-7, all ones 2^-8."


def test_a_run_that_ends_far_above_the_best_is_unstable():
    found = decide([*SAME[:2], [3.5, 3.5, *[4.0] * 6], EVEN, EVEN])
    assert found.parts == [None, True]
    assert found.number.endswith("all ones 6 of 8")


@pytest.mark.parametrize(
    ("ones", "parts", "by_paper"),
    [
        (WORSE, [True, False], [True, False]),
        ([*SAME[:2], LOST, LOST, SAME[2]], [None, True], [False, True]),
        # Two seeds are no evidence, however many of their runs diverge.
        ([*SAME[:2], *[[INF, INF, *[3.5] * 6]] * 3], [None, None], [False, True]),
        ([*SAME[:1], [2.9, 2.98, 3.06, 3.14] * 2, *SAME[2:]], [False, False], [False, False]),
    ],
)
def test_loss_and_stability_are_judged_separately(ones, parts, by_paper):
    found = decide(ones)
    assert (found.parts, found.paper_parts) == (parts, by_paper)


def test_a_best_learning_rate_on_the_edge_of_the_grid_does_not_show_stability():
    best_last = [*[EVEN] * 4, [3.3, 3.2, 3.1, 3.0] * 2]
    found = decide(best_last, best_last)
    assert found.parts == [None, None]
    assert found.number.endswith("up to 0 octaves above it: paper 0 of 0, tuned 0 of 0, all ones 0 of 0")


def test_sets_are_compared_as_many_octaves_above_their_best_as_all_grids_cover():
    ones = [WORSE[0], *[EVEN] * 3, [INF] * SEEDS]  # best at 2^-8: its fourth octave is beyond those of the others
    found = decide(ones)
    assert found.number.endswith("up to 3 octaves above it: paper 0 of 8, tuned 0 of 8, all ones 0 of 8")


def test_all_ones_that_diverges_everywhere_is_worse():
    found = decide([LOST] * 5)
    assert found.answer == HOLDS
    assert "all ones minus paper unknown, a run has diverged" in found.number
    assert decide([LOST] * 5, [LOST] * 5).answer == UNSURE


def test_the_answer_is_not_that_of_the_tuned_constants():
    assert decide([*SAME[:1], [2.9, 2.98, 3.06, 3.14] * 2, *SAME[2:]]).answer == NOT


def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    decide([[INF] * SEEDS] * 5)
