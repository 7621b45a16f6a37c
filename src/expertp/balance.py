"""Expert load balance: the bias update from integer loads, its sign variant, and the auxiliary loss of older work.

Shapes: T tokens, E experts, L layers.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from expertp.spec import Balance


def load_deviation(load_LE: Int[Tensor, "*L E"], n_act: int) -> Float[Tensor, "*L E"]:
    """Return Load_i - kappa per expert, where Load_i is the share of tokens that visited expert i.

    >>> load_deviation(torch.tensor([3, 1, 0, 0]), n_act=1).tolist()
    [0.5, 0.0, -0.25, -0.25]
    """
    visits = load_LE.sum(-1, keepdim=True).double()
    return n_act * load_LE / visits - n_act / load_LE.shape[-1]


def bias_update(load_E: Int[Tensor, "*L E"], n_act: int, lr: float, rule: Balance) -> Float[Tensor, "*L E"]:
    """Return what is added to the expert biases after one optimizer step.

        proportional: -eta_bias (Load - kappa)                   Paper: Section 3.1; keeps mean(b)
        sign:         -eta_bias (s - mean(s)), s = sign(Load - kappa)    re-centred to keep mean(b) too

    Args:
        load_E: tokens per expert, summed over micro-batches and ranks.
        n_act: experts per token.
        lr: eta_bias.
        rule: which update; `aux_loss` and `none` leave the biases alone.
    """
    deviation = load_deviation(load_E, n_act)
    if rule == "proportional":
        return -lr * deviation
    if rule == "sign":
        sign = deviation.sign()
        return -lr * (sign - sign.mean(-1, keepdim=True))
    return torch.zeros_like(deviation)


def auxiliary_loss(gate_TE: Float[Tensor, "T E"], load_E: Int[Tensor, "E"]) -> Float[Tensor, ""]:
    """Return the balance loss of Switch Transformers, E sum_i f_i P_i, which is 1 when all is even.

    f_i is expert i's share of all visits (no gradient), P_i the mean over tokens of its gate normalised over experts.
    """
    share_E = load_E / load_E.sum()
    probability_E = (gate_TE / gate_TE.sum(-1, keepdim=True)).mean(0)
    return load_E.shape[0] * (share_E * probability_E).sum()
