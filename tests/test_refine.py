import math

import pytest
from runs import tiny_study, write_tokens

from expertp.refine import propose, refine
from expertp.study_store import Result, open_study, read_study


class Surface:
    """An executor that trains nothing: it writes results whose loss is a known function of the learning rate."""

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
    """Have a study's results come from a surface."""

    def use(surface):
        monkeypatch.setattr(
            "expertp.study_store.StudyDirectory.result",
            lambda self, identity: surface.result(identity, self.runs[identity]),
        )
        return surface

    return use


def test_an_optimum_on_the_edge_asks_for_a_wider_grid(data, tmp_path, on):
    surface = on(Surface(best=-4))
    directory = open_study(tmp_path / "study", tiny_study(data, grid=(-9, -8, -7, -6), seeds=(0, 1, 2)))
    (proposal,) = propose(directory, directory.results())
    assert (proposal.cells.axis, proposal.cells.hp) == ("width", "log2_lr")
    assert min(proposal.cells.values) > -6
    assert proposal.runs == 2 * 3 * len(proposal.cells.values)
    assert proposal.seconds == pytest.approx(proposal.runs * surface.seconds)


def test_refining_goes_on_until_the_axis_is_settled_and_says_why(data, tmp_path, on):
    surface, said = on(Surface(best=-4)), []
    directory = open_study(tmp_path / "study", tiny_study(data, grid=(-9, -8, -7, -6), seeds=(0, 1, 2)))
    refined = refine(directory, surface, budget_seconds=3600, say=said.append)
    assert propose(refined, refined.results()) == []
    assert max(refined.study.grid("log2_lr", "width")) >= -3
    assert said[:2] == [
        "adding: width, log2_lr: log2_lr -5, -4 (12 runs, about 0.1 min)",
        "  because the optimum at 1 and 2 times the base lies on the edge of the grid, which is only a bound",
    ]
    # It is written down: a later sweep of the plain study file keeps what was added.
    assert read_study(directory.path).study == refined.study
    assert open_study(directory.path, directory.study).study == refined.study


def test_what_does_not_fit_the_budget_is_said_and_not_trained(data, tmp_path, on):
    surface, said = on(Surface(best=-4, seconds=1e6)), []
    directory = open_study(tmp_path / "study", tiny_study(data, grid=(-9, -8, -7, -6), seeds=(0, 1, 2)))
    assert refine(directory, surface, budget_seconds=60, say=said.append) == directory
    assert len(said) == 2
    assert said[0].startswith("over the budget: width, log2_lr: ")


def test_a_settled_study_is_left_as_it_is(data, tmp_path, on):
    surface, said = on(Surface(best=-7)), []
    directory = open_study(tmp_path / "study", tiny_study(data, grid=(-10, -9, -8, -7, -6, -5, -4), seeds=(0, 1, 2)))
    assert refine(directory, surface, budget_seconds=3600, say=said.append) == directory
    assert said == []


def test_where_nothing_has_finished_there_is_no_budget_to_keep(data, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "expertp.study_store.StudyDirectory.result",
        lambda self, identity: Result(self.runs[identity], identity, "diverged", 1),
    )
    directory = open_study(tmp_path / "study", tiny_study(data, seeds=(0, 1, 2)))
    assert propose(directory, directory.results()) == []


def test_training_stops_when_the_budget_is_spent(data, tmp_path, on, monkeypatch):
    """The forecast said 0.1 min; the clock says otherwise."""
    surface, said, clock = on(Surface(best=-4)), [], iter(range(0, 10**6, 40))
    directory = open_study(tmp_path / "study", tiny_study(data, grid=(-9, -8, -7, -6), seeds=(0, 1, 2)))
    monkeypatch.setattr("expertp.refine.time.monotonic", lambda: next(clock))
    asked = []

    def stopped_halfway(directory, executor, should_stop, tick):
        while not should_stop():
            asked.append(None)
        unfinished = [Result(run, identity, "unfinished", 1) for identity, run in directory.runs.items()]
        return unfinished[:5]

    monkeypatch.setattr("expertp.refine.run_study", stopped_halfway)
    refine(directory, surface, budget_seconds=300, say=said.append)
    assert 0 < len(asked) < 10
    assert said[-1] == "stopped with 5 of these runs not finished; the same command goes on with them"
