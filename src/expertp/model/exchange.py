"""Experts of a layer on several processes: rows travel to the process of their expert, and results travel back.

Every process sends exactly the rows that its tokens have for each other one (all-to-all with the counts of the router),
so no token is dropped and no row is padding. The process of an expert applies the same backend as a single process.

Shapes: T tokens, N n_embd, E experts, K active experts, H hidden units, P processes, e = E / P experts of a process,
R = T K visits that this process sends, V visits that it receives.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from expertp.model.experts import ExpertFunction
from expertp.model.router import Routing
from expertp.model.sharded import own


def exchanged(function: ExpertFunction, group: dist.ProcessGroup) -> ExpertFunction:
    """Return the experts of all processes of a group as one function, given the backend that a process applies.

    Process p of the group holds the experts from p e to (p + 1) e. All processes call the function together.
    """

    def experts(x_TN: Float[Tensor, "T N"], routing: Routing, up_ENH: Tensor, down_EHN: Tensor) -> Float[Tensor, "T N"]:
        visit_R, token_R = routing.sorted_visits()
        sent_Pe = routing.load_E.view(group.size(), -1)
        received_Pe = torch.empty_like(sent_Pe)
        dist.all_to_all_single(received_Pe, sent_Pe, group=group)
        sent, received = sent_Pe.sum(1).tolist(), received_Pe.sum(1).tolist()

        # Rows are rounded before they travel: the backend would do so first, and half of the bytes suffice.
        x_VN = _exchange(x_TN[token_R].to(_compute_dtype(x_TN)), sent, received, group)
        gate_V = _exchange(routing.gate_TK.flatten()[visit_R], sent, received, group)
        expert_e = torch.arange(sent_Pe.shape[1], device=x_TN.device)
        expert_V = expert_e.repeat(group.size()).repeat_interleave(received_Pe.flatten())
        routing_V = Routing(expert_V[:, None], gate_V[:, None], received_Pe.sum(0), routing.auxiliary)
        y_VN = function(x_VN, routing_V, own(up_ENH), own(down_EHN))

        y_RN = _exchange(y_VN, received, sent, group)
        # Undo the sort and sum the K rows of each token in a fixed order.
        place_R = torch.empty_like(visit_R).scatter_(0, visit_R, torch.arange(len(visit_R), device=visit_R.device))
        y_TKN = y_RN[place_R].view(*routing.gate_TK.shape, -1)
        return y_TKN.to(torch.promote_types(y_TKN.dtype, torch.float32)).sum(1).to(x_TN.dtype)

    return experts


def _compute_dtype(x_TN: Tensor) -> torch.dtype:
    device = x_TN.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_TN.dtype


class _Exchange(torch.autograd.Function):
    """Send consecutive rows to the processes of a group; gradients travel back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.counts, ctx.group = (sent, received), group
        out = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), list(received), list(sent), group=group)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Send the gradients of received rows back to where the rows came from."""
        sent, received = ctx.counts
        drows = dout.new_empty(sum(sent), *dout.shape[1:])
        dist.all_to_all_single(drows, dout.contiguous(), list(sent), list(received), group=ctx.group)
        return drows, None, None, None


_exchange: Callable[..., Tensor] = _Exchange.apply
