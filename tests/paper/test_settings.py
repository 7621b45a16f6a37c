"""Verdicts about settings and shapes."""

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
from readings import AT_CENTRE, HOLDS, INF, LR, NOT, STEPS, UNSURE, loads, log2_lr, outcome, reading, study

from expertp.figures.paper.bias_shift import BiasShiftData, Shift
from expertp.paper import settings


def constants(**losses):
    """Judge losses[name][log2 lr][seed] at the learning rates -8, -7, -6."""
    contrasts = {"all ones": {"axes": ["width"], "retune": {"width": [32]}, "hps": {"constants": "ones"}}}
    hps = {"lr": 2.0**-7, "init_std": 2.0**-4, "constants": {"router_lr": 0.25}}
    grids = {"log2_lr": [-8, -7, -6]}
    axes = {"width": {"sizes": [32], **LR}}
    spec = study("constants", axes=axes, hps=hps, grids=grids, contrasts=contrasts, verdict=None)

    def loss(run):
        return losses["ones" if run.hps.constants == "ones" else "tuned"][round(log2_lr(run)) + 8][run.train.seed]

    return reading(spec, loss)


TUNED = [[3.4, 3.4, 3.4], [3.0, 3.1, 3.2], [3.3, 3.3, 3.3]]
SAME = [[3.5, 3.5, 3.5], [3.02, 3.08, 3.2], [3.3, 3.3, 3.3]]  # mean difference 0.000 at the best learning rate


def constants_loss(ones, tuned=TUNED):
    return outcome(settings.constants_loss({"constants": constants(tuned=tuned, ones=ones)}))


def test_constants_hold_when_all_ones_has_a_higher_loss_and_diverges_above_its_optimum():
    # Its best learning rate is another one: 3.10, 3.22, 3.34 there, so 0.10, 0.12, 0.14 more.
    verdict, number, why = constants_loss([[3.10, 3.22, 3.34], [3.5, 3.5, 3.5], [INF, 3.5, 3.5]])
    assert verdict == HOLDS
    assert number == "all ones minus tuned +0.1200 ± 0.0115"
    assert why.endswith("Runs that diverge above it: tuned 0, all ones 1.")


@pytest.mark.parametrize(
    ("ones", "lost"), [([[3.10, 3.22, 3.34], [3.5] * 3, [3.5] * 3], 0), ([*SAME[:2], [INF, 3.3, INF]], 2)]
)
def test_constants_are_inconclusive_when_half_of_the_claim_is_seen(ones, lost):
    verdict, _, why = constants_loss(ones)
    assert verdict == UNSURE
    assert why.endswith(f"tuned 0, all ones {lost}.")


def test_constants_do_not_hold_when_all_ones_has_the_lower_loss_or_is_more_stable():
    verdict, number, _ = constants_loss([[3.5] * 3, [2.9, 2.98, 3.06], [INF, 3.3, 3.3]])
    assert verdict == NOT
    assert number == "all ones minus tuned -0.1200 ± 0.0115"
    assert constants_loss([*SAME[:2], [INF, 3.3, 3.3]], [*TUNED[:2], [INF, 3.3, INF]])[0] == NOT


def test_all_ones_that_diverges_everywhere_is_worse():
    verdict, number, _ = constants_loss([[INF, 3.5, 3.5], [INF, INF, 3.5], [INF] * 3])
    assert verdict == HOLDS
    assert number == "all ones minus tuned unknown, a run has diverged"


def constants_balance(ones, tuned=(0.10, 0.12, 0.14), by_seed=(0.0, 0.0, 0.0)):
    """Judge loads that are late in training, by learning rate; None where a seed diverges. Seeds add to all ones."""
    found = constants(tuned=TUNED, ones=TUNED)

    def records(run):
        is_ones = run.hps.constants == "ones"
        late = (ones if is_ones else tuned)[round(log2_lr(run)) + 8]
        if late is None:
            return loads([0.7] * (3 if run.train.seed == 1 else STEPS))
        return loads([0.7] * (STEPS - 2) + [late + is_ones * by_seed[run.train.seed]] * 2)

    spec = found.study

    def loss(run):
        return TUNED[round(log2_lr(run)) + 8][run.train.seed]

    return outcome(settings.constants_balance({"constants": reading(spec, loss, records)}))


def test_loads_of_all_ones_are_less_even_at_every_learning_rate():
    verdict, number, why = constants_balance((0.30, 0.42, 0.54), (0.10, 0.12, 0.14), (-0.1, 0.0, 0.1))
    assert verdict == HOLDS
    means = "mean over 3 learning rates: tuned 0.120, all ones 0.420"
    assert number == f"late max |Load - kappa|, {means}; all ones minus tuned +0.3000 ± 0.0577"
    assert why == (
        "At the best learning rate of each: tuned 0.120, all ones 0.420. "
        "Learning rates at which it is above half of kappa: tuned 1, all ones 3."
    )


