import math

import pytest
from runs import tiny_study, write_tokens

from expertp.analysis.judging import tail_of_look
from expertp.analysis.transfer import judge
from expertp.search.design import (
    FIRST_SEEDS,
    first_choice,
    next_cells,
    propose,
    sweep_until_decided,
    whole_choice,
    with_choices,
)
from expertp.study.cells import expand, unique_runs
from expertp.study.spec import AxisSpec, RefinementSpec
from expertp.study.store import open_study, read_study
from expertp.study.table import Result

GRID = (-9, -8.5, -8, -7.5, -7, -6.5, -6, -5.5, -5)
# The base is tuned: the zero-shot value of a tiny study.
TUNED = -7


class Surface:
    """An executor that does not train; the loss is a known function of the learning rate."""

    workers, trains_here = 2, True

    def __init__(self, best=TUNED, moved=0.0, noise=0.001, seconds=1.0, diverges_above=math.inf):
        self.best, self.moved, self.noise, self.seconds = best, moved, noise, seconds
        self.diverges_above = diverges_above

    def describe(self, directory):
        return f"nothing for {directory.path}"

    def run_workers(self, *_):
        raise AssertionError("all results are there")

    def result(self, identity, run):
        is_large = run.model.n_embd > 32
        if is_large and math.log2(run.hps.lr) > self.diverges_above:
            return Result(run, identity, "diverged", 1, seconds=self.seconds)
        distance = math.log2(run.hps.lr) - self.best - (self.moved if is_large else 0.0)
        jitter = self.noise * math.sin(int(identity, 16) % 1000)
        loss = 3.0 - 0.1 * is_large + 0.05 * distance**2 + jitter
        return Result(run, identity, "finished", 3, 3.0, loss, 0.1, 0, self.seconds)


@pytest.fixture
def data(tmp_path):
    return write_tokens(tmp_path / "tokens")


@pytest.fixture
def on(monkeypatch):
    """Take a study's results from a surface."""

    def use(surface):
        monkeypatch.setattr(
            "expertp.study.store.StudyDirectory.result",
            lambda self, identity: surface.result(identity, self.runs[identity]),
        )
        return surface

    return use


def tuned_study(data, grid=GRID, seeds=(0, 1, 2)):
    """Return a tiny study whose zero-shot value is the surface's optimum."""
    study = tiny_study(data, grid=grid, seeds=seeds)
    return study.replace(hps=study.hps.replace(lr=2.0**TUNED))


def adaptive(data, tmp_path, grid=GRID, seeds=(0, 1, 2)):
    return open_study(tmp_path / "study", first_choice(tuned_study(data, grid=grid, seeds=seeds)))


def test_it_begins_with_few_cells_around_the_zero_shot_value(data):
    study = first_choice(tuned_study(data, grid=GRID, seeds=(0, 1, 2)))
    (choice,) = study.chosen
    assert (choice.values, choice.seeds, choice.looks) == ((-8, -7.5, -7, -6.5, -6), (0, 1), 1)
    runs = unique_runs(expand(study))
    assert len({run.model for run in runs}) == 2
    third = [run for run in runs if run.train.seed == 2]
    assert {run.hps.lr for run in third} == {study.hps.lr}, "zero-shot runs have all seeds of the study"
    assert len(runs) == 2 * (5 * FIRST_SEEDS + 1)


def test_a_coarse_grid_gives_three_values_and_the_zero_shot_value_is_always_there(data):
    assert first_choice(tuned_study(data, grid=(-9, -8, -7, -6))).chosen[0].values == (-8, -7, -6)
    assert first_choice(tuned_study(data, grid=(-8.25, -7.5, -6.5))).chosen[0].values == (-8.25, -7.5, -7, -6.5)


def test_a_decided_study_asks_for_nothing(data, tmp_path, on):
    on(Surface())
    directory = adaptive(data, tmp_path)
    table = directory.table()
    assert [each.conclusion for each in judge(table).axes] == ["TRANSFERS"]
    assert propose(table, judge(table)) == []


def test_a_minimum_that_may_lie_beyond_asks_for_the_next_value(data, tmp_path, on):
    surface = on(Surface(moved=0.7, noise=0.03))
    directory = adaptive(data, tmp_path)
    table = directory.table()
    assert judge(table).axes[0].reason.endswith("may lie beyond the values of the grid")
    (proposal,) = propose(table, judge(table))
    assert set(proposal.choice.values) - set(directory.study.chosen[0].values) == {-5.5}
    assert (proposal.runs, proposal.choice.looks, proposal.choice.why) == (
        4,
        2,
        "the minimum may lie beyond the values",
    )
    assert proposal.seconds == pytest.approx(proposal.runs * surface.seconds)


def coarse(data, tmp_path):
    """Return a study on a grid of whole octaves around zero-shot."""
    return open_study(tmp_path / "study", first_choice(tuned_study(data, grid=(-8, -7, -6), seeds=(0, 1, 2))))


