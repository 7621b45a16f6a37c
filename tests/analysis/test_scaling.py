import math

import numpy as np
import pytest
from analysis.surfaces import small_study

from expertp.analysis.scaling import fit_power_law, scaling_fit
from expertp.study.cells import expand, unique_runs
from expertp.study.table import Result, StudyTable

COUNT = {"total": "total", "active": "active", "non_embedding": "non_embedding_total"}


def table_of(study, parameters, exponent=0.08, status="finished"):
    """Return a study whose losses are a power law of one of the counts."""
    results = []
    for run in unique_runs(expand(study)):
        loss = 10 * getattr(run.model.counts(), COUNT[parameters]) ** -exponent
        state = status if run.model.n_embd == 256 else "finished"
        results.append(Result(run, "", state, val_loss=loss if state == "finished" else None))
    return StudyTable.join(study, results)


@pytest.mark.parametrize("parameters", COUNT)
def test_a_power_law_is_found_in_its_own_count(parameters):
    table = table_of(small_study(), parameters)
    fit = scaling_fit(table, parameters, "width", table.own)
    assert (fit.law.exponent, fit.law.amplitude, fit.law.r2) == pytest.approx((0.08, 10, 1))
    assert [point.size.scale for point in fit.points] == [1, 2, 4]
    for point in fit.points:
        assert fit.law(point.parameters) == pytest.approx(point.loss)


def test_noise_lowers_r2():
    x = np.geomspace(1e5, 1e8, 12)
    losses = 5 * x**-0.1 * np.exp(0.1 * np.random.default_rng(0).standard_normal(12))
    law = fit_power_law(x, losses)
    left = np.log(losses) - np.log([law(each) for each in x])
    assert law.r2 == pytest.approx(1 - np.var(left) / np.var(np.log(losses)))
    assert law.r2 < 0.95


def test_two_sizes_are_no_law():
    assert fit_power_law([1e6, 1e6, 2e6], [3.0, 3.1, 2.9]) is None
    table = table_of(small_study(), "total", status="diverged")
    assert scaling_fit(table, "total", "width", table.own) is None


def test_losses_without_variance_have_no_r2():
    assert math.isnan(fit_power_law([1, 2, 3], [2.0, 2.0, 2.0]).r2)