def test_loads_that_differ_by_the_noise_of_seeds_decide_nothing():
    verdict, number, _ = constants_balance((0.30, 0.42, 0.54), (0.3, 0.4, 0.5), (-0.2, 0.0, 0.2))
    assert verdict == UNSURE
    assert "tuned 0.400, all ones 0.420" in number


def test_loads_of_all_ones_that_are_more_even_contradict():
    assert constants_balance((0.01, 0.02, 0.03))[0] == NOT


def test_learning_rates_at_which_a_seed_diverges_are_left_out_of_loads():
    verdict, number, why = constants_balance((0.35, 0.37, None))
    assert verdict == HOLDS
    assert "mean over 2 learning rates: tuned 0.110, all ones 0.360" in number
    assert why.endswith("tuned 0, all ones 2.")
    verdict, number, _ = constants_balance((None, None, None), (None, 0.1, 0.1))
    assert verdict == UNSURE
    assert "mean over 0 learning rates" in number


def decay(base, wide, seeds=(0, 1, 2)):
    """Judge losses[tau][seed] of two sizes, for tau 0, 1 and 3."""
    contrasts = {f"tau {tau}": {"axes": ["width"], "hps": {"weight_decay": 16.0 * tau}} for tau in (1, 3)}
    axes = {"width": {"sizes": [32, 64], **LR}}
    spec = study("weight-decay", axes=axes, contrasts=contrasts, **{**AT_CENTRE, "seeds": list(seeds)})

    def loss(run):
        tau = STEPS * run.hps.lr * run.hps.weight_decay
        return (base if run.model.n_embd == 32 else wide)[int(tau)][run.train.seed]

    return outcome(settings.decay({"weight-decay": reading(spec, loss)}))


NO_GAIN = {0: [3.0, 3.1, 3.2], 1: [3.01, 3.1, 3.21], 3: [3.3, 3.4, 3.5]}


def test_decay_holds_when_no_size_gains_by_it():
    # Sure, but less than 0.01: 0.004, 0.005, 0.006.
    verdict, number, _ = decay(NO_GAIN, {0: [2.9, 3.0, 3.1], 1: [3.0, 3.1, 3.2], 3: [2.896, 2.995, 3.094]})
    assert verdict == HOLDS
    assert number == (
        "loss without decay minus that with the best one, "
        "base, tau 1: -0.0067 ± 0.0033; width 64, tau 3: +0.0050 ± 0.0006"
    )


def test_decay_does_not_hold_when_one_size_gains():
    verdict, number, _ = decay(NO_GAIN, {0: [2.9, 3.0, 3.1], 1: [2.84, 2.93, 3.02], 3: [INF, 2.0, 2.0]})
    assert verdict == NOT
    assert number.endswith("width 64, tau 1: +0.0700 ± 0.0058")


def test_decay_is_inconclusive_when_a_gain_may_be_chance_or_not():
    verdict, number, _ = decay(NO_GAIN, {0: [2.9, 3.0, 3.1], 1: [2.9, 2.8, 3.0], 3: [INF, 2.0, 2.0]})
    assert verdict == UNSURE
    assert number.endswith("width 64, tau 1: +0.1000 ± 0.0577")


def test_a_decay_that_diverges_is_no_gain():
    verdict, number, _ = decay(NO_GAIN, {0: [2.9, 3.0, 3.1], 1: [INF, 2.0, 2.0], 3: [INF, INF, INF]})
    assert verdict == HOLDS
    assert number.endswith("width 64: every decay diverges")


def test_decay_does_not_hold_when_only_training_without_it_diverges():
    verdict, number, _ = decay(NO_GAIN, {0: [INF, 3.0, 3.1], 1: [2.9, 3.0, 3.1], 3: [3.0, 3.1, 3.2]})
    assert verdict == NOT
    assert number.endswith("width 64: only training without decay diverges")


def test_decay_is_inconclusive_with_one_seed():
    verdict, number, _ = decay(NO_GAIN, NO_GAIN, seeds=[0])
    assert verdict == UNSURE
    assert "base, tau 1: -0.0100 (one seed); " in number


def granular(losses, name="granularity", seeds=(0, 1, 2)):
    """Return a study of the same active model in 1, 2 and 4 experts, with losses[active experts][seed]."""
    joint = {
        f"E{4 * n}A{n}": {"models": [{"n_embd": 64, "n_exp": 4 * n, "n_act": n, "alpha_ffn": 4 / n}], **LR}
        for n in (1, 2, 4)
    }
    spec = study(name, joint=joint, **{**AT_CENTRE, "seeds": list(seeds)})
    return reading(spec, lambda run: 4.0 if run.model.n_embd == 32 else losses[run.model.n_act][run.train.seed])


