"""The router: unnormalized gates, hard top-k selection on gate + bias, integer loads.

The router computes in float32 (or float64) for every compute dtype: at init, bfloat16 gates tie at the top-k boundary.
Loads are return values, not side effects, so that recomputation under activation checkpointing, evaluation and
gradient accumulation cannot count a token twice.

Shapes: B sequences, S positions, T = B S tokens, N n_embd, E experts, K active experts.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

# Less than half a float32 ulp of scores from 1/4 to 1, so it changes the order of equal scores only.
TIE_BREAK = 1e-8


class Routing(NamedTuple):
    """Active experts and gates of every token, tokens per expert, and the auxiliary balance loss."""

    expert_TK: Int[Tensor, "T K"]
    gate_TK: Float[Tensor, "T K"]
    load_E: Int[Tensor, "E"]
    auxiliary: Float[Tensor, ""]

    def sorted_visits(self) -> tuple[Int[Tensor, "R"], Int[Tensor, "R"]]:
        """Return the R = T K visits sorted by expert and token: their indices in `expert_TK`, and their tokens."""
        visit_R = self.expert_TK.flatten().to(torch.int16).argsort(stable=True)  # int16 sorts three times faster
        return visit_R, visit_R // self.expert_TK.shape[1]


class Router(nn.Module):
    """Gates and expert selection of one MoE layer.

        r = W h,  g = sigmoid(r)  (or g = E softmax(r)),  A = top_K(g + b),  no gradient through A

    Paper: Section 3.1. The softmax over all experts is multiplied by E, so that it is of order 1 like the sigmoid.

    Args:
        n_embd: width of the residual stream.
        n_exp: number of experts.
        n_act: experts per token.
        gate: "sigmoid" or "softmax".
        with_auxiliary: also return the auxiliary balance loss (0 otherwise).
    """

    bias: Tensor

    def __init__(
        self,
        n_embd: int,
        n_exp: int,
        n_act: int,
        gate: Literal["sigmoid", "softmax"] = "sigmoid",
        with_auxiliary: bool = False,
    ) -> None:
        super().__init__()
        self.n_exp, self.n_act, self.gate, self.with_auxiliary = n_exp, n_act, gate, with_auxiliary
        self.weight = nn.Parameter(torch.zeros(n_exp, n_embd))
        self.register_buffer("bias", torch.zeros(n_exp, dtype=torch.float32))

    def forward(self, x_BSN: Float[Tensor, "B S N"], start: int = 0) -> Routing:
        """Route every token of a batch; `start` is the position of the first token of each sequence."""
        with torch.autocast(x_BSN.device.type, enabled=False):
            wide = torch.promote_types(x_BSN.dtype, torch.float32)
            logit_BSE = F.linear(x_BSN.to(wide), self.weight.to(wide))
            gate_BSE = logit_BSE.sigmoid() if self.gate == "sigmoid" else self.n_exp * logit_BSE.softmax(-1)
            expert_BSK = self._select(gate_BSE.detach(), start)
            gate_BSK = gate_BSE.gather(-1, expert_BSK)
            # Unlike this scatter, bincount synchronizes with a CUDA device.
            load_E = expert_BSK.new_zeros(self.n_exp)
            load_E.scatter_add_(0, expert_BSK.flatten(), torch.ones_like(expert_BSK).flatten())
            auxiliary = (
                auxiliary_loss(gate_BSE.flatten(0, 1), load_E) if self.with_auxiliary else gate_BSE.new_zeros(())
            )
        return Routing(expert_BSK.flatten(0, 1), gate_BSK.flatten(0, 1), load_E, auxiliary)

    def _select(self, gate_BSE: Tensor, start: int) -> Tensor:
        """Return the K experts with the highest gate + bias; ties are broken round-robin over positions.

        With a router initialized to zero all scores are equal, and without the tie-break all tokens would visit the
        same K experts. The tie-break depends on the position in the sequence only, not on micro-batches.
        """
        position_S1 = torch.arange(start, start + gate_BSE.shape[1], device=gate_BSE.device)[:, None]
        expert_E = torch.arange(self.n_exp, device=gate_BSE.device)
        turn_SE = (self.n_act * position_S1 - expert_E - 1) % self.n_exp
        score_BSE = (gate_BSE + self.bias).double() + turn_SE * (TIE_BREAK / self.n_exp)
        return score_BSE.topk(self.n_act, dim=-1).indices

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Router":
        """Keep the bias in float32 when the model is cast, so that `.to(bfloat16)` does not round it."""
        exact = self.bias
        nn.Module._apply(self, fn, recurse)
        if self.bias.dtype != torch.float32:
            self.bias = exact.to(self.bias.device)
        return self


def auxiliary_loss(gate_TE: Float[Tensor, "T E"], load_E: Int[Tensor, "E"]) -> Float[Tensor, ""]:
    """Return the balance loss of Switch Transformers, E sum_i f_i P_i, which is 1 for even loads.

    f_i is the fraction of visits to expert i (no gradient), P_i the mean over tokens of its gate, normalized over
    experts.
    """
    share_E = load_E / load_E.sum()
    probability_E = (gate_TE / gate_TE.sum(-1, keepdim=True)).mean(0)
    return load_E.shape[0] * (share_E * probability_E).sum()