def test_values_are_halved_before_a_diverged_one_where_too_few_can_be_fitted(data, tmp_path, on):
    on(Surface(moved=0.9, noise=0.01, diverges_above=-6.5))
    table = coarse(data, tmp_path).table()
    assert judge(table).axes[0].reason.startswith("fewer than three values")
    (proposal,) = propose(table, judge(table))
    assert (proposal.choice.values, proposal.choice.looks) == ((-8, -7, -6.5, -6), 2)
    assert proposal.choice.why.startswith("fewer than three values")


def test_values_are_halved_before_a_diverged_one_where_the_minimum_may_lie_beyond(data, tmp_path, on):
    on(Surface(moved=0.9, noise=0.01, diverges_above=-6.5))
    study = first_choice(tuned_study(data, grid=(-9, -8, -7, -6), seeds=(0, 1, 2)))
    values = (-9, -8, -7, -6)
    study = study.replace(chosen=tuple(each.replace(values=values) for each in study.chosen))
    table = open_study(tmp_path / "study", study).table()
    assert judge(table).axes[0].reason.endswith("may lie beyond the values of the grid")
    (proposal,) = propose(table, judge(table))
    assert proposal.choice.values == (-9, -8, -7, -6.5, -6)


def test_values_that_are_left_are_halved_where_the_half_way_one_diverges_too(data, tmp_path, on):
    surface, proposed = on(Surface(noise=0.0003, diverges_above=-6.9)), []
    ended = sweep_until_decided(coarse(data, tmp_path), surface, on_proposal=lambda *each: proposed.append(each[0]))
    assert [each.choice.values for each in proposed[:2]] == [(-8, -7, -6.5, -6), (-8, -7.5, -7, -6.5, -6)]
    assert len(judge(ended.table()).axes[0].fits) == 2, "three values are fitted"


def test_the_next_cells_are_those_chosen_that_have_not_ended(data, tmp_path, on, monkeypatch):
    surface = on(Surface(noise=0.03))
    directory = adaptive(data, tmp_path)
    monkeypatch.setattr(
        "expertp.study.store.StudyDirectory.result",
        lambda self, identity: (
            Result(self.runs[identity], identity, "missing")
            if self.runs[identity].hps.lr == 2.0**-6.5
            else surface.result(identity, self.runs[identity])
        ),
    )
    (planned,) = next_cells(table := directory.table(), judge(table))
    assert (planned.choice, planned.runs, planned.seconds) == (directory.study.chosen[0], 4, 4 * surface.seconds)


def test_the_next_cells_of_an_open_verdict_are_those_proposed(data, tmp_path, on):
    on(Surface(noise=0.03))
    table = adaptive(data, tmp_path).table()
    assert next_cells(table, judge(table)) == propose(table, judge(table)) != []


def test_noise_asks_for_seeds_that_the_study_does_not_have(data, tmp_path, on):
    on(Surface(noise=0.03))
    directory = adaptive(data, tmp_path, seeds=(0, 1, 5))
    (proposal,) = propose(table := directory.table(), judge(table))
    assert proposal.choice.seeds[:3] == (0, 1, 5)
    assert set(proposal.choice.seeds[3:]) <= set(range(6, 30))


def test_a_base_that_is_not_tuned_asks_for_nothing(data, tmp_path, on):
    on(Surface(best=TUNED - 0.6, noise=0.0003))
    table = adaptive(data, tmp_path).table()
    assert "tune the base first" in judge(table).axes[0].reason
    assert propose(table, judge(table)) == []


def test_a_diverged_zero_shot_run_asks_for_nothing_since_no_seed_makes_it_stable(data, tmp_path, on, monkeypatch):
    surface = on(Surface(noise=0.03))
    is_lost = lambda run: run.model.n_embd > 32 and run.hps.lr == 2.0**TUNED and run.train.seed == 1  # noqa: E731
    monkeypatch.setattr(
        "expertp.study.store.StudyDirectory.result",
        lambda self, identity: (
            Result(run, identity, "diverged", 1)
            if is_lost(run := self.runs[identity])
            else surface.result(identity, run)
        ),
    )
    table = adaptive(data, tmp_path).table()
    assert judge(table).axes[0].reason == "1 of 3 zero-shot runs diverge at 2 times the base"
    assert propose(table, judge(table)) == []


@pytest.mark.heavy
@pytest.mark.parametrize(("moved", "conclusion"), [(0.0, "TRANSFERS"), (0.9, "FAILS")])
def test_it_goes_on_until_the_axis_is_decided_and_writes_down_why(data, tmp_path, on, moved, conclusion):
    surface, proposed = on(Surface(moved=moved, noise=0.05)), []
    directory = adaptive(data, tmp_path)
    ended = sweep_until_decided(directory, surface, on_proposal=lambda *each: proposed.append(each))
    (verdict,) = judge(ended.table()).axes
    assert verdict.conclusion == conclusion
    assert proposed
    assert verdict.tail == pytest.approx(0.025 / (len(proposed) + 1) / (len(proposed) + 2))
    (choice,) = ended.study.chosen
    assert choice == proposed[-1][0].choice
    assert choice.why
    assert read_study(directory.path).study == ended.study


