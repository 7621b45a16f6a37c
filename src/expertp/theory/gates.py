"""Gates sigma_k of the experts, their loads, and the bias updates of hard gates.

    soft:  sigma_k = s(p_k + b_k)
    soft0: sigma_k = s(p_k)
    hard:  sigma_k = m_k s(p_k), sigma'_k = m_k s'(p_k), m_k = 1[k in top-K of s(p_k) + b_k]
           b_k += eta_b (kappa - load_k)

Shapes: E expert (or node of a solver), P datum.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from expertp.errors import InputError
from expertp.theory.activations import sigmoid_slope
from expertp.theory.problem import Problem


@dataclass(frozen=True, eq=False)
class Gates:
    """Gates sigma, their derivatives sigma' (`slope`) and the top-K mask of all experts for all data."""

    sigma: Float[Tensor, "*batch E P"]
    slope: Float[Tensor, "*batch E P"]
    mask: Float[Tensor, "*batch E P"]


def open_gates(problem: Problem, p: Float[Tensor, "*batch E P"], b: Float[Tensor, "*batch E"]) -> Gates:
    """Return the gates for router preactivations p and biases b; no gradient flows through the mask of hard gates."""
    b = b.unsqueeze(-1)
    if problem.gate == "hard":
        score = torch.sigmoid(p.detach()) + b
        n_active = round(problem.kappa * p.shape[-2])
        top = score.topk(n_active, dim=-2).indices
        mask = torch.zeros_like(p.detach()).scatter_(-2, top, 1.0)
        return Gates(mask * torch.sigmoid(p), mask * sigmoid_slope(p), mask)
    shifted = p + b if problem.gate == "soft" else p
    return Gates(torch.sigmoid(shifted), sigmoid_slope(shifted), torch.ones_like(p))


def is_whole(n_active: float) -> bool:
    """Return whether a number of active experts is positive and whole, up to rounding."""
    return round(n_active) > 0 and abs(n_active - round(n_active)) < 1e-9


def require_whole(problem: Problem, n_exp: int, name: str) -> None:
    """Raise unless kappa times the number of experts (or nodes) is a positive whole number."""
    n_active = problem.kappa * n_exp
    if not is_whole(n_active):
        raise InputError(
            f"kappa={problem.kappa:g} of {name}={n_exp} is {n_active:g} experts; make kappa * {name} whole"
        )


def load_of(problem: Problem, gate: Gates) -> Float[Tensor, "*batch E"]:
    """Return the fraction of the data routed to each expert; for soft gates the mean of sigma over the data."""
    return (gate.mask if problem.gate == "hard" else gate.sigma).mean(-1)


def balance(problem: Problem, b_E: Float[Tensor, "*batch E"], gate: Gates) -> None:
    """Update the biases of hard gates in place: b += eta_b (kappa - load)."""
    if problem.gate == "hard" and problem.eta_b:
        b_E += problem.eta_b * (problem.kappa - load_of(problem, gate))
