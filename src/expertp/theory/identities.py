"""Identities that hold exactly at finite size: every field is its value under the initial weights plus a drift.

With S = S_{s<t} the sum over earlier steps s and data x', and W(0) the initial weights:

    h^{l+1} = h^l + L^{-1} [chibar + c S Delta M_phi g^{l+1}], chibar = sqrt(N)/(n_hid E) sum_k sigma_k W2_k(0) phi(h_k)
    h_k = chi_k + c S Delta sigma_k C_h g_k,                      chi_k = N^{-1/2} W1_k(0) h^l
    z_k = xi_k + c S Delta sigma_k C_g^{l+1} phi(h_k),            xi_k = N^{-1/2} W2_k(0)^T g^{l+1}
    A_k = {xi phi} + c S Delta sigma_k C_g^{l+1} C_phi_k
    p_k = N^{-1} r_k(0).h^l + c S Delta A_k sigma'_k C_h
    g^l = g^{l+1} + L^{-1} [xibar + c S Delta (M_g + M_AA) h^l]
          with xibar = sqrt(N)/(n_hid E) sum_k sigma_k W1_k(0)^T g_k + E^{-1} sum_k sigma'_k A_k r_k(0)
    f = w(0).h^L/(gamma0 N) + (eta/P) S Delta C_h^L
    g^L = w(0) + c S Delta h^L
    h^0 = W0(0) x/sqrt(D) + c S Delta K_x g^0

< > is the mean over the stream, [ ] over experts, { } over the neurons of an expert (n_hid of them):

    C_h = <h h>, C_g = <g g>, C_phi_k = {phi phi}
    M_phi = [sigma sigma {phi phi}], M_g = [sigma sigma {g_k g_k}], M_AA = [sigma' sigma' A A]

Shapes: those of `finite`; I (earlier step, datum), step-major.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from expertp.theory.finite import Fields, Size, Weights, draw_weights, train
from expertp.theory.kernel import Term
from expertp.theory.problem import Data, Problem, make_data


def residuals(problem: Problem, size: Size, seed: int = 0, drop: frozenset[Term] = frozenset()) -> Mapping[str, float]:
    """Return the largest relative residual of each identity over the steps of one training run.

    Args:
        problem: the training problem.
        size: size of the network.
        seed: seed of its weights.
        drop: terms to leave out, for mutation tests.

    >>> max(residuals(Problem(P=3, D=4, T=3), Size(N=8, E=4, n_hid=4)).values()) < 1e-12
    True
    """
    data, weights = make_data(problem), draw_weights(problem, size, [seed])
    start = copy.deepcopy(weights)
    fields = list(train(problem, weights, data))
    worst: dict[str, float] = {}
    for step in range(problem.T):
        past = _Past(fields[:step], fields[step])
        sides = _of_stream(problem, start, data, past)
        for l in range(problem.L):
            sides |= _of_layer(problem, start, l, past, drop)
        for name, (left, right) in sides.items():
            scale = max(float(left.norm()), float(right.norm()))
            residual = float((left - right).norm()) / scale if scale else 0.0
            worst[name] = max(worst.get(name, 0.0), residual if math.isfinite(residual) else math.inf)
    return worst


@dataclass(frozen=True)
class _Past:
    """The fields of one network before and at one step."""

    before: Sequence[Fields]
    now: Fields

    def of(self, pick: Callable[[Fields], Tensor]) -> tuple[Float[Tensor, "*shape P"], Float[Tensor, "*shape I"]]:
        """Return a field at this step and at all earlier steps."""
        now = pick(self.now)[0]
        return now, torch.cat([now[..., :0], *(pick(each)[0] for each in self.before)], -1)


Sides = dict[str, tuple[Tensor, Tensor]]  # both sides of every identity, by the field on the left


def _of_stream(problem: Problem, start: Weights, data: Data, past: _Past) -> Sides:
    """Return both sides of the identities of f, g^L and h^0."""
    c, L, N = problem.c, problem.L, start.w_SN.shape[-1]
    X, K_x, w = torch.from_numpy(data.X), torch.from_numpy(data.K_x), start.w_SN[0]
    _, delta_I = past.of(lambda at: at.delta_SP)
    f, _ = past.of(lambda at: at.f_SP)
    h_L, h_L_I = past.of(lambda at: at.h_SNP[L])
    g_L, _ = past.of(lambda at: at.g_SNP[L])
    h_0, _ = past.of(lambda at: at.h_SNP[0])
    _, g_0_I = past.of(lambda at: at.g_SNP[0])
    drift = c * (K_x.repeat(1, len(past.before)) * delta_I) @ g_0_I.T if problem.train_embed else 0.0
    return {
        "f": (f, w @ h_L / (problem.gamma0 * N) + problem.eta / problem.P * (h_L.T @ h_L_I / N) @ delta_I),
        "g^L": (g_L, (w + c * h_L_I @ delta_I).unsqueeze(1).expand_as(g_L)),
        "h^0": (h_0, (X @ start.W0_SND[0].T / math.sqrt(problem.D) + drift).T),
    }


def _of_layer(problem: Problem, start: Weights, l: int, past: _Past, drop: frozenset[Term]) -> Sides:
    """Return both sides of the identities of one layer."""
    c, L = problem.c, problem.L
    E, M, N = start.W1_SLEMN.shape[2:]
    W1, W2, r = start.W1_SLEMN[0, l], start.W2_SLNEM[0, l], start.r_SLEN[0, l]
    _, delta_I = past.of(lambda at: at.delta_SP)
    h, h_I = past.of(lambda at: at.h_SNP[l])
    h_up, _ = past.of(lambda at: at.h_SNP[l + 1])
    g, _ = past.of(lambda at: at.g_SNP[l])
    g_up, g_up_I = past.of(lambda at: at.g_SNP[l + 1])
    sigma, sigma_I = past.of(lambda at: at.layers[l].gate.sigma)
    slope, slope_I = past.of(lambda at: at.layers[l].gate.slope)
    A, A_I = past.of(lambda at: at.layers[l].A_SEP)
    phi, phi_I = past.of(lambda at: at.layers[l].phi_SEMP)
    h_k, _ = past.of(lambda at: at.layers[l].h_k_SEMP)
    g_k, g_k_I = past.of(lambda at: at.layers[l].g_k_SEMP)
    z, _ = past.of(lambda at: at.layers[l].z_SEMP)
    p, _ = past.of(lambda at: at.layers[l].p_SEP)

    C_h, C_g, C_phi_EPI = h.T @ h_I / N, g_up.T @ g_up_I / N, phi.mT @ phi_I / M
    M_phi = torch.einsum("ep,epi,ei->pi", sigma, C_phi_EPI, sigma_I) / E
    M_g = torch.einsum("ep,epi,ei->pi", sigma, g_k.mT @ g_k_I / M, sigma_I) / E
    M_AA = 0.0 if "M_AA" in drop else (slope * A).T @ (slope_I * A_I) / E
    chi = torch.einsum("emn,np->emp", W1, h) / math.sqrt(N)
    xi = torch.einsum("nem,np->emp", W2, g_up) / math.sqrt(N)
    chibar = math.sqrt(N) / (M * E) * torch.einsum("ep,nem,emp->np", sigma, W2, phi)
    xibar = math.sqrt(N) / (M * E) * torch.einsum("ep,emn,emp->np", sigma, W1, g_k) + r.T @ (slope * A) / E
    delta_sigma = sigma_I * delta_I
    in_z = delta_I.expand_as(delta_sigma) if "sigma_in_z" in drop else delta_sigma
    return {
        f"h^{l + 1}": (h_up, h + (chibar + c * g_up_I @ (M_phi * delta_I).T) / L),
        f"h_k^{l}": (h_k, chi + c * (delta_sigma.unsqueeze(1) * g_k_I) @ C_h.T),
        f"z_k^{l}": (z, xi + c * (in_z.unsqueeze(1) * phi_I) @ C_g.T),
        f"A_k^{l}": (A, (xi * phi).mean(1) + c * torch.einsum("ei,pi,epi->ep", delta_sigma, C_g, C_phi_EPI)),
        f"p_k^{l}": (p, r @ h / N + c * (delta_I * A_I * slope_I) @ C_h.T),
        f"g^{l}": (g, g_up + (xibar + c * h_I @ ((M_g + M_AA) * delta_I).T) / L),
    }
