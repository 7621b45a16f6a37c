"""Unembedding and cross-entropy in chunks of tokens, without the logits of the whole batch.

    loss = mean_t [ logsumexp(W h_t) - W_{y_t} . h_t ]

The forward pass computes the gradients of h and W from each chunk of logits; the backward pass only scales them. This
takes three matrix products in total, as without chunks.

Shapes: T tokens, N n_embd, V vocabulary, c tokens of one chunk.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits per chunk: 32 MiB in float32.
CHUNK_LOGITS = 2**23


def linear_cross_entropy(
    h_TN: Float[Tensor, "T N"], weight_VN: Float[Tensor, "V N"], target_T: Int[Tensor, "T"]
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of `target` under the logits h W^T, in the dtype of autocast or of `h`.

    Softmax and sums are at least float32.
    """
    device = h_TN.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else h_TN.dtype
    needs_gradient = torch.is_grad_enabled() and (h_TN.requires_grad or weight_VN.requires_grad)
    with torch.autocast(device, enabled=False):
        return _apply(h_TN, weight_VN, target_T, dtype, needs_gradient)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_TN: Tensor, weight_VN: Tensor, target_T: Tensor, dtype: torch.dtype, needs_gradient: bool
    ) -> Tensor:
        wide = torch.promote_types(dtype, torch.float32)
        tokens = len(target_T)
        weight = weight_VN.to(dtype)
        chunk = max(1, CHUNK_LOGITS // len(weight))
        total = h_TN.new_zeros((), dtype=wide)
        if needs_gradient:
            dh_TN = torch.empty_like(h_TN)
            dweight_VN = torch.zeros_like(weight_VN)
        for start in range(0, tokens, chunk):
            h_cN, target_c1 = h_TN[start : start + chunk].to(dtype), target_T[start : start + chunk, None]
            log_p_cV = torch.log_softmax((h_cN @ weight.T).to(wide), -1)
            total -= log_p_cV.gather(1, target_c1).sum()
            if needs_gradient:
                # d loss / d logits = (softmax - one-hot) / T
                dlogits_cV = log_p_cV.exp_()
                dlogits_cV.scatter_add_(1, target_c1, dlogits_cV.new_full(target_c1.shape, -1.0))
                dlogits = dlogits_cV.div_(tokens).to(dtype)
                dh_TN[start : start + chunk] = dlogits @ weight
                if dtype == weight_VN.dtype:
                    dweight_VN.addmm_(dlogits.T, h_cN)
                else:
                    dweight_VN += dlogits.T @ h_cN
        if needs_gradient:
            ctx.save_for_backward(dh_TN, dweight_VN)
        return total / tokens

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients from the forward pass."""
        dh_TN, dweight_VN = ctx.saved_tensors
        return dh_TN * dloss, dweight_VN * dloss, None, None, None


_apply: Callable[..., Tensor] = _LinearCrossEntropy.apply
