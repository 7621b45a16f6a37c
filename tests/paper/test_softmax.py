import math

import pytest
from made_tables import HOLDS, NOT, UNSURE, both_grids, table, valley

from expertp.paper import softmax


def beside(ours, theirs):
    losses = {"softmax": ours, "transfer-quarter": theirs}
    return softmax.decide({name: table(both_grids(name), loss) for name, loss in losses.items()})


@pytest.mark.heavy
def test_a_transfer_is_the_same_when_optima_drift_alike_even_if_they_drift():
    found = beside(lambda run: valley(run, lr_drift=0.5, init_drift=0.1), lambda run: valley(run, lr_drift=0.4))
    assert found.answer == HOLDS
    assert "transfer-quarter, octaves per doubling: " in found.number
    assert found.number.endswith("width, lr +0.10 [+0.10, +0.10]; width, init std +0.10 [+0.10, +0.10]")
    head, lr, _ = found.table
    assert head[2:] == ("drift of softmax", "drift of transfer-quarter", "difference")
    assert lr == ("width", "lr", "+0.50 [+0.50, +0.50]", "+0.40 [+0.40, +0.40]", "+0.10 [+0.10, +0.10]")


@pytest.mark.heavy
def test_a_transfer_is_another_when_one_optimum_drifts_otherwise():
    assert beside(lambda run: valley(run, lr_drift=0.2), lambda run: valley(run, lr_drift=-0.2)).answer == NOT


@pytest.mark.heavy
def test_whether_a_transfer_is_the_same_is_open_on_the_edge_of_a_grid():
    assert beside(lambda run: valley(run, lr=-3.0), valley).answer == UNSURE


@pytest.mark.heavy
def test_whether_a_transfer_is_the_same_is_open_without_an_optimum():
    found = beside(lambda run: math.inf if run.model.n_embd > 32 else valley(run), valley)
    assert found.answer == UNSURE
    assert "width, lr -;" in found.number
