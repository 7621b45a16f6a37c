"""How routers open the gates of experts, what that makes of their loads, and how biases even the loads out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from expertp.errors import InputError
from expertp.theory.activations import sigmoid_slope
from expertp.theory.problem import Problem


@dataclass(frozen=True, eq=False)
class Gates:
    """What routers p [..., E, P] and biases b [..., E] make of each other: sigma, sigma' and the mask, like p."""

    sigma: Tensor
    slope: Tensor
    mask: Tensor


def open_gates(problem: Problem, p: Tensor, b: Tensor) -> Gates:
    """Return the gates of all experts for all data; a hard one passes no gradient through its choice."""
    b = b.unsqueeze(-1)
    if problem.gate == "hard":
        chosen = torch.sigmoid(p.detach()) + b
        n_active = round(problem.kappa * p.shape[-2])
        top = chosen.topk(n_active, dim=-2).indices
        mask = torch.zeros_like(p.detach()).scatter_(-2, top, 1.0)
        return Gates(mask * torch.sigmoid(p), mask * sigmoid_slope(p), mask)
    shifted = p + b if problem.gate == "soft" else p
    return Gates(torch.sigmoid(shifted), sigmoid_slope(shifted), torch.ones_like(p))


def whole_share(problem: Problem, n_exp: int, what: str) -> None:
    """Refuse a number of experts of which kappa is not a whole number."""
    share = problem.kappa * n_exp
    if abs(share - round(share)) > 1e-9 or round(share) < 1:
        raise InputError(f"kappa={problem.kappa:g} of {what}={n_exp} is {share:g} experts; make kappa * {what} whole")


def load_of(problem: Problem, gate: Gates) -> Tensor:
    """Return the share of data that each expert sees [..., E]; of soft gates their mean opening."""
    return (gate.mask if problem.gate == "hard" else gate.sigma).mean(-1)


def balance(problem: Problem, b_E: Tensor, gate: Gates) -> None:
    """Move the biases [..., E] of hard gates towards even loads, in place: b += eta_b (kappa - load)."""
    if problem.gate == "hard" and problem.eta_b:
        b_E += problem.eta_b * (problem.kappa - load_of(problem, gate))
