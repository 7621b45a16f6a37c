import pytest
from made_tables import HOLDS, INF, LR, NOT, UNSURE, log2_lr, study, table

from expertp.paper import constants_loss

RATES = [-8, -7, -6, -5, -4]
PAPER = [[3.4] * 4, [3.0, 3.1, 3.2, 3.3], *[[3.5] * 4] * 3]
SAME = [[3.5] * 4, [3.02, 3.08, 3.2, 3.3], *[[3.5] * 4] * 3]  # mean difference 0.000 at the best learning rate
WORSE = [[3.10, 3.22, 3.34, 3.46], *[[3.5] * 4] * 4]  # the best learning rate is another one
LOST = [INF] * 3 + [3.5]


def decide(ones, paper=PAPER):
    """Judge losses[log2 lr][seed]."""
    retuned = {"axes": ["width"], "retune": {"width": [32]}}
    arms = {
        "tuned": {**retuned, "hps": {"constants": {"router_lr": 0.25}}},
        "all ones": {**retuned, "hps": {"constants": "ones"}},
    }
    hps = {"lr": 2.0**-7, "init_std": 2.0**-4, "constants": "paper"}
    axes = {"width": {"sizes": [32], **LR}}
    spec = study("constants", axes=axes, hps=hps, grids={"log2_lr": RATES}, arms=arms, verdict=None, seeds=[0, 1, 2, 3])

    def loss(run):
        losses = ones if run.hps.constants == "ones" else paper
        return losses[RATES.index(round(log2_lr(run)))][run.train.seed]

    return constants_loss.decide({"constants": table(spec, loss)})


def test_constants_hold_when_all_ones_has_a_higher_loss_and_is_unstable_above_its_best_learning_rate():
    found = decide([*WORSE[:2], LOST, LOST, LOST])
    assert (found.answer, found.paper_answer) == (HOLDS, HOLDS)
    # 0.10, 0.12, 0.14 and 0.16 more.
    assert "tuned minus paper +0.0000 ± 0.0000; all ones minus paper +0.1300 ± 0.0129; " in found.number
    assert found.number.endswith("paper 0 of 12, tuned 0 of 12, all ones 9 of 16")
    assert found.why == "Best learning rates: paper 2^-7, tuned 2^-7, all ones 2^-8."


def test_a_run_that_ends_far_above_the_best_is_unstable():
    found = decide([*SAME[:2], [3.5, 4.0, 4.0, 4.0], [4.0] * 4, [4.0] * 4])
    assert found.parts == [None, True]
    assert found.number.endswith("all ones 11 of 12")


@pytest.mark.parametrize(
    ("ones", "parts", "by_paper"),
    [
        (WORSE, [True, False], [True, False]),
        ([*SAME[:2], LOST, LOST, SAME[2]], [None, True], [False, True]),
        ([*SAME[:4], [INF, INF, 3.5, 3.5]], [None, None], [False, True]),  # 2 of 12 are no evidence
        ([*SAME[:1], [2.9, 2.98, 3.06, 3.14], *SAME[2:]], [False, False], [False, False]),
    ],
)
def test_loss_and_stability_are_judged_separately(ones, parts, by_paper):
    found = decide(ones)
    assert (found.parts, found.paper_parts) == (parts, by_paper)


def test_too_few_runs_above_the_best_learning_rate_do_not_show_stability():
    best_late = [*[[3.5] * 4] * 3, [3.3, 3.2, 3.1, 3.0], [3.4] * 4]
    assert decide(best_late, best_late).parts == [None, None]


def test_all_ones_that_diverges_everywhere_is_worse():
    found = decide([LOST] * 5)
    assert found.answer == HOLDS
    assert "all ones minus paper unknown, a run has diverged" in found.number
    assert decide([LOST] * 5, [LOST] * 5).answer == UNSURE


def test_the_answer_is_not_that_of_the_tuned_constants():
    assert decide([*SAME[:1], [2.9, 2.98, 3.06, 3.14], *SAME[2:]]).answer == NOT


def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    decide([[INF] * 4] * 5)
