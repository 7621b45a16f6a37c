import math

import pytest
from made_tables import AT_CENTRE, HOLDS, LR, NOT, UNSURE, falling, read, study, table

from expertp.paper import fan_in_down


def fan_in(ours, theirs, other=None, spread=0.0):
    """Judge a study whose larger experts are so far off the base, `other` with the paper's constants if given.

    Losses of one seed are higher by `spread` than those of the one before.
    """
    arms = {"fan_in_down": {"axes": ["alpha"]}}
    if other:
        arms["paper"] = {"axes": ["alpha"], "hps": {"constants": "paper"}}
        arms["paper, fan-in"] = {"axes": ["alpha"], "hps": {"constants": "paper", "rules": "fan_in_down"}}
    spec = study("fan-in-down", axes={"alpha": {"sizes": [1, 4], **LR}}, arms=arms, **AT_CENTRE)
    spec = spec.replace(hps=spec.hps.replace(constants={"router_lr": 0.25}))

    def records(run):
        of = other if run.hps.constants == "paper" else (ours, theirs)
        off = of[run.hps.rules == "fan_in_down"]
        beside = spread * run.train.seed
        if run.model.alpha_ffn == 1:
            return falling(beside)
        return falling(until=1) if off == math.inf else falling((1 + off) * (1 + beside) - 1)

    return read(fan_in_down.decide({"fan-in-down": table(spec, records=records)}))


@pytest.mark.parametrize(
    ("ours", "theirs", "answer", "both"),
    [
        (0.01, 0.08, HOLDS, "1% with the rule, 8% with fan-in"),
        (0.01, math.inf, HOLDS, "1% with the rule, inf% with fan-in"),
        (0.01, 0.015, NOT, "1% with the rule, 1.5% with fan-in"),
        (0.03, 0.08, UNSURE, "3% with the rule, 8% with fan-in"),
        (math.inf, math.inf, UNSURE, "inf% with the rule, inf% with fan-in"),
    ],
)
def test_fan_in_and_the_rule_are_judged_by_the_same_bound(ours, theirs, answer, both):
    found, number, _ = fan_in(ours, theirs)
    assert found == answer
    assert number.endswith(f": tuned constants {both}")


def test_a_distance_that_seeds_have_as_well_decides_nothing():
    assert fan_in(0.01, 0.08, spread=0.01)[0] == HOLDS
    assert fan_in(0.01, 0.08, spread=0.05)[0] == UNSURE
    # One set of constants that decides does not speak for another that does not.
    assert fan_in(0.01, 0.08, (0.01, 0.9), spread=0.05)[0] == UNSURE


@pytest.mark.parametrize(
    ("tuned", "paper", "answer"),
    [
        ((0.03, 0.01), (0.01, 0.08), HOLDS),
        ((0.01, 0.08), (0.01, 0.08), HOLDS),
        ((0.01, 0.08), (0.01, 0.012), NOT),
        ((0.03, 0.01), (0.01, 0.012), NOT),
        ((0.03, 0.01), (0.04, 0.08), UNSURE),
    ],
)
def test_constants_with_which_the_rule_keeps_no_collapse_are_not_judged(tuned, paper, answer):
    found, number, _ = fan_in(*tuned, paper)
    assert found == answer
    assert number.count("with the rule") == 2
    assert f"; paper constants {100 * paper[0]:.2g}% with the rule" in number
