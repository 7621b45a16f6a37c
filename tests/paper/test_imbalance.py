from made_tables import AT_CENTRE, HOLDS, LR, NOT, STEPS, UNSURE, loads, read, study, table

from expertp.paper import imbalance


def balance(wide, seed_1=None):
    """Judge two studies; the wide model of the second has such loads, its seed 1 others if given."""

    def records(run):
        late = [0.05] * 2 if run.model.n_embd == 32 else wide if run.train.seed == 0 or seed_1 is None else seed_1
        return loads([0.7] * (STEPS - 2) + late) if len(late) == 2 else loads(late)

    axes = {"width": {"sizes": [32, 64], **LR}}
    specs = {name: study(name, axes=axes, **{**AT_CENTRE, "seeds": [0, 1]}) for name in ("short", "long")}
    even = table(specs["short"], records=lambda _: loads([0.7] * (STEPS - 2) + [0.025] * 2))
    return imbalance.decide({"short": even, "long": table(specs["long"], records=records)})


def test_loads_are_balanced_when_they_are_late_in_training():
    found = balance([0.1, 0.08])
    answer, number, why = read(found)
    assert answer == found.paper_answer == HOLDS
    assert "an s.d. of 15.3% of kappa" in why  # sqrt(3/4 / 32) of the 32 tokens that an expert should get
    # Over kappa = 1/4: 0.1, 0.1 in the short study, 0.2 and 0.36 in the long one.
    assert number.endswith(": median over sizes 0.15, largest 0.360 ± 0.000 (long, width 64)")


def test_an_expert_without_a_token_is_no_balance():
    found = balance([0.25, 0.25])
    answer, number, _ = read(found)
    assert answer == NOT
    assert found.paper_answer == HOLDS, "the median over sizes is 0.15 of kappa"
    assert number.endswith("largest 1.000 ± 0.000 (long, width 64)")


def test_a_load_near_the_limit_is_open_as_noise_could_decide_it():
    # Half of kappa is 0.125. Seeds differ by 0.02.
    found = balance([0.11] * 2, seed_1=[0.13] * 2)
    assert found.answer == UNSURE
    assert balance([0.1199] * 2, seed_1=[0.1201] * 2).answer == HOLDS
    assert balance([0.1399] * 2, seed_1=[0.1401] * 2).answer == NOT


def test_by_the_papers_criterion_most_sizes_fall_to_near_zero():
    spec = study("s", axes={"width": {"sizes": [32, 64], **LR}}, **AT_CENTRE)
    for late, answer in ((0.06, HOLDS), (0.07, NOT)):  # kappa is 1/4
        found = imbalance.decide({"s": table(spec, records=lambda _, late=late: loads([0.7] * 6 + [late] * 2))})
        assert (found.answer, found.paper_answer) == (HOLDS, answer)


def test_loads_of_a_run_that_diverges_are_unknown_and_not_those_of_its_start():
    answer, number, why = read(balance([0.05, 0.05], seed_1=[0.01] * 3))
    assert answer == UNSURE
    assert number.endswith(": median over sizes 0.10, largest 0.200 ± 0.000 (long, width 32)")
    assert why.endswith("because a run diverges: long, width 64.")


def test_loads_of_which_all_have_diverged_are_unknown():
    spec = study("s", axes={"width": {"sizes": [32, 64], **LR}}, **AT_CENTRE)
    found = imbalance.decide({"s": table(spec, records=lambda _: loads([0.1] * 3))})
    assert read(found)[:2] == (UNSURE, "late loads are unknown")


def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    balance([0.05, 0.05], seed_1=[0.01] * 3)
