"""What holds exactly at any finite size: each field as its part at the start and what training has added to it.

With S_{s<t} the sum over earlier steps s and data x', and W(0) the weights at the start:

    h^{l+1} = h^l + L^{-1} [chibar + c S Delta M_phi g^{l+1}],    chibar = sqrt(N)/(Ne E) sum_k sigma_k W2_k(0) phi(h_k)
    h_k = chi_k + c S Delta sigma_k C_h g_k,                      chi_k = N^{-1/2} W1_k(0) h^l
    z_k = xi_k + c S Delta sigma_k C_g^{l+1} phi(h_k),            xi_k = N^{-1/2} W2_k(0)^T g^{l+1}
    A_k = {xi phi} + c S Delta sigma_k C_g^{l+1} C_phi_k
    p_k = N^{-1} r_k(0).h^l + c S Delta A_k sigma'_k C_h
    g^l = g^{l+1} + L^{-1} [xibar + c S Delta (M_g + M_AA) h^l]
          with xibar = sqrt(N)/(Ne E) sum_k sigma_k W1_k(0)^T g_k + E^{-1} sum_k sigma'_k A_k r_k(0)
    f = w(0).h^L/(gamma0 N) + (eta/P) S Delta C_h^L
    g^L = w(0) + c S Delta h^L
    h^0 = W0(0) x/sqrt(D) + c S Delta K_x g^0

The sum over s is kept as the pair (step, datum) in one index i. Shapes as in `finite`, I the past.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from expertp.theory.finite import Fields, Size, Weights, draw_weights, train
from expertp.theory.kernel import Term
from expertp.theory.problem import Data, Problem, make_data


def residuals(problem: Problem, size: Size, seed: int = 0, drop: frozenset[Term] = frozenset()) -> Mapping[str, float]:
    """Return by how much each identity is missed over a training, relative to the field's size.

    Args:
        problem: what is learnt.
        size: of the network.
        seed: of its weights.
        drop: terms to leave out, which shows that their absence is seen.
    """
    data = make_data(problem)
    weights = draw_weights(problem, size, [seed])
    start = copy.deepcopy(weights)
    fields = list(train(problem, weights, data))
    worst: dict[str, float] = {}
    for step in range(problem.T):
        for name, (seen, said) in _sides(problem, start, data, fields[: step + 1], drop).items():
            missed = float((seen - said).norm() / seen.norm().clamp_min(1e-300)) if seen.any() else 0.0
            worst[name] = max(worst.get(name, 0.0), missed)
    return worst


def _sides(
    problem: Problem, start: Weights, data: Data, fields: list[Fields], drop: frozenset[Term]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return field and formula of each identity at the last of some steps; of one network, without the seed's index."""
    now, past, c, L = fields[-1], fields[:-1], problem.c, problem.L
    E, M, N = start.W1_SLEMN.shape[2:]
    X, K_x = torch.from_numpy(data.X), torch.from_numpy(data.K_x)

    def then(pick: Callable[[Fields], Tensor]) -> Tensor:
        """Return a field at all earlier steps, data of all steps side by side [..., I]."""
        return torch.cat([pick(each) for each in past], -1) if past else pick(now)[..., :0]

    delta_I = then(lambda at: at.delta_SP[0])
    f = now.f_SP[0]
    h_L, h_L_then = now.h_SNP[L][0], then(lambda at: at.h_SNP[L][0])
    g_L, g_0_then = now.g_SNP[L][0], then(lambda at: at.g_SNP[0][0])
    w = start.w_SN[0]
    moved = c * (K_x.repeat(1, len(past)) * delta_I) @ g_0_then.T if problem.train_embed else 0.0
    sides = {
        "f": (f, w @ h_L / (problem.gamma0 * N) + problem.eta / problem.P * (h_L.T @ h_L_then / N) @ delta_I),
        "g^L": (g_L, (w + c * h_L_then @ delta_I).unsqueeze(1).expand_as(g_L)),
        "h^0": (now.h_SNP[0][0], (X @ start.W0_SND[0].T / math.sqrt(problem.D) + moved).T),
    }
    for l in range(L):
        layer = now.layers[l]
        h, h_up, g, g_up = (each[0] for each in (now.h_SNP[l], now.h_SNP[l + 1], now.g_SNP[l], now.g_SNP[l + 1]))
        h_I, g_up_I = then(lambda at, l=l: at.h_SNP[l][0]), then(lambda at, l=l: at.g_SNP[l + 1][0])
        sigma, slope, A = layer.gate.sigma[0], layer.gate.slope[0], layer.A_SEP[0]
        sigma_I, slope_I, A_I = (
            then(lambda at, l=l: at.layers[l].gate.sigma[0]),
            then(lambda at, l=l: at.layers[l].gate.slope[0]),
            then(lambda at, l=l: at.layers[l].A_SEP[0]),
        )
        phi, z, g_k, h_k = (each[0] for each in (layer.phi_SEMP, layer.z_SEMP, layer.g_k_SEMP, layer.h_k_SEMP))
        phi_I, g_k_I = then(lambda at, l=l: at.layers[l].phi_SEMP[0]), then(lambda at, l=l: at.layers[l].g_k_SEMP[0])
        W1, W2, r = start.W1_SLEMN[0, l], start.W2_SLNEM[0, l], start.r_SLEN[0, l]
        C_h, C_g = h.T @ h_I / N, g_up.T @ g_up_I / N
        C_phi_EPI = phi.mT @ phi_I / M
        M_phi = torch.einsum("ep,epi,ei->pi", sigma, C_phi_EPI, sigma_I) / E
        M_g = torch.einsum("ep,epi,ei->pi", sigma, g_k.mT @ g_k_I / M, sigma_I) / E
        M_AA = (slope * A).T @ (slope_I * A_I) / E
        chibar = math.sqrt(N) / (M * E) * torch.einsum("ep,nem,emp->np", sigma, W2, phi)
        xibar = math.sqrt(N) / (M * E) * torch.einsum("ep,emn,emp->np", sigma, W1, g_k) + r.T @ (slope * A) / E
        pulled = sigma_I.unsqueeze(1) * delta_I
        in_z = delta_I.expand_as(pulled) if "sigma_in_z" in drop else pulled
        xi = torch.einsum("nem,np->emp", W2, g_up) / math.sqrt(N)
        M_back = M_g if "M_AA" in drop else M_g + M_AA
        sides |= {
            f"h^{l + 1}": (h_up, h + (chibar + c * g_up_I @ (M_phi * delta_I).T) / L),
            f"h_k^{l}": (h_k, torch.einsum("emn,np->emp", W1, h) / math.sqrt(N) + c * (pulled * g_k_I) @ C_h.T),
            f"z_k^{l}": (z, xi + c * (in_z * phi_I) @ C_g.T),
            f"A_k^{l}": (A, (xi * phi).mean(1) + c * torch.einsum("ei,pi,epi->ep", pulled[:, 0], C_g, C_phi_EPI)),
            f"p_k^{l}": (layer.p_SEP[0], r @ h / N + c * (delta_I * A_I * slope_I) @ C_h.T),
            f"g^{l}": (g, g_up + (xibar + c * h_I @ (M_back * delta_I).T) / L),
        }
    return sides
