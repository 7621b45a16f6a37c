import itertools

import pytest
import torch

from expertp.errors import InputError
from expertp.theory.gates import balance, load_of, open_gates, require_whole
from expertp.theory.problem import Problem

E, P = 8, 5
SOFT, SOFT0 = Problem(gate="soft"), Problem(gate="soft0")
HARD = Problem(gate="hard", kappa=0.375, eta_b=0.1)


def drawn(*lead, seed=0, scale=3.0):
    """Return routers [..., E, P] and biases [..., E]."""
    rng = torch.Generator().manual_seed(seed)
    p = scale * torch.randn(*lead, E, P, generator=rng, dtype=torch.float64)
    return p, 0.3 * torch.randn(*lead, E, generator=rng, dtype=torch.float64)


def chosen(score, n_active):
    """Return which experts have the largest score, datum by datum."""
    mask = torch.zeros_like(score)
    for datum in range(score.shape[1]):
        for expert in sorted(range(len(score)), key=lambda k: score[k, datum], reverse=True)[:n_active]:
            mask[expert, datum] = 1
    return mask


@pytest.mark.parametrize("p", [drawn()[0], torch.zeros(E, P, dtype=torch.float64)])
def test_a_hard_gate_picks_exactly_its_share_for_every_datum(p):
    for b in (drawn()[1], torch.zeros(E, dtype=torch.float64)):
        mask = open_gates(HARD, p, b).mask
        assert mask.sum(0).tolist() == [3] * P
        assert set(mask.unique().tolist()) == {0, 1}


def test_a_hard_gate_chooses_by_its_opening_and_the_bias():
    p, b = drawn()
    gate = open_gates(HARD, p, b)
    assert torch.equal(gate.mask, chosen(torch.sigmoid(p) + b[:, None], 3))
    # Here the other ways to read the rule choose others.
    assert not torch.equal(gate.mask, chosen(p + b[:, None], 3))
    assert not torch.equal(gate.mask, chosen(p, 3))


def test_a_hard_gate_opens_by_the_router_alone_and_only_where_it_chose():
    p, b = drawn()
    gate = open_gates(HARD, p, b)
    opening = torch.sigmoid(p)
    torch.testing.assert_close(gate.sigma, gate.mask * opening, rtol=0, atol=0)
    torch.testing.assert_close(gate.slope, gate.mask * opening * (1 - opening), rtol=0, atol=1e-15)
    assert ((gate.slope == 0) == (gate.mask == 0)).all()


def test_soft_gates_open_with_or_without_the_bias():
    p, b = drawn()
    assert torch.equal(open_gates(SOFT, p, b).sigma, torch.sigmoid(p + b[:, None]))
    without = open_gates(SOFT0, p, b)
    assert torch.equal(without.sigma, torch.sigmoid(p))
    assert torch.equal(without.slope, open_gates(SOFT0, p, b + 1).slope)
    assert without.mask.all()


@pytest.mark.parametrize("problem", [SOFT, SOFT0, HARD])
def test_the_slope_is_the_gradient_and_none_passes_through_the_choice(problem):
    p, b = (each.requires_grad_() for each in drawn())
    gate = open_gates(problem, p, b)
    by_p, by_b = torch.autograd.grad(gate.sigma.sum(), (p, b), allow_unused=True)
    torch.testing.assert_close(by_p, gate.slope, rtol=0, atol=1e-15)
    if problem is SOFT:
        torch.testing.assert_close(by_b, gate.slope.sum(1), rtol=0, atol=1e-15)
    else:
        assert by_b is None
    assert problem is not HARD or not gate.mask.requires_grad


@pytest.mark.parametrize("problem", [SOFT, SOFT0, HARD])
def test_many_layers_at_once_are_layers_one_by_one(problem):
    p, b = drawn(3, 2)
    together = open_gates(problem, p, b)
    for at in itertools.product(range(3), range(2)):
        alone = open_gates(problem, p[at], b[at])
        assert torch.equal(together.mask[at], alone.mask)
        for name in ("sigma", "slope"):
            torch.testing.assert_close(getattr(together, name)[at], getattr(alone, name), rtol=0, atol=1e-15)


def test_loads_are_shares_of_data_or_mean_openings():
    p, b = drawn()
    hard, soft = open_gates(HARD, p, b), open_gates(SOFT, p, b)
    assert torch.equal(load_of(HARD, hard), hard.mask.sum(1) / P)
    assert load_of(HARD, hard).mean().item() == pytest.approx(0.375, abs=1e-15)
    assert torch.equal(load_of(SOFT, soft), soft.sigma.mean(1))


def test_biases_move_towards_even_loads_and_their_mean_stays():
    p, b = drawn()
    before = b.clone()
    gate = open_gates(HARD, p, b)
    balance(HARD, b, gate)
    load = gate.mask.mean(1)
    torch.testing.assert_close(b, before + 0.1 * (0.375 - load), rtol=0, atol=1e-15)
    assert (load > 0.375).any()
    assert ((b < before) == (load > 0.375)).all()
    assert b.mean().item() == pytest.approx(before.mean().item(), abs=1e-15)


def test_balancing_evens_loads_out():
    p, b = drawn(seed=1, scale=0.3)
    spread = [float(load_of(HARD, open_gates(HARD, p, b)).std())]
    for _ in range(40):
        gate = open_gates(HARD, p, b)
        balance(HARD, b, gate)
        spread.append(float(load_of(HARD, gate).std()))
    assert spread[0] > 0.3
    assert min(spread) < 0.15


@pytest.mark.parametrize("problem", [SOFT.replace(eta_b=0.1), SOFT0.replace(eta_b=0.1), HARD.replace(eta_b=0.0)])
def test_biases_without_a_step_of_their_own_stay(problem):
    p, b = drawn()
    before = b.clone()
    balance(problem, b, open_gates(problem, p, b))
    assert torch.equal(b, before)


def test_a_share_of_experts_that_is_not_whole_is_refused():
    require_whole(HARD, 8, "E")
    require_whole(HARD.replace(kappa="1/3"), 9, "E")
    with pytest.raises(InputError, match=r"^kappa=0.375 of nodes=10 is 3.75 experts; make kappa \* nodes whole$"):
        require_whole(HARD, 10, "nodes")
    with pytest.raises(InputError, match=r"^kappa=1e-12 of E=8 is 8e-12 experts; make kappa \* E whole$"):
        require_whole(HARD.replace(kappa=1e-12), 8, "E")
