import math

import pytest
from made_tables import AT_CENTRE, HOLDS, LR, NOT, UNSURE, falling, study, table

from expertp.paper import fan_in_down


def fan_in(rule, other, tuned=None, noise=0.0):
    """Judge a study whose larger experts are so far off the base; `tuned` has both with the tuned constants if given.

    With noise, the distance of fan-in differs by that from seed to seed.
    """
    arms = {"fan_in_down": {"axes": ["alpha"]}}
    if tuned:
        constants = {"router_lr": 0.25}
        arms["tuned"] = {"axes": ["alpha"], "hps": {"constants": constants}}
        arms["tuned, fan-in"] = {"axes": ["alpha"], "hps": {"constants": constants, "rules": "fan_in_down"}}
    spec = study("fan-in-down", axes={"alpha": {"sizes": [1, 4], **LR}}, arms=arms, **AT_CENTRE)

    def records(run):
        of = (rule, other) if run.hps.constants == "ones" else tuned
        is_fan_in = run.hps.rules == "fan_in_down"
        off = of[is_fan_in]
        if run.model.alpha_ffn == 1:
            return falling()
        by = noise * (run.train.seed - 1) if is_fan_in else 0.0
        return falling(until=1) if off == math.inf else falling(off + by)

    return fan_in_down.decide({"fan-in-down": table(spec, records=records)})


@pytest.mark.parametrize(
    ("rule", "other", "answer", "by_paper"),
    [
        (0.01, 0.08, HOLDS, HOLDS),
        (-0.01, 0.015, HOLDS, NOT),  # worse, but still within 2%
        (0.03, -0.08, HOLDS, NOT),  # worse, but the rule leaves the base as well
        (0.03, 0.01, NOT, NOT),
        (0.01, math.inf, HOLDS, HOLDS),
        (math.inf, 0.01, NOT, NOT),
        (math.inf, math.inf, UNSURE, NOT),
    ],
)
def test_fan_in_breaks_the_collapse_if_its_gap_is_larger(rule, other, answer, by_paper):
    found = fan_in(rule, other)
    assert (found.answer, found.paper_answer) == (answer, by_paper)


def test_both_gaps_are_told_with_their_difference_and_window():
    found = fan_in(0.01, -0.08)
    assert found.number == (
        "gap between base and largest size: all ones constants +1% with the rule, -8% with fan-in "
        "(|gap| +7 ± 0 percentage points)"
    )
    assert "largest difference to the base is 1% with the rule and 8% with fan-in." in found.why
    assert "The window ends at step 5." in found.why


def test_a_difference_that_seeds_have_as_well_decides_nothing():
    assert fan_in(0.01, 0.03, noise=0.001).answer == HOLDS
    assert fan_in(0.01, 0.03, noise=0.02).answer == UNSURE


@pytest.mark.parametrize(("tuned", "answer"), [((0.03, 0.01), HOLDS), ((0.01, 0.08), HOLDS)])
def test_other_constants_are_shown_and_not_judged(tuned, answer):
    found = fan_in(0.01, 0.08, tuned)
    assert found.answer == answer
    assert f"; tuned constants {100 * tuned[0]:+.2g}% with the rule, {100 * tuned[1]:+.2g}% with fan-in" in found.number
    assert [each.name for each in found.drawings] == [
        "collapse-expertp", "collapse-fan_in_down", "collapse-tuned", "collapse-tuned,-fan-in"
    ]  # fmt: skip
