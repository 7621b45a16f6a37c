import math

from made_tables import HOLDS, LR, NOT, UNSURE, study, table, valley

from expertp.paper import softmax


def beside(ours, theirs=valley):
    losses = {"softmax": ours, "transfer-quarter": theirs}
    axes = {"width": {"sizes": [32, 64, 128], **LR}}
    return softmax.decide({name: table(study(name, axes=axes), loss) for name, loss in losses.items()})


def test_softmax_gates_transfer_on_their_own():
    found = beside(lambda run: valley(run, lr_drift=0.1), lambda run: valley(run, lr_drift=-0.4))
    assert (found.answer, found.paper_answer) == (HOLDS, HOLDS)
    assert found.number.startswith("cost of zero-shot: lr along width, 0.0004 [")
    assert found.why.endswith(
        "Drift of the optimum minus that of transfer-quarter, octaves per doubling: width, lr +0.50 [+0.50, +0.50]."
    )


def test_softmax_gates_whose_optimum_moves_do_not_hold_even_if_sigmoid_gates_move_alike():
    found = beside(lambda run: valley(run, lr_drift=0.5), lambda run: valley(run, lr_drift=0.5))
    assert (found.answer, found.paper_answer) == (NOT, NOT)
    assert "octaves per doubling: width, lr +0.00 [" in found.why


def test_softmax_gates_are_open_on_the_edge_of_a_grid():
    assert beside(lambda run: valley(run, lr=-3.0)).answer == UNSURE


def test_softmax_gates_without_an_optimum_have_no_drift():
    found = beside(lambda run: math.inf if run.model.n_embd > 32 else valley(run))
    assert found.answer == NOT
    assert found.why.endswith("width, lr -.")
