"""Fused expert backend: hand-written forward and backward passes without an array of visits x n_embd.

    h_e = W_up,e^T x_e,   y_t = sum_e g W_down,e gelu(h_e)

The tokens of an expert are gathered into a buffer that all experts share, the gate multiplies the hidden activation
(whose rows are short), and results are added directly to the output. Only the pre-activations h are saved for the
backward pass; activations and gathered rows are recomputed. Experts are applied in order, so sums are deterministic.

Shapes: T tokens, N n_embd, E experts, K active experts, H hidden units of an expert, R = T K visits, n visits of one
expert.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from expertp.model.router import Routing

# Below this number of rows per thread, one product is faster than a sum of partial products.
MIN_SHARE = 256

_gelu = torch.ops.aten.gelu.out
_gelu_backward = torch.ops.aten.gelu_backward.grad_input


def _fused_experts(
    x_TN: Float[Tensor, "T N"], routing: Routing, up_ENH: Float[Tensor, "E N H"], down_EHN: Float[Tensor, "E H N"]
) -> Float[Tensor, "T N"]:
    """Return the gated sum over active experts, in the dtype of autocast or of `x`; sums are at least float32."""
    device = x_TN.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_TN.dtype
    visit_R, token_R = routing.sorted_visits()
    with torch.autocast(device, enabled=False):
        return _apply(x_TN, routing.gate_TK, up_ENH, down_EHN, visit_R, token_R, routing.load_E.tolist(), dtype)


# Shapes depend on the loads, so compilation gains nothing: a compiled block calls this function uncompiled.
fused_experts: Callable[[Tensor, Routing, Tensor, Tensor], Tensor] = torch.compiler.disable(_fused_experts)


class _FusedExperts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TN: Tensor,
        gate_TK: Tensor,
        up_ENH: Tensor,
        down_EHN: Tensor,
        visit_R: Tensor,
        token_R: Tensor,
        loads: Sequence[int],
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.dtypes, ctx.loads = (x_TN.dtype, up_ENH.dtype, down_EHN.dtype), loads
        x_TN, up_ENH, down_EHN = (tensor.to(dtype) for tensor in (x_TN, up_ENH, down_EHN))
        H, N = down_EHN.shape[1:]
        gate_R = gate_TK.flatten()[visit_R].to(dtype)
        row_nN, act_nH = (x_TN.new_empty(max(loads), width) for width in (N, H))
        out = _SumOverExperts(x_TN, gate_TK.shape[1], row_nN)
        # One tensor per expert: the allocator reuses these blocks, whereas one large tensor is paged in each time.
        pres: list[Tensor] = []
        pieces = zip(*(t.split(loads) for t in (token_R, gate_R[:, None])), up_ENH, down_EHN, strict=True)
        for token, gate, up, down in pieces:
            n = len(token)
            row, act = row_nN[:n], act_nH[:n]
            torch.index_select(x_TN, 0, token, out=row)
            pres.append(pre := torch.mm(row, up))
            _gelu(pre, out=act).mul_(gate)
            torch.mm(act, down, out=row)
            out.add(token, row)
        ctx.save_for_backward(x_TN, gate_TK, up_ENH, down_EHN, visit_R, token_R, *pres)
        return out.total_TN.to(ctx.dtypes[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_TN: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, gate, up and down.

        With a = gelu(h):  dg = (dy W_down^T) . a,   dh = g gelu'(h) (dy W_down^T),
        dW_down = (g a)^T dy,   dW_up = x^T dh,   dx = sum_e dh W_up^T
        """
        x_TN, gate_TK, up_ENH, down_EHN, visit_R, token_R, *pres = ctx.saved_tensors
        dout_TN = dout_TN.to(x_TN.dtype)
        H, N = down_EHN.shape[1:]
        gate_R = gate_TK.flatten()[visit_R].to(x_TN.dtype)
        row_nN, act_nH, dact_nH, dpre_nH = (x_TN.new_empty(max(ctx.loads), width) for width in (N, H, H, H))
        dx = _SumOverExperts(x_TN, gate_TK.shape[1], row_nN)
        dgate_R = gate_TK.new_empty(len(gate_R))
        dup_ENH, ddown_EHN = torch.empty_like(up_ENH), torch.empty_like(down_EHN)
        by_visit = (tensor.split(ctx.loads) for tensor in (token_R, gate_R[:, None], dgate_R))
        pieces = zip(*by_visit, pres, up_ENH, down_EHN, dup_ENH, ddown_EHN, strict=True)
        for token, gate, dgate, pre, up, down, dup, ddown in pieces:
            if (n := len(token)) == 0:
                dup.zero_()
                ddown.zero_()
                continue
            row, act, dact, dpre = row_nN[:n], act_nH[:n], dact_nH[:n], dpre_nH[:n]
            torch.index_select(dout_TN, 0, token, out=row)
            torch.mm(row, down.T, out=dact)
            _gelu(pre, out=act)
            torch.sum(torch.mul(dact, act, out=dpre), 1, dtype=dgate.dtype, out=dgate)
            _sum_over_rows(act.mul_(gate), row, out=ddown)
            _gelu_backward(dact.mul_(gate), pre, grad_input=dpre)
            torch.index_select(x_TN, 0, token, out=row)
            _sum_over_rows(row, dpre, out=dup)
            torch.mm(dpre, up.T, out=row)
            dx.add(token, row)
        dgate_TK = gate_TK.new_empty(gate_TK.shape)
        dgate_TK.view(-1)[visit_R] = dgate_R
        x_type, up_type, down_type = ctx.dtypes
        return dx.total_TN.to(x_type), dgate_TK, dup_ENH.to(up_type), ddown_EHN.to(down_type), *(4 * [None])