def shaped(experts, alpha):
    """Return a study with losses per seed at twice the base's experts and at twice their size."""
    axes = {"experts": {"sizes": [4, 8], **LR}, "alpha": {"sizes": [1, 2], **LR}}

    def loss(run):
        return (
            experts[run.train.seed]
            if run.model.n_exp == 8
            else alpha[run.train.seed]
            if run.model.alpha_ffn == 2
            else 4
        )

    return reading(study(axes=axes, **AT_CENTRE), loss)


FINER = {1: [3.3, 3.4, 3.5], 2: [3.2, 3.3, 3.4], 4: [3.1, 3.22, 3.34]}
MORE = shaped([3.0, 3.1, 3.2], [3.1, 3.2, 3.36])


def tradeoff(quarter=MORE, twelfth=MORE, finer=FINER):
    readings = {"transfer-quarter": quarter, "transfer-twelfth": twelfth, "granularity": granular(finer)}
    return outcome(settings.tradeoff(readings))


def test_more_experts_are_better_in_all_three_ways():
    verdict, number, _ = tradeoff()
    assert verdict == HOLDS
    assert number == (
        "transfer-quarter: 2x experts ahead of 2x size by +0.1200 ± 0.0200; "
        "transfer-twelfth: 2x experts ahead of 2x size by +0.1200 ± 0.0200; "
        "most beside fewest active experts +0.1800 ± 0.0115"
    )


def test_one_way_in_which_larger_experts_are_better_contradicts():
    verdict, number, _ = tradeoff(twelfth=shaped([3.0, 3.1, 3.2], [2.9, 3.0, 3.1]))
    assert verdict == NOT
    assert "transfer-twelfth: 2x experts ahead of 2x size by -0.1000 ± 0.0000" in number


def test_the_tradeoff_is_inconclusive_within_its_noise():
    verdict, number, _ = tradeoff(quarter=shaped([3.0, 3.1, 3.2], [3.1, 3.1, 3.1]))
    assert verdict == UNSURE
    assert "transfer-quarter: 2x experts ahead of 2x size by +0.0000 ± 0.0577" in number


@pytest.mark.parametrize(
    "changes",
    [
        {"quarter": shaped([3.0, INF, 3.2], [3.1, 3.2, 3.36])},
        {"twelfth": shaped([3.0, 3.1, 3.2], [INF, 3.2, 3.36])},
        {"finer": {**FINER, 4: [3.1, 3.22, INF]}},
    ],
)
def test_a_seed_that_diverges_is_not_left_out_of_the_tradeoff(changes):
    verdict, number, _ = tradeoff(**changes)
    assert verdict == UNSURE
    assert number.count("unknown, a run has diverged") == 1


def tradeoff_long(losses, seeds=(0, 1, 2)):
    return outcome(settings.tradeoff_long({"granularity-long": granular(losses, "granularity-long", seeds)}))


def test_the_long_tradeoff_is_told_by_most_and_fewest_experts():
    assert tradeoff_long(FINER)[:2] == (HOLDS, "most beside fewest active experts +0.1800 ± 0.0115")
    worse = {**FINER, 4: [3.4, 3.52, 3.64]}
    assert tradeoff_long(worse)[:2] == (NOT, "most beside fewest active experts -0.1200 ± 0.0115")
    assert tradeoff_long({**FINER, 4: [3.3, 3.3, 3.6]})[0] == UNSURE
    assert tradeoff_long({**FINER, 1: [INF] * 3})[1] == "most beside fewest active experts unknown, a run has diverged"


def test_models_of_several_active_sizes_are_judged_each_among_its_own():
    joint = {
        f"{n} of {size}": {"models": [{"n_embd": 64, "n_exp": 4 * n, "n_act": n, "alpha_ffn": size / n}], **LR}
        for size in (4, 16)
        for n in (1, 4)
    }
    ends = {(1, 4): 3.3, (4, 4): 3.2, (1, 16): 3.0, (4, 16): 3.1}
    spec = study("granularity-long", joint=joint, **AT_CENTRE)
    found = reading(spec, lambda run: ends.get((run.model.n_act, run.model.n_act * run.model.alpha_ffn), 4.0))
    verdict, number, why = outcome(settings.tradeoff_long({"granularity-long": found}))
    assert verdict == NOT
    gains = "+0.1000 ± 0.0000 at n_act alpha_ffn 4, -0.1000 ± 0.0000 at n_act alpha_ffn 16"
    assert number == f"most beside fewest active experts {gains}"
    assert "The median falls and does not fall at every step" in why


