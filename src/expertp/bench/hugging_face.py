"""Mixtral and OLMoE experts of Hugging Face transformers, if the extra [hf] is installed.

    mixtral, olmoe              the default implementation: sort and grouped_mm
    mixtral-eager, olmoe-eager  the eager implementation: one expert after another

These experts are gated, W_down (silu(W_gate x) * W_up x), with three matrices instead of two. Two thirds of the hidden
units give the same number of active parameters and FLOPs up to rounding. The benchmark compares the dispatch of tokens
to experts, not the same function.
"""

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

IMPLEMENTATIONS: Mapping[str, str] = {"": "grouped_mm", "-eager": "eager"}


def hugging_face_experts(n_exp: int, n_embd: int, n_hid: int, dtype: torch.dtype) -> dict[str, nn.Module]:
    """Return gated experts by name, called with (x_TN, expert_TK, gate_TK); empty without the extra.

    Args:
        n_exp: number of experts.
        n_embd: width of the tokens.
        n_hid: hidden units of the ungated experts to compare with.
        dtype: dtype of the random weights.
    """
    try:
        from transformers import MixtralConfig, OlmoeConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralExperts
        from transformers.models.olmoe.modeling_olmoe import OlmoeExperts
    except ImportError:  # not installed, or a version without stacked experts
        return {}
    kinds = {
        "mixtral": (MixtralExperts, partial(MixtralConfig, num_local_experts=n_exp)),
        "olmoe": (OlmoeExperts, partial(OlmoeConfig, num_experts=n_exp)),
    }
    # One head: the configs reject widths that are not a multiple of their default number of heads.
    shape = {"hidden_size": n_embd, "intermediate_size": gated_hidden(n_hid, dtype), "num_attention_heads": 1}
    return {
        name + ending: _with_weights(
            make_experts(make_config(**shape, num_key_value_heads=1, experts_implementation=implementation)), dtype
        )
        for name, (make_experts, make_config) in kinds.items()
        for ending, implementation in IMPLEMENTATIONS.items()
    }


def gated_hidden(n_hid: int, dtype: torch.dtype) -> int:
    """Return two thirds of `n_hid`, rounded to rows of a multiple of 16 bytes, as grouped_mm requires.

    >>> [gated_hidden(n_hid, torch.float32) for n_hid in (256, 64, 16)]
    [172, 44, 12]
    >>> [gated_hidden(n_hid, torch.bfloat16) for n_hid in (256, 64, 16)]
    [168, 40, 8]
    """
    step = 16 // dtype.itemsize
    return max(step, step * round(2 * n_hid / (3 * step)))


def _with_weights(experts: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Initialize the empty weights, whose layout is [expert, out, in]."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in experts.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / math.sqrt(weight.shape[-1]))
    return experts.to(dtype)