def test_what_does_not_fit_the_budget_is_proposed_and_not_trained(data, tmp_path, on):
    surface, proposed = on(Surface(noise=0.03, seconds=1e6)), []
    directory = adaptive(data, tmp_path)
    assert sweep_until_decided(directory, surface, 60, on_proposal=lambda *each: proposed.append(each)) == directory
    assert [is_chosen for _, is_chosen in proposed] == [False]


def test_time_that_ends_in_the_middle_of_a_look_leaves_the_numbers_of_the_look_before(data, tmp_path, on, monkeypatch):
    surface, known, is_time_over = on(Surface(noise=0.03)), set(), []
    directory = adaptive(data, tmp_path)
    known.update(directory.runs)
    monkeypatch.setattr(
        "expertp.study.store.StudyDirectory.result",
        lambda self, identity: (
            surface.result(identity, self.runs[identity])
            if identity in known
            else Result(self.runs[identity], identity, "missing")
        ),
    )
    surface.run_workers = lambda *_: is_time_over.append(True)
    ended = sweep_until_decided(directory, surface, should_stop=lambda: bool(is_time_over))
    (choice,) = ended.study.chosen
    assert (choice.looks, choice.before) == (2, directory.study.chosen[0])
    assert judge(ended.table()).axes[0].to_dict() == judge(directory.table()).axes[0].to_dict()
    known.update(ended.runs)
    assert judge(ended.table()).axes[0].tail == pytest.approx(0.025 / 6)


def test_nothing_is_added_when_asked_to_stop(data, tmp_path, on):
    surface = on(Surface(noise=0.03))
    directory = adaptive(data, tmp_path)
    assert sweep_until_decided(directory, surface, should_stop=lambda: True) == directory


def test_it_follows_another_sweep_that_has_gone_ahead(data, tmp_path, on):
    surface = on(Surface(noise=0.03))
    directory = adaptive(data, tmp_path)
    ahead = with_choices(directory.study, propose(table := directory.table(), judge(table)))
    open_study(directory.path, ahead)
    ended = sweep_until_decided(directory, surface)
    assert ended.study.chosen[0].looks >= ahead.chosen[0].looks
    assert set(ended.study.chosen[0].seeds) >= set(ahead.chosen[0].seeds)


def test_a_study_that_was_swept_in_full_can_be_decided_further(data, tmp_path, on):
    on(Surface(noise=0.08))
    directory = open_study(tmp_path / "study", tuned_study(data, grid=GRID, seeds=(0, 1, 2)))
    table = directory.table()
    (proposal,) = propose(table, judge(table))
    assert set(proposal.choice.values) >= set(GRID)
    assert set(proposal.choice.seeds) > {0, 1, 2}
    assert proposal.choice.looks == 2
    whole = whole_choice(directory.study)
    assert expand(whole.replace(chosen=None)) == expand(whole)
    (taken_up,) = propose(at := open_study(tmp_path / "study", whole).table(), judge(at))
    assert (taken_up.choice, taken_up.runs) == (proposal.choice, proposal.runs)


def test_a_study_that_was_swept_in_full_keeps_all_its_sizes(data):
    study = tuned_study(data).replace(axes={"width": AxisSpec(sizes=(32, 64, 128))})
    assert {run.model.n_embd for run in unique_runs(expand(whole_choice(study)))} == {32, 64, 128}


def test_a_sweep_of_all_cells_counts_the_looks_of_an_adaptive_one_before(data, tmp_path, on):
    on(Surface(noise=0.03))
    directory = adaptive(data, tmp_path)
    ahead = with_choices(directory.study, propose(table := directory.table(), judge(table)))
    assert open_study(directory.path, ahead).study.chosen[0].looks == 2
    for _ in range(2):  # the second sweep trains nothing, and is no look
        full = open_study(directory.path, tuned_study(data))
        assert judge(full.table()).axes[0].tail == tail_of_look(3)
    assert [each.looks for begin in (first_choice, whole_choice) for each in begin(full.study).chosen] == [3, 3]


def test_seeds_added_by_a_refinement_count_in_its_curve(data, tmp_path, on):
    on(Surface())
    plain = tuned_study(data, seeds=(0, 1))
    seeds = RefinementSpec(axis="width", hp="log2_lr", seeds=(2, 3))
    (verdict,) = judge(open_study(tmp_path / "study", plain.replace(refinements=(seeds,))).table()).axes
    assert verdict.n_seeds == 4
    assert judge(open_study(tmp_path / "plain", plain).table()).axes[0].n_seeds == 2