def test_one_seed_has_a_gain_and_no_verdict():
    assert tradeoff_long(FINER, seeds=[0])[:2] == (UNSURE, "most beside fewest active experts +0.2000 (one seed)")


def parameters(loss):
    axes = {"width": {"sizes": [32, 64, 128], **LR}, "experts": {"sizes": [4, 16], **LR}}
    return settings.parameters({"study": reading(study(axes=axes, **AT_CENTRE), loss)})


def by_size(slope):
    return lambda run: 5 + slope * math.log10(run.model.counts().non_embedding_total)


def test_losses_on_a_falling_line_hold():
    verdict, number, why = outcome(parameters(by_size(-0.3)))
    assert verdict == HOLDS
    assert "without embeddings 1.000" in number
    assert why.startswith("4 models. The paper has 0.900")


@pytest.mark.parametrize("loss", [by_size(0.3), lambda run: {32: 4, 64: 3, 128: 3.9}[run.model.n_embd]])
def test_losses_that_rise_or_lie_on_no_line_do_not_hold(loss):
    assert outcome(parameters(loss))[0] == NOT


def test_models_that_diverge_are_left_out_of_the_fit_and_counted():
    def loss(run):
        return INF if run.model.n_exp == 16 and run.train.seed == 2 else by_size(-0.3)(run)

    assert outcome(parameters(loss))[2].startswith("3 models, without 1 that diverge on a seed. ")


def test_too_few_models_make_no_line():
    found = parameters(lambda run: INF if run.model.n_embd == 128 or run.model.n_exp == 16 else 3.0)
    assert outcome(found) == (UNSURE, "no fit", "On all seeds only 2 models finish.")
    assert outcome(parameters(lambda _: INF))[0] == UNSURE


def shifts(last):
    quarter, half = Fraction(1, 4), Fraction(1, 2)
    lines = {half: (0.10, 0.10, 0.101), quarter: (0.05, 0.20, last)}
    return BiasShiftData(
        tuple(
            Shift(kappa, n_exp, int(kappa * n_exp), share, 0.001)
            for kappa, line in lines.items()
            for n_exp, share in zip((8, 16, 32), line, strict=True)
        ),
        100,
    )


@pytest.mark.parametrize(("last", "verdict", "change"), [(0.203, HOLDS, "+1.5%"), (0.19, NOT, "-5.0%")])
def test_bias_shifts_are_level_by_their_last_doubling(monkeypatch, last, verdict, change):
    monkeypatch.setattr(settings.bias_shift, "data", lambda **_: shifts(last))
    found, number, why = outcome(settings.bias_shifts({}))
    assert found == verdict
    assert number == (
        "share exchanged with 32 experts, and its change by their last doubling: 10.1% (+1.0%) at kappa 1/2, "
        f"{last:.1%} ({change}) at kappa 1/4"
    )
    ratio = max(0.2, last) / min(0.2, last)  # with a quarter active, 8 experts have too few
    assert why.endswith(f"the largest share is 1.01 at 1/2, {ratio:.2f} at 1/4 times the least.")


@pytest.mark.parametrize(("first", "last", "verdict"), [(0.5, 0.04, HOLDS), (0.5, 0.08, NOT), (0.02, 0.04, NOT)])
def test_soft_routers_come_closer_on_every_way_and_end_close(monkeypatch, first, last, verdict):
    def comparison(first, last, way):
        return SimpleNamespace(error_of_mean={way.sizes[0]: first, way.sizes[-1]: last}.get)

    errors = [(0.5, 0.01), (first, last), (0.3, 0.02)]
    found = [comparison(*each, way) for each, way in zip(errors, settings.WAYS, strict=True)]
    monkeypatch.setattr(settings, "soft_router", lambda: found)
    monkeypatch.setattr(settings.soft_router_figure, "data", lambda *_: None)
    found, number, _ = outcome(settings.soft_routers({}))
    assert found == verdict
    assert f"constant Ne/N and E, growing N: {first:.1%} to {last:.1%}" in number


@pytest.mark.parametrize(
    "show",
    [
        lambda: constants_loss([[INF] * 3] * 3),
        lambda: constants_balance((None, None, None)),
        lambda: decay(NO_GAIN, {0: [INF] * 3, 1: [INF] * 3, 3: [INF] * 3}),
        lambda: tradeoff(finer={**FINER, 4: [INF] * 3}),
        lambda: parameters(lambda run: INF if run.model.n_embd == 64 else by_size(-0.3)(run)),
    ],
)
def test_runs_that_diverge_can_be_drawn(drawings, show):
    drawings()
    show()
