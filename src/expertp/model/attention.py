"""Causal multi-head self-attention with scores q.k/d_head.

Shapes: B sequences, S positions, N n_embd, H heads, D d_head, P positions with those of a cache.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from expertp.model.cache import LayerCache
from expertp.model.empty import empty


class Attention(nn.Module):
    """Multi-head self-attention; the plan sets the scale of q.k (1/d_head, or 1/sqrt(d_head) under sp).

    Q and K share one tensor; V has its own, because attn_qk and attn_v are different parameter groups.
    """

    def __init__(self, n_embd: int, d_head: int, scale: float, bias: bool) -> None:
        super().__init__()
        self.d_head, self.scale = d_head, scale
        self.qk = empty(nn.Linear, n_embd, 2 * n_embd, bias=bias)
        self.v = empty(nn.Linear, n_embd, n_embd, bias=bias)
        self.o = empty(nn.Linear, n_embd, n_embd, bias=bias)

    def forward(self, x_BSN: Float[Tensor, "B S N"], cache: LayerCache | None = None) -> Float[Tensor, "B S N"]:
        """Return the attention output; with a cache, the positions follow those that it holds."""
        q_BSN, k_BSN = self.qk(x_BSN).chunk(2, dim=-1)
        q_BHSD, k_BHSD, v_BHSD = (self._heads(y) for y in (q_BSN, k_BSN, self.v(x_BSN)))
        earlier = 0 if cache is None else cache.length
        k_BHPD, v_BHPD = (k_BHSD, v_BHSD) if cache is None else cache.append(k_BHSD, v_BHSD)
        # `is_causal` assumes that the first query has the first key.
        is_seen_SP = _causal_mask(q_BHSD.shape[2], earlier, x_BSN.device) if earlier else None
        y_BHSD = F.scaled_dot_product_attention(
            q_BHSD, k_BHPD, v_BHPD, attn_mask=is_seen_SP, is_causal=is_seen_SP is None, scale=self.scale
        )
        y_BSN: Tensor = self.o(y_BHSD.transpose(1, 2).flatten(2))
        return y_BSN

    def _heads(self, y_BSN: Tensor) -> Tensor:
        B, S, _ = y_BSN.shape
        return y_BSN.view(B, S, -1, self.d_head).transpose(1, 2)


def _causal_mask(new: int, earlier: int, device: torch.device) -> Bool[Tensor, "S P"]:
    """Return which of all positions each of the last `new` sees: all earlier ones and itself."""
    return torch.ones(new, earlier + new, dtype=torch.bool, device=device).tril(earlier)
