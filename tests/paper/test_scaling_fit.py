import math

import pytest
from made_tables import AT_CENTRE, BASE, HOLDS, INF, LR, NOT, UNSURE, study, table

from expertp.paper import scaling_fit


def decide(loss, n_act=2):
    axes = {"width": {"sizes": [32, 64, 128], **LR}, "experts": {"sizes": [8, 32], **LR}}
    base = {**BASE, "n_exp": 8, "n_act": n_act}
    deep = {"base": {**base, "n_layer": 4}, "axes": {"depth": {"sizes": [4, 8], **LR}}}
    tables = {
        "quarter": table(study("quarter", base=base, axes=axes, **AT_CENTRE), loss),
        "depth": table(study("depth", **deep, **AT_CENTRE), loss),
    }
    return scaling_fit.decide(tables)


def by_size(slope, noise=0.0, offset=0.0):
    """Return a loss on a line; noise moves models off it, seed by seed and size by size."""

    def loss(run):
        away = noise * math.sin(17 * run.model.n_embd + 5 * run.model.n_exp + run.model.n_layer + run.train.seed)
        is_single = run.model.n_act == 1
        return 5 + slope * math.log10(run.model.counts().non_embedding_active) + away + offset * is_single

    return loss


def test_losses_on_a_falling_line_hold():
    found = decide(by_size(-0.3, noise=0.005))
    assert (found.answer, found.paper_answer) == (HOLDS, HOLDS)
    assert found.number.endswith("; active, without embeddings 1.000")
    assert found.why.startswith("6 models. ")
    assert "0.900" in found.why
    assert found.why.endswith("all models have two or more active experts, or all have one.")


def test_losses_that_rise_do_not_hold_but_lie_on_a_line():
    found = decide(by_size(0.3, noise=0.005))
    assert (found.answer, found.paper_answer) == (NOT, HOLDS)


def test_losses_on_no_line_do_not_hold():
    found = decide(lambda run: {32: 4, 64: 3, 128: 3.9}[run.model.n_embd] + 0.001 * run.train.seed * run.model.n_layer)
    assert (found.answer, found.paper_answer) == (NOT, NOT)


def test_a_line_on_which_seeds_disagree_is_open():
    def loss(run):
        return by_size(-0.3)(run) + (0.3 * (run.model.n_embd == 64) if run.train.seed == 0 else 0.0)

    assert decide(loss).answer == UNSURE


def test_an_offset_stands_for_models_with_one_active_expert():
    found = decide(by_size(-0.3, offset=0.5), n_act=1)
    assert found.paper_answer == NOT
    assert found.why.split("one active expert: ")[1].endswith("active, without embeddings 1.000.")


def test_models_that_diverge_are_left_out_of_the_fit_and_counted():
    def loss(run):
        return INF if run.model.n_exp == 32 and run.train.seed == 2 else by_size(-0.3)(run)

    assert decide(loss).why.startswith("5 models, without 1 ")


def test_too_few_models_make_no_line():
    found = decide(lambda run: 3.0 if run.model.n_layer == 4 else INF)
    assert (found.answer, found.paper_answer, found.number) == (UNSURE, UNSURE, "no fit")
    assert "only 1 models" in found.why
    assert decide(lambda _: INF).answer == UNSURE


@pytest.mark.heavy
def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    decide(lambda run: INF if run.model.n_embd == 64 else by_size(-0.3)(run))
