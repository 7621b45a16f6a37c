import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from expertp.model.balance import bias_update, load_deviation


@pytest.mark.heavy
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=16).filter(lambda loads: sum(loads) > 0), st.integers(1, 4))
def test_proportional_and_sign_updates_keep_the_mean_bias(loads, n_act):
    for rule in ("proportional", "sign"):
        change = bias_update(torch.tensor(loads), min(n_act, len(loads)), 0.1, rule)
        assert abs(change.mean().item()) < 1e-12


def test_the_update_is_the_papers():
    # Load = (6, 2, 0, 0)/8 with kappa = 1/4, eta = 0.1
    change = bias_update(torch.tensor([6, 2, 0, 0]), 1, 0.1, "proportional")
    torch.testing.assert_close(change, -0.1 * torch.tensor([0.5, 0.0, -0.25, -0.25], dtype=torch.float64))


def test_the_sign_update_pushes_by_one_size_and_is_centred():
    change = bias_update(torch.tensor([6, 2, 0, 0]), 1, 0.1, "sign")
    torch.testing.assert_close(change, -0.1 * torch.tensor([1.25, 0.25, -0.75, -0.75], dtype=torch.float64))


@pytest.mark.parametrize("rule", ["aux_loss", "none"])
def test_other_rules_leave_the_biases_alone(rule):
    assert not bias_update(torch.tensor([6, 2, 0, 0]), 1, 0.1, rule).any()


def test_loads_of_several_layers_at_once():
    loads = torch.tensor([[4, 4, 4, 4], [16, 0, 0, 0]])
    torch.testing.assert_close(load_deviation(loads, 1)[1, 0], torch.tensor(0.75, dtype=torch.float64))
    assert not load_deviation(loads, 1)[0].any()
