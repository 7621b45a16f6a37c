"""The experts of Hugging Face transformers' Mixtral and OLMoE, where the extra [hf] is installed.

    mixtral, olmoe              as the library runs them by default: sort and grouped_mm
    mixtral-eager, olmoe-eager  as it runs them on request: one expert after another

They are gated, W_down (silu(W_gate x) * W_up x): three matrices where ours have two. With two thirds of the hidden
units they have as many active parameters, so their matrix products cost the same up to rounding. What is compared is
how tokens get to experts and back, not the same function.
"""

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

IMPLEMENTATIONS: Mapping[str, str] = {"": "grouped_mm", "-eager": "eager"}


def hugging_face_experts(n_exp: int, n_embd: int, n_hid: int, dtype: torch.dtype) -> dict[str, nn.Module]:
    """Return gated experts by name, each called with (x_TN, expert_TK, gate_TK); none without the extra.

    Args:
        n_exp: number of experts.
        n_embd: width of the tokens.
        n_hid: hidden units of the experts without gate that these are compared with.
        dtype: of the weights, which are random.
    """
    try:
        from transformers import MixtralConfig, OlmoeConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralExperts
        from transformers.models.olmoe.modeling_olmoe import OlmoeExperts
    except ImportError:  # not there, or from before its experts were stacked
        return {}
    kinds = {
        "mixtral": (MixtralExperts, partial(MixtralConfig, num_local_experts=n_exp)),
        "olmoe": (OlmoeExperts, partial(OlmoeConfig, num_experts=n_exp)),
    }
    # One head, since configs refuse a width that their default number of heads does not divide.
    shape = {"hidden_size": n_embd, "intermediate_size": gated_hidden(n_hid, dtype), "num_attention_heads": 1}
    return {
        name + ending: _with_weights(
            make_experts(make_config(**shape, num_key_value_heads=1, experts_implementation=implementation)), dtype
        )
        for name, (make_experts, make_config) in kinds.items()
        for ending, implementation in IMPLEMENTATIONS.items()
    }


def gated_hidden(n_hid: int, dtype: torch.dtype) -> int:
    """Return two thirds of `n_hid`, rounded to rows of whole 16 bytes, which grouped_mm wants.

    >>> [gated_hidden(n_hid, torch.float32) for n_hid in (256, 64, 16)]
    [172, 44, 12]
    >>> [gated_hidden(n_hid, torch.bfloat16) for n_hid in (256, 64, 16)]
    [168, 40, 8]
    """
    step = 16 // dtype.itemsize
    return max(step, step * round(2 * n_hid / (3 * step)))


def _with_weights(experts: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Fill weights that were left empty; the library's layout is [expert, out, in]."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in experts.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / math.sqrt(weight.shape[-1]))
    return experts.to(dtype)
