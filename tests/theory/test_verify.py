"""The quick checks 1, 2 and 9 of `expertp theory verify`, and mutations that they must see.

The quick version of check 4 (every term counts) is in test_kernel.py.
"""

import math

import pytest

from expertp.theory import gates, kernel, reduced
from expertp.theory.verify import CHECKS, Check

QUICK = ("identities", "solvers", "hard")


@pytest.mark.heavy
@pytest.mark.parametrize("name", QUICK)
def test_the_theory_is_right(name):
    found = list(CHECKS[name](False))
    assert found
    assert [each.check for each in found if not each.ok] == []


def failed(name):
    return [each.check for each in CHECKS[name](False) if not each.ok]


def test_identities_see_a_router_that_learns_a_little_too_fast(monkeypatch):
    from expertp.theory import finite

    true_step = finite.descend

    def off(problem, weights, at, X_PD):
        before = weights.r_SLEN.clone()
        true_step(problem, weights, at, X_PD)
        weights.r_SLEN += 1e-6 * (weights.r_SLEN - before)

    monkeypatch.setattr(finite, "descend", off)
    assert len(failed("identities")) == 6


@pytest.mark.heavy
def test_two_solvers_see_a_missing_response(monkeypatch):
    true_response = kernel._response
    monkeypatch.setattr(kernel, "_response", lambda *arguments: 0 * true_response(*arguments))
    assert "2 kernel against reduced form at 4096 neurons" in failed("solvers")


@pytest.mark.heavy
def test_hard_gates_see_an_expert_too_many(monkeypatch):
    true_gates = gates.open_gates

    def one_more(problem, p, b):
        more = problem.model_copy(update={"kappa": problem.kappa + 1 / p.shape[-2]})
        return true_gates(more, p, b)

    monkeypatch.setattr(reduced, "open_gates", one_more)
    assert any("q_star" in check for check in failed("hard"))


@pytest.mark.parametrize(
    ("bounds", "text", "ok"),
    [
        ({"high": 0.1}, "<= 0.1", False),
        ({"low": 0.1}, ">= 0.1", True),
        ({"low": 0.1, "high": 0.3}, "0.1 .. 0.3", True),
    ],
)
def test_a_check_says_its_bound_and_whether_it_holds(bounds, text, ok):
    check = Check("x", 0.2, **bounds)
    assert check.to_dict() == {"check": "x", "value": 0.2, "bound": text, "mc_error": None, "ok": ok}


def test_a_value_that_is_not_a_number_fails():
    assert not Check("x", math.nan, high=1.0).ok


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CHECKS if name not in QUICK])
def test_the_rest_of_the_theory_is_right(name):
    assert failed(name) == []
