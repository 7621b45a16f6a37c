import math

import pytest
from runs import tiny_study, write_tokens

from expertp.analysis.transfer import judge
from expertp.search.design import propose, refine
from expertp.study.cells import grid
from expertp.study.spec import RefinementSpec
from expertp.study.store import open_study, read_study
from expertp.study.table import Result


class Surface:
    """An executor that does not train; the loss is a known function of the learning rate."""

    workers = 2

    def __init__(self, best, noise=0.001, seconds=1.0):
        self.best, self.noise, self.seconds = best, noise, seconds

    def run_workers(self, *_):
        raise AssertionError("all results are there")

    def result(self, identity, run):
        distance = math.log2(run.hps.lr) - self.best
        jitter = self.noise * math.sin(int(identity, 16) % 1000)
        return Result(run, identity, "finished", 3, 3.0, 3.0 + 0.05 * distance**2 + jitter, 0.1, 0, self.seconds)


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


def test_an_optimum_on_the_edge_asks_for_a_wider_grid(data, tmp_path, on):
    surface = on(Surface(best=-4))
    directory = open_study(tmp_path / "study", tiny_study(data, grid=(-9, -8, -7, -6), seeds=(0, 1, 2)))
    (proposal,) = propose(directory, directory.table())
    assert (proposal.refinement.axis, proposal.refinement.hp) == ("width", "log2_lr")
    assert min(proposal.refinement.values) > -6
    assert proposal.runs == 2 * 3 * len(proposal.refinement.values)
    assert proposal.seconds == pytest.approx(proposal.runs * surface.seconds)


@pytest.mark.heavy
def test_refining_goes_on_until_the_axis_is_settled_and_says_why(data, tmp_path, on):
    surface, proposed = on(Surface(best=-4)), []
    directory = open_study(tmp_path / "study", tiny_study(data, grid=(-9, -8, -7, -6), seeds=(0, 1, 2)))
    refined = refine(directory, surface, budget_seconds=3600, on_proposal=lambda *each: proposed.append(each))
    assert propose(refined, refined.table()) == []
    assert max(grid(refined.study, "log2_lr", "width")) >= -3
    first, is_chosen = proposed[0]
    assert (first.refinement.values, first.refinement.seeds, first.runs, is_chosen) == ((-5, -4), (), 12, True)
    assert "on the edge of the grid" in first.refinement.why
    assert tuple(each.refinement for each, _ in proposed) == refined.study.refinements
    # It is written down: a later sweep of the plain study file keeps what was added.
    assert read_study(directory.path).study == refined.study
    assert open_study(directory.path, directory.study).study == refined.study


def test_what_does_not_fit_the_budget_is_proposed_and_not_trained(data, tmp_path, on):
    surface, proposed = on(Surface(best=-4, seconds=1e6)), []
    directory = open_study(tmp_path / "study", tiny_study(data, grid=(-9, -8, -7, -6), seeds=(0, 1, 2)))
    assert refine(directory, surface, 60, on_proposal=lambda *each: proposed.append(each)) == directory
    assert [(each.refinement.axis, each.refinement.hp, chosen) for each, chosen in proposed] == [
        ("width", "log2_lr", False)
    ]


def test_a_settled_study_is_left_as_it_is(data, tmp_path, on):
    surface, proposed = on(Surface(best=-7)), []
    directory = open_study(tmp_path / "study", tiny_study(data, grid=(-10, -9, -8, -7, -6, -5, -4), seeds=(0, 1, 2)))
    assert refine(directory, surface, 3600, on_proposal=lambda *each: proposed.append(each)) == directory
    assert proposed == []


def test_where_nothing_has_finished_there_is_no_budget_to_keep(data, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "expertp.study.store.StudyDirectory.result",
        lambda self, identity: Result(self.runs[identity], identity, "diverged", 1),
    )
    directory = open_study(tmp_path / "study", tiny_study(data, seeds=(0, 1, 2)))
    assert propose(directory, directory.table()) == []


def test_training_stops_when_the_budget_is_spent(data, tmp_path, on, monkeypatch):
    """The clock runs faster than the forecast."""
    surface, clock, swept, asked = on(Surface(best=-4)), iter(range(0, 10**6, 40)), [], []
    directory = open_study(tmp_path / "study", tiny_study(data, grid=(-9, -8, -7, -6), seeds=(0, 1, 2)))
    monkeypatch.setattr("expertp.search.design.time.monotonic", lambda: next(clock))

    def stopped_halfway(directory, executor, should_stop, tick):
        swept.append(directory)
        while not should_stop():
            asked.append(None)

    monkeypatch.setattr("expertp.search.design.sweep", stopped_halfway)
    refined = refine(directory, surface, budget_seconds=300)
    assert 0 < len(asked) < 10
    assert swept == [refined]
    assert grid(refined.study, "log2_lr", "width")[-2:] == (-5, -4)
    assert read_study(directory.path) == refined  # the next sweep continues with these runs


def test_nothing_is_added_when_asked_to_stop(data, tmp_path, on):
    surface = on(Surface(best=-4))
    directory = open_study(tmp_path / "study", tiny_study(data, grid=(-9, -8, -7, -6), seeds=(0, 1, 2)))
    assert refine(directory, surface, 3600, should_stop=lambda: True) == directory


def test_seeds_added_by_a_refinement_count_in_its_curve(data, tmp_path, on):
    on(Surface(best=-7))
    plain = tiny_study(data, grid=(-10, -9, -8, -7, -6, -5, -4))
    seeds = RefinementSpec(axis="width", hp="log2_lr", seeds=(2, 3))
    (verdict,) = judge(open_study(tmp_path / "study", plain.replace(refinements=(seeds,))).table()).axes
    assert verdict.n_seeds == 4
    assert judge(open_study(tmp_path / "plain", plain).table()).axes[0].n_seeds == 2
