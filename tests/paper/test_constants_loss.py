import pytest
from made_tables import HOLDS, INF, LR, NOT, UNSURE, log2_lr, read, study, table

from expertp.paper import constants_loss

TUNED = [[3.4, 3.4, 3.4], [3.0, 3.1, 3.2], [3.3, 3.3, 3.3]]
SAME = [[3.5, 3.5, 3.5], [3.02, 3.08, 3.2], [3.3, 3.3, 3.3]]  # mean difference 0.000 at the best learning rate


def decide(ones, tuned=TUNED):
    """Judge losses[log2 lr][seed] at the learning rates -8, -7, -6."""
    arms = {"all ones": {"axes": ["width"], "retune": {"width": [32]}, "hps": {"constants": "ones"}}}
    hps = {"lr": 2.0**-7, "init_std": 2.0**-4, "constants": {"router_lr": 0.25}}
    axes = {"width": {"sizes": [32], **LR}}
    spec = study("constants", axes=axes, hps=hps, grids={"log2_lr": [-8, -7, -6]}, arms=arms, verdict=None)

    def loss(run):
        return (ones if run.hps.constants == "ones" else tuned)[round(log2_lr(run)) + 8][run.train.seed]

    return read(constants_loss.decide({"constants": table(spec, loss)}))


def test_constants_hold_when_all_ones_has_a_higher_loss_and_diverges_above_its_optimum():
    # Its best learning rate is another one: 3.10, 3.22, 3.34 there, so 0.10, 0.12, 0.14 more.
    answer, number, why = decide([[3.10, 3.22, 3.34], [3.5, 3.5, 3.5], [INF, 3.5, 3.5]])
    assert answer == HOLDS
    assert number.endswith("all ones minus tuned +0.1200 ± 0.0115")
    assert why.endswith("tuned 0, all ones 1.")


@pytest.mark.parametrize(
    ("ones", "lost"), [([[3.10, 3.22, 3.34], [3.5] * 3, [3.5] * 3], 0), ([*SAME[:2], [INF, 3.3, INF]], 2)]
)
def test_constants_are_inconclusive_when_half_of_the_claim_is_seen(ones, lost):
    answer, _, why = decide(ones)
    assert answer == UNSURE
    assert why.endswith(f"tuned 0, all ones {lost}.")


def test_constants_do_not_hold_when_all_ones_has_the_lower_loss_or_is_more_stable():
    answer, number, _ = decide([[3.5] * 3, [2.9, 2.98, 3.06], [INF, 3.3, 3.3]])
    assert answer == NOT
    assert number.endswith("all ones minus tuned -0.1200 ± 0.0115")
    assert decide([*SAME[:2], [INF, 3.3, 3.3]], [*TUNED[:2], [INF, 3.3, INF]])[0] == NOT


def test_all_ones_that_diverges_everywhere_is_worse():
    answer, number, _ = decide([[INF, 3.5, 3.5], [INF, INF, 3.5], [INF] * 3])
    assert answer == HOLDS
    assert number.endswith("all ones minus tuned unknown, a run has diverged")


def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    decide([[INF] * 3] * 3)
