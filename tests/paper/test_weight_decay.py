import math

import pytest
from made_tables import AT_CENTRE, HOLDS, INF, LR, NOT, STEPS, UNSURE, check_drawing, panels, read, study, table

from expertp.paper import weight_decay


def decay(base, wide, seeds=(0, 1, 2)):
    return read(outcome(base, wide, seeds))


def outcome(base, wide, seeds=(0, 1, 2)):
    """Judge losses[tau][seed] of two sizes, for tau 0, 1 and 3."""
    arms = {f"tau {tau}": {"axes": ["width"], "hps": {"weight_decay": 16.0 * tau}} for tau in (1, 3)}
    axes = {"width": {"sizes": [32, 64], **LR}}
    spec = study("weight-decay", axes=axes, arms=arms, **{**AT_CENTRE, "seeds": list(seeds)})

    def loss(run):
        tau = STEPS * run.hps.lr * run.hps.weight_decay
        return (base if run.model.n_embd == 32 else wide)[int(tau)][run.train.seed]

    return weight_decay.decide({"weight-decay": table(spec, loss)})


@pytest.mark.parametrize(
    ("wide", "answer"),
    [
        ({0: [2.9, 3.0, 3.1], 1: [2.5, 2.995, 3.2], 3: [3.0, 3.1, 3.2]}, HOLDS),  # a median of 0.005
        ({0: [2.9, 3.0, 3.1], 1: [3.1, 2.98, 2.7], 3: [3.0, 3.1, 3.2]}, NOT),  # a median of 0.02, and noise
        ({0: [2.9, 3.0, 3.1], 1: [INF, 2.0, 2.0], 3: [INF, 2.0, 2.0]}, HOLDS),
        ({0: [INF, 3.0, 3.1], 1: [2.9, 3.0, 3.1], 3: [INF, 2.0, 2.0]}, NOT),
        ({tau: [INF] * 3 for tau in (0, 1, 3)}, UNSURE),
    ],
)
def test_by_the_papers_criterion_medians_decide(wide, answer):
    assert outcome(NO_GAIN, wide).paper_answer == answer


NO_GAIN = {0: [3.0, 3.1, 3.2], 1: [3.01, 3.1, 3.21], 3: [3.3, 3.4, 3.5]}


def test_decay_holds_when_no_size_gains_by_it():
    # Sure, but less than 0.01: 0.004, 0.005, 0.006.
    answer, number, _ = decay(NO_GAIN, {0: [2.9, 3.0, 3.1], 1: [3.0, 3.1, 3.2], 3: [2.896, 2.995, 3.094]})
    assert answer == HOLDS
    assert number.endswith(": base -0.0067 ± 0.0033 (best tau 1); width 64 +0.0050 ± 0.0006 (best tau 3)")


def test_decay_does_not_hold_when_one_size_gains():
    answer, number, _ = decay(NO_GAIN, {0: [2.9, 3.0, 3.1], 1: [2.84, 2.93, 3.02], 3: [INF, 2.0, 2.0]})
    assert answer == NOT
    assert number.endswith("width 64 +0.0700 ± 0.0058 (best tau 1)")


def test_decay_is_inconclusive_when_a_gain_may_be_chance_or_not():
    answer, number, _ = decay(NO_GAIN, {0: [2.9, 3.0, 3.1], 1: [2.9, 2.8, 3.0], 3: [INF, 2.0, 2.0]})
    assert answer == UNSURE
    assert number.endswith("width 64 +0.1000 ± 0.0577 (best tau 1)")


def test_the_best_of_several_decays_gains_by_having_been_chosen():
    # 0.020, 0.025, 0.030 would be a gain of more than 0.01 if this decay were the only one.
    chosen = {0: [2.9, 3.0, 3.1], 1: [2.88, 2.975, 3.07]}
    assert decay(NO_GAIN, {**chosen, 3: [INF, 2.0, 2.0]})[0] == NOT
    assert decay(NO_GAIN, {**chosen, 3: [2.9, 3.0, 3.1]})[0] == UNSURE


def test_a_decay_that_diverges_is_no_gain():
    answer, number, _ = decay(NO_GAIN, {0: [2.9, 3.0, 3.1], 1: [INF, 2.0, 2.0], 3: [INF, INF, INF]})
    assert answer == HOLDS
    assert number.endswith("every decay diverges")


def test_decay_does_not_hold_when_only_training_without_it_diverges():
    answer, number, _ = decay(NO_GAIN, {0: [INF, 3.0, 3.1], 1: [2.9, 3.0, 3.1], 3: [3.0, 3.1, 3.2]})
    assert answer == NOT
    assert number.endswith("only training without decay diverges")


def test_decay_is_inconclusive_with_one_seed_or_when_all_diverge():
    answer, number, _ = decay(NO_GAIN, NO_GAIN, seeds=[0])
    assert answer == UNSURE
    assert "base -0.0100 (one seed) (best tau 1); " in number
    assert decay(NO_GAIN, {tau: [INF] * 3 for tau in (0, 1, 3)})[0] == UNSURE


def test_no_decay_stands_apart_at_the_left_edge():
    shown = weight_decay.data({"32": [(10.0, [4.0]), (0.1, [3.3, 3.5]), (1, [3.0]), (0, [3.6, 3.8])]})
    assert [(row["tau"], row["median"], row["min"], row["n"]) for row in shown.rows()] == [
        (0, pytest.approx(3.7), 3.6, 2),
        (0.1, pytest.approx(3.4), 3.3, 2),
        (1, 3.0, 3.0, 1),
        (10, 4.0, 4.0, 1),
    ]
    (ax,) = panels(weight_decay.draw, shown)
    labels = [(tick, text.get_text()) for tick, text in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)]
    assert labels == [(0.025, "0"), (0.1, "0.1"), (1, "1"), (10, "10")]
    # Lines of points, and not the one that sets zero off.
    zero, rest = (box.lines[0] for box in ax.containers)
    assert (list(zero.get_xdata()), list(zero.get_ydata())) == ([0.025], pytest.approx([3.7]))
    assert zero.get_linestyle() == "None"
    assert list(rest.get_xdata()) == [0.1, 1, 10]


def test_without_a_run_of_zero_decay_the_axis_has_no_zero():
    (ax,) = panels(weight_decay.draw, weight_decay.data({"32": [(0.1, [3.3]), (10, [3.0])]}))
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0.1", "1", "10"]
    assert ax.get_xlim()[0] > 0.05


def test_diverged_runs_have_a_strip_above_all_losses():
    shown = weight_decay.data({"32": [(0.1, [3.3, 3.4]), (10, [3.9, math.inf])], "64": [(0.1, [3.0])]})
    (ax,) = panels(weight_decay.draw, shown)
    assert shown.rows()[1]["median"] is None
    assert {"1/2", "diverged"} == {text.get_text() for text in ax.texts}
    (border,) = [line.get_ydata()[0] for line in ax.get_lines() if list(line.get_xdata()) == [0, 1]]
    assert 3.4 < border < ax.get_ylim()[1]
    assert max(ax.get_yticks()) < border


@pytest.mark.heavy
def test_the_figure_says_what_it_shows():
    sizes = {"width 32": [(0, [3.5, 3.6]), (0.1, [3.4, 3.5]), (10, [3.9, math.inf])]}
    words = ("width 32", "τ = steps", "n = 2 seeds", "validation loss (nats)", "diverged")
    check_drawing(weight_decay.draw, lambda: weight_decay.data(sizes), 1, words)


def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    decay(NO_GAIN, {0: [INF] * 3, 1: [INF] * 3, 3: [INF] * 3})
