import dataclasses
import math

import pytest
import torch

from expertp.theory import finite
from expertp.theory.finite import Size
from expertp.theory.identities import residuals
from expertp.theory.problem import Problem

BASE = Problem(P=4, D=5, T=6, L=2, indices=2, degree=2, eta=0.3, gamma0=3, data_seed=4, router_init_eps=0.3)
SMALL = Size(N=10, E=4, n_hid=3)
PROBLEMS = {
    "soft": BASE,
    "soft0": BASE.replace(gate="soft0"),
    "hard": BASE.replace(gate="hard", kappa=0.5, eta_b=0.1),
    "frozen embedding": BASE.replace(train_embed=False),
    "routers from zero": BASE.replace(router_init_eps=0.0),
    "one layer": BASE.replace(L=1, phi="tanh"),
    "three layers": BASE.replace(L=3, phi="erf"),
}


def missed(seen):
    """Return which identities do not hold."""
    return {name for name, residual in seen.items() if residual > 1e-6}


@pytest.mark.parametrize("name", PROBLEMS)
def test_fields_are_their_start_and_what_training_added(name):
    problem = PROBLEMS[name]
    seen = residuals(problem, SMALL)
    layers = range(problem.L)
    of_layers = {f"{field}^{layer}" for field in ("h_k", "z_k", "A_k", "p_k", "g") for layer in layers}
    assert set(seen) == {"f", "g^L", "h^0", *of_layers, *(f"h^{layer + 1}" for layer in layers)}
    assert max(seen.values()) < 1e-12, seen


def test_they_hold_for_every_seed_and_size():
    for seed, size in ((1, Size(6, 2, 5)), (2, Size(20, 6, 1))):
        assert max(residuals(PROBLEMS["hard"], size, seed).values()) < 1e-12


@pytest.mark.parametrize("name", ["soft", "soft0", "hard", "routers from zero"])
def test_the_absence_of_m_aa_is_seen_in_the_gradient_of_the_stream(name):
    assert missed(residuals(PROBLEMS[name], SMALL, drop=frozenset({"M_AA"}))) == {"g^0", "g^1"}


@pytest.mark.parametrize("name", ["soft", "soft0", "hard"])
def test_the_absence_of_the_gate_in_z_is_seen_there(name):
    assert missed(residuals(PROBLEMS[name], SMALL, drop=frozenset({"sigma_in_z"}))) == {"z_k^0", "z_k^1"}


@pytest.mark.parametrize(
    ("weight", "broken"),
    [
        ("W0_SND", {"h^0"}),
        ("w_SN", {"f", "g^L"}),
        ("W1_SLEMN", {"h_k^0", "h_k^1", "g^0", "g^1"}),
        ("W2_SLNEM", {"z_k^0", "z_k^1", "A_k^0", "A_k^1", "h^1", "h^2"}),
        ("r_SLEN", {"p_k^0", "p_k^1", "g^0", "g^1"}),
    ],
)
def test_a_step_that_is_a_thousandth_too_long_is_seen_where_its_weight_acts(monkeypatch, weight, broken):
    step = finite.descend

    def overshoots(problem, weights, at, X_PD):
        before = getattr(weights, weight).clone()
        step(problem, weights, at, X_PD)
        moving = getattr(weights, weight)
        moving += 1e-3 * (moving - before)

    monkeypatch.setattr(finite, "descend", overshoots)
    assert missed(residuals(BASE, SMALL)) == broken


def test_steps_without_delta_are_seen_everywhere(monkeypatch):
    """The paper prints several of these equations so."""
    step = finite.descend

    def forgets(problem, weights, at, X_PD):
        step(problem, weights, dataclasses.replace(at, delta_SP=torch.ones_like(at.delta_SP)), X_PD)

    monkeypatch.setattr(finite, "descend", forgets)
    seen = residuals(BASE, SMALL)
    assert missed(seen) == set(seen)


def test_a_network_that_has_left_all_bounds_misses_them():
    wild = Problem(P=4, D=5, T=6, L=2, indices=2, degree=2, gamma0=3, eta=1e60)
    assert max(residuals(wild, Size(10, 4, 3)).values()) == math.inf


def test_a_router_that_never_moves_is_missed(monkeypatch):
    true_step = finite.descend

    def still(problem, weights, at, X_PD):
        before = weights.r_SLEN.clone()
        true_step(problem, weights, at, X_PD)
        weights.r_SLEN.copy_(before)

    monkeypatch.setattr(finite, "descend", still)
    found = residuals(Problem(P=4, D=5, T=4, L=2, indices=2), Size(10, 4, 3))
    assert found["p_k^0"] > 0.9
