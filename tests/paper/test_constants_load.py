import pytest
from made_tables import HOLDS, LR, NOT, STEPS, UNSURE, check_drawing, loads, log2_lr, panels, read, study, table

from expertp.paper import constants_load

LOSSES = {-8: 3.4, -7: 3.1, -6: 3.3}


def decide(ones, tuned=(0.10, 0.12, 0.14), by_seed=(0.0, 0.0, 0.0), lr=-7.0):
    """Judge late loads at the learning rates -8, -7, -6; None where a seed diverges. `by_seed` is added to all ones."""
    arms = {"all ones": {"axes": ["width"], "retune": {"width": [32]}, "hps": {"constants": "ones"}}}
    hps = {"lr": 2.0**lr, "init_std": 2.0**-4, "constants": "paper"}
    axes = {"width": {"sizes": [32], **LR}}
    spec = study("constants", axes=axes, hps=hps, grids={"log2_lr": [-8, -7, -6]}, arms=arms, verdict=None)

    def records(run):
        is_ones = run.hps.constants == "ones"
        late = (ones if is_ones else tuned)[int(log2_lr(run)) + 8]
        if late is None:
            return loads([0.7] * (3 if run.train.seed == 1 else STEPS))
        return loads([0.7] * (STEPS - 2) + [late + is_ones * by_seed[run.train.seed]] * 2)

    return constants_load.decide({"constants": table(spec, lambda run: LOSSES.get(log2_lr(run), 3.0), records)})


def judge(*args):
    return read(decide(*args))


def test_by_the_papers_criterion_loads_are_less_even_at_every_learning_rate():
    assert decide((0.11, 0.13, 0.15), by_seed=(-0.2, 0.0, 0.2)).paper_answer == HOLDS
    assert decide((0.11, 0.11, 0.55)).paper_answer == NOT
    assert decide((None, 0.13, 0.15)).paper_answer == HOLDS
    assert decide((None, None, None)).paper_answer == UNSURE


def test_loads_of_all_ones_are_less_even_at_every_learning_rate():
    answer, number, why = judge((0.30, 0.42, 0.54), (0.10, 0.12, 0.14), (-0.1, 0.0, 0.1))
    assert answer == HOLDS
    assert "each set: paper 0.120 (2^-7), all ones 0.420 (2^-7); all ones minus paper +0.3000 ± 0.0577" in number
    assert why.startswith("Mean over the 3 learning rates at which no run diverges: paper 0.120, all ones 0.420.")
    assert why.endswith("exceeds half of kappa: paper 1, all ones 3.")


def test_loads_that_differ_by_the_noise_of_seeds_decide_nothing():
    answer, number, _ = judge((0.30, 0.42, 0.54), (0.3, 0.4, 0.5), (-0.2, 0.0, 0.2))
    assert answer == UNSURE
    assert "paper 0.400 (2^-7), all ones 0.420 (2^-7)" in number


def test_loads_of_all_ones_that_are_more_even_contradict():
    assert judge((0.01, 0.02, 0.03))[0] == NOT


def test_learning_rates_at_which_a_seed_diverges_are_left_out_of_loads():
    answer, number, why = judge((0.35, 0.37, None))
    assert answer == HOLDS
    assert why.startswith("Mean over the 2 learning rates at which no run diverges: paper 0.110, all ones 0.360.")
    assert why.endswith("paper 0, all ones 2.")
    answer, number, why = judge((None, None, None), (None, 0.1, 0.1))
    assert answer == UNSURE
    assert "paper 0.100 (2^-7), all ones diverges (2^-7); all ones minus paper unknown, a run has diverged" in number
    assert "Mean over the 0 learning rates at which no run diverges: unknown." in why


SETS = {
    "tuned": {
        -6.0: {0: loads([0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.3, 0.1])},
        -7.0: {0: loads([0.2] * 8), 1: loads([0.4] * 8)},
    },
    "all ones": {-7.0: {0: loads([0.7] * 8)}, -6.0: {0: loads([0.7] * 7)}},
}


def test_loads_are_listed_by_set_rate_and_step():
    shown = constants_load.data({**SETS, "paper": {-7.0: {0: []}}}, 0.75)
    assert shown.sets["paper"] == {}
    rows = shown.rows()
    assert len(rows) == 8 + 8 + 8 + 7
    assert rows[9] == {
        "constants": "tuned", "log2_lr": -6.0, "step": 2, "max_load_deviation": 0.5,
        "running_mean": pytest.approx(0.5), "seeds": 1,
    }  # fmt: skip
    assert rows[0]["max_load_deviation"] == pytest.approx(0.3)
    assert rows[0]["seeds"] == 2


def test_a_rate_has_one_look_in_all_panels_and_the_range_is_the_whole_one():
    tuned, ones = panels(constants_load.draw, constants_load.data(SETS, 0.75))
    looks = [
        {line.get_label(): (line.get_color(), line.get_linestyle()) for line in ax.get_lines()} for ax in (tuned, ones)
    ]
    for label in ("log₂ lr −7", "log₂ lr −6"):
        assert looks[0][label] == looks[1][label]
    assert looks[0]["log₂ lr −7"] != looks[0]["log₂ lr −6"]
    assert tuned.get_ylim() == ones.get_ylim() == (0, 0.75)
    assert constants_load.DIVERGED in looks[1]
    assert constants_load.DIVERGED not in looks[0]


@pytest.mark.heavy
def test_the_figure_has_a_panel_per_set():
    words = ("tuned (n = 1–2 seeds)", "all ones", "log₂ lr −6", "Load − κ", "diverges", "no run yet")
    check_drawing(constants_load.draw, lambda: constants_load.data({**SETS, "paper": {}}, 0.75), 3, words)


def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    decide((None, None, None))


def test_the_studys_own_learning_rate_need_not_be_on_the_grid():
    found = decide((0.30, 0.42, 0.54), lr=-6.5)
    assert found.answer == HOLDS
    assert "paper 0.140 (2^-6.5), all ones 0.540 (2^-6.5)" in found.number
