"""Load balancing: updates of the expert biases from integer loads.

Shapes: E experts, L layers.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from expertp.spec import Balance


def load_deviation(load_LE: Int[Tensor, "*L E"], n_act: int) -> Float[Tensor, "*L E"]:
    """Return Load_i - kappa, where Load_i is the fraction of tokens that visited expert i.

    >>> load_deviation(torch.tensor([3, 1, 0, 0]), n_act=1).tolist()
    [0.5, 0.0, -0.25, -0.25]
    """
    visits = load_LE.sum(-1, keepdim=True).double()
    return n_act * load_LE / visits - n_act / load_LE.shape[-1]


def bias_update(load_E: Int[Tensor, "*L E"], n_act: int, lr: float, rule: Balance) -> Float[Tensor, "*L E"]:
    """Return the change of the expert biases after one optimizer step.

        proportional: -eta_bias (Load - kappa)                   Paper: Section 3.1; preserves mean(b)
        sign:         -eta_bias (s - mean(s)), s = sign(Load - kappa)    centred, to preserve mean(b)

    Args:
        load_E: tokens per expert, summed over micro-batches and ranks.
        n_act: experts per token.
        lr: eta_bias.
        rule: balancing method; `aux_loss` and `none` do not change the biases.
    """
    deviation = load_deviation(load_E, n_act)
    if rule == "proportional":
        return -lr * deviation
    if rule == "sign":
        sign = deviation.sign()
        return -lr * (sign - sign.mean(-1, keepdim=True))
    return torch.zeros_like(deviation)
