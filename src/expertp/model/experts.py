"""Experts of one MoE layer: the sum over a token's active experts of gate * W_down gelu(W_up^T x).

Weights are stacked: `up` is [experts, in, hidden] and `down` [experts, hidden, out]. A backend is a function with the
signature of `loop_experts`. All backends compute the same sum; `fused` is the fastest on CPU, and tests compare it with
the others.

Shapes: T tokens, N n_embd, E experts, K active experts, H hidden units of an expert, R = T K visits.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from expertp.errors import InputError
from expertp.model.fused import fused_experts
from expertp.model.router import Routing
from expertp.spec import Dtype, ExpertBackend, ModelSpec

BackendName = Literal["fused", "loop", "grouped"]
ExpertFunction = Callable[[Tensor, Routing, Tensor, Tensor], Tensor]


def loop_experts(
    x_TN: Float[Tensor, "T N"], routing: Routing, up_ENH: Float[Tensor, "E N H"], down_EHN: Float[Tensor, "E H N"]
) -> Float[Tensor, "T N"]:
    """Apply one expert after another: the definition as code, for any floating dtype."""
    out_TN = torch.zeros_like(x_TN)
    for expert in range(len(up_ENH)):
        token, slot = torch.where(routing.expert_TK == expert)
        y = F.gelu(x_TN[token] @ up_ENH[expert]) @ down_EHN[expert]
        out_TN = out_TN.index_add(0, token, (y * routing.gate_TK[token, slot, None]).to(out_TN.dtype))
    return out_TN


def grouped_experts(
    x_TN: Float[Tensor, "T N"], routing: Routing, up_ENH: Float[Tensor, "E N H"], down_EHN: Float[Tensor, "E H N"]
) -> Float[Tensor, "T N"]:
    """Sort visits by expert and apply all experts with one grouped matrix product per weight.

    `F.grouped_mm` ignores autocast, so inputs are cast here.
    """
    device = x_TN.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_TN.dtype
    visit_R, token_R = routing.sorted_visits()
    end_E = routing.load_E.cumsum(0).to(torch.int32)
    hidden_RH = F.gelu(F.grouped_mm(x_TN.to(dtype)[token_R], up_ENH.to(dtype), offs=end_E))
    y_RN = F.grouped_mm(hidden_RH, down_EHN.to(dtype), offs=end_E)
    # Undo the sort and sum the K rows of each token in a fixed order: unlike a scatter, this is deterministic.
    place_R = torch.empty_like(visit_R).scatter_(0, visit_R, torch.arange(len(visit_R), device=visit_R.device))
    gate_TK = routing.gate_TK
    y_TKN = y_RN[place_R].view(*gate_TK.shape, -1)
    return (y_TKN.to(gate_TK.dtype) * gate_TK[..., None]).sum(1).to(x_TN.dtype)


BACKENDS: Mapping[BackendName, ExpertFunction] = {
    "fused": fused_experts,
    "loop": loop_experts,
    "grouped": grouped_experts,
}


def choose_backend(wanted: ExpertBackend, device: str, model: ModelSpec, dtype: Dtype) -> BackendName:
    """Resolve `auto`: `grouped` on CUDA if it supports the shape (not tested on a CUDA device), else `fused`.

    `F.grouped_mm` requires rows of a multiple of 16 bytes and does not support float64.
    """
    row = {"float32": 4, "bfloat16": 8, "float64": 0}[dtype]
    grouped_can = row > 0 and model.n_embd % row == 0 and model.n_hid % row == 0
    if wanted == "auto":
        return "grouped" if device == "cuda" and grouped_can else "fused"
    if wanted == "grouped" and not grouped_can:
        raise InputError(
            f"train.expert_backend=grouped does not support dtype={dtype} with n_embd={model.n_embd} and {model.n_hid} "
            "hidden units; it requires float32 and multiples of 4, or bfloat16 and multiples of 8; "
            "set train.expert_backend=fused"
        )
    return wanted


class Experts(nn.Module):
    """Stacked weights of the experts of one layer, and the backend that applies them."""

    def __init__(self, n_exp: int, n_embd: int, n_hid: int, backend: BackendName = "loop") -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(n_exp, n_embd, n_hid))
        self.down = nn.Parameter(torch.empty(n_exp, n_hid, n_embd))
        self.function = BACKENDS[backend]

    def forward(self, x_TN: Float[Tensor, "T N"], routing: Routing) -> Float[Tensor, "T N"]:
        """Return the gated sum over the active experts of each token, without the factor 1/n_act."""
        return self.function(x_TN, routing, self.up, self.down)