def _sum_over_rows(a_nI: Tensor, b_nJ: Tensor, out: Tensor) -> None:
    """Write a^T b to `out`; every thread sums over its share of the rows.

    The other operations split rows between threads in the same way, so a row stays in the cache of one core. A plain
    product reads all rows on all cores; the next write to them then takes up to three times as long if the cores do
    not share a cache.
    """
    threads = torch.get_num_threads()
    share = len(a_nI) // threads
    if threads == 1 or share < MIN_SHARE or out.dtype == torch.bfloat16:
        torch.mm(a_nI.T, b_nJ, out=out)
        return
    even = threads * share
    a_tmI, b_tmJ = (rows[:even].view(threads, share, -1) for rows in (a_nI, b_nJ))
    torch.sum(torch.bmm(a_tmI.transpose(1, 2), b_tmJ), 0, out=out)
    if even < len(a_nI):
        out.addmm_(a_nI[even:].T, b_nJ[even:])


class _SumOverExperts:
    """A sum of K rows per token in at least float32; for K = 1, rows are copied."""

    def __init__(self, like_TN: Tensor, n_act: int, row_nN: Tensor) -> None:
        self.is_single = n_act == 1
        wide = torch.promote_types(like_TN.dtype, torch.float32)
        self.total_TN = torch.empty_like(like_TN) if self.is_single else torch.zeros_like(like_TN, dtype=wide)
        self.wide_nN = None if row_nN.dtype == self.total_TN.dtype else torch.empty_like(row_nN, dtype=wide)

    def add(self, token_n: Tensor, row_nN: Tensor) -> None:
        """Add the rows of one expert to the sums of its tokens."""
        if self.is_single:
            self.total_TN.index_copy_(0, token_n, row_nN)
        else:
            wide_nN = row_nN if self.wide_nN is None else self.wide_nN[: len(token_n)].copy_(row_nN)
            self.total_TN.index_add_(0, token_n, wide_nN)


_apply: Callable[..., Tensor] = _FusedExperts.apply
