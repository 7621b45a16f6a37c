import math

import pytest
from made_tables import AT_CENTRE, HOLDS, INF, LR, NOT, UNSURE, read, study, table

from expertp.paper import scaling_fit


def decide(loss):
    axes = {"width": {"sizes": [32, 64, 128], **LR}, "experts": {"sizes": [4, 16], **LR}}
    return read(scaling_fit.decide({"study": table(study(axes=axes, **AT_CENTRE), loss)}))


def by_size(slope):
    return lambda run: 5 + slope * math.log10(run.model.counts().non_embedding_total)


def test_losses_on_a_falling_line_hold():
    answer, number, why = decide(by_size(-0.3))
    assert answer == HOLDS
    assert "without embeddings 1.000" in number
    assert why.startswith("4 models. ")
    assert "0.900" in why


@pytest.mark.parametrize("loss", [by_size(0.3), lambda run: {32: 4, 64: 3, 128: 3.9}[run.model.n_embd]])
def test_losses_that_rise_or_lie_on_no_line_do_not_hold(loss):
    assert decide(loss)[0] == NOT


def test_models_that_diverge_are_left_out_of_the_fit_and_counted():
    def loss(run):
        return INF if run.model.n_exp == 16 and run.train.seed == 2 else by_size(-0.3)(run)

    assert decide(loss)[2].startswith("3 models, without 1 ")


def test_too_few_models_make_no_line():
    answer, number, why = decide(lambda run: INF if run.model.n_embd == 128 or run.model.n_exp == 16 else 3.0)
    assert (answer, number) == (UNSURE, "no fit")
    assert "only 2 models" in why
    assert decide(lambda _: INF)[0] == UNSURE


@pytest.mark.heavy
def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    decide(lambda run: INF if run.model.n_embd == 64 else by_size(-0.3)(run))
