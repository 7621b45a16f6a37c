"""Cost of runs from their shapes."""

import pytest
from runs import tiny_study

from expertp.study.cells import expand, unique_runs
from expertp.study.cost import cost_of_runs, disk_bytes


@pytest.fixture
def runs(tmp_path):
    return unique_runs(expand(tiny_study(tmp_path)))  # no data there: the cost needs none


def test_a_study_costs_what_its_runs_cost_together(runs):
    found = cost_of_runs(runs)
    assert [(each.model.n_embd, each.runs) for each in found.models] == [(32, 6), (64, 6)]
    assert (found.runs, found.tokens) == (12, 12 * 3 * 128)
    assert found.flops == sum(3 * 128 * run.model.flops_per_token() for run in runs)
    assert found.seconds_at(2.0) == found.flops / 2


def test_the_disk_holds_records_and_the_checkpoints_of_active_runs(runs):
    one, two = (disk_bytes(runs, workers) for workers in (1, 2))
    assert one > 12 * 3 * 200
    assert two - one == 24 * max(run.model.counts().total for run in runs)
