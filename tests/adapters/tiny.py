"""Tiny models of every family, whose sizes differ from each other wherever the architecture allows it."""

from typing import Any

import torch
from torch import nn

COMMON = {
    "vocab_size": 64,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PER_HEAD = {"head_dim": 8}
LATENT = {
    "num_key_value_heads": 6,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 4,
    "v_head_dim": 7,
}
DENSE_FIRST = {"first_k_dense_replace": 1, "intermediate_size": 40, "moe_intermediate_size": 28}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}
GRANITE = {**LOCAL, "intermediate_size": 40, "shared_intermediate_size": 28}

# model_type -> configuration keys beside COMMON.
TINY: dict[str, dict[str, Any]] = {
    "mixtral": {**LOCAL, "intermediate_size": 40},
    "olmoe": {**EXPERTS, "intermediate_size": 40},
    "qwen2_moe": {
        **EXPERTS, "intermediate_size": 40, "moe_intermediate_size": 28, "shared_expert_intermediate_size": 20,
        "mlp_only_layers": [0],
    },
    "qwen3_moe": {**LOCAL, "intermediate_size": 40, "moe_intermediate_size": 28, "mlp_only_layers": [0], **PER_HEAD},
    "mellum": {**LOCAL, "moe_intermediate_size": 28, "sliding_window": 16, **PER_HEAD},
    "flint": {
        **EXPERTS, "intermediate_size": 40, "moe_intermediate_size": 28, "shared_expert_intermediate_size": 20,
        "mlp_only_layers": [0], "sliding_window": 16, **PER_HEAD,
    },
    "deepseek_v2": {**LATENT, **DENSE_FIRST, **ROUTED, "n_shared_experts": 2},
    "deepseek_v3": {**LATENT, **DENSE_FIRST, **ROUTED, "n_shared_experts": 2},
    "glm4_moe_lite": {**LATENT, **DENSE_FIRST, **ROUTED, "n_shared_experts": 2},
    "axk1": {**LATENT, **DENSE_FIRST, **ROUTED, "n_shared_experts": 2},
    "glm4_moe": {**DENSE_FIRST, **ROUTED, **PER_HEAD, "n_shared_experts": 2, "use_qk_norm": True},
    "exaone_moe": {**DENSE_FIRST, **EXPERTS, **PER_HEAD, "num_shared_experts": 2, "sliding_window": 16},
    "solar_open": {**ROUTED, **PER_HEAD, "moe_intermediate_size": 28, "n_shared_experts": 2},
    "dots1": {**DENSE_FIRST, **ROUTED, **PER_HEAD, "n_shared_experts": 2, "sliding_window": 16},
    "gpt_oss": {**LOCAL, **PER_HEAD, "intermediate_size": 40, "sliding_window": 16},
    "granitemoe": {**LOCAL, "intermediate_size": 40},
    "granitemoe_swa": {**GRANITE, "sliding_window": 16},
    "granitemoeshared": GRANITE,
    "ernie4_5_moe": {
        "moe_num_experts": 8, "moe_k": 2, "intermediate_size": 40, "moe_intermediate_size": 28,
        "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 2,
    },
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": 2, "intermediate_size": 40, **PER_HEAD},
    "hy_v3": {
        **EXPERTS, **PER_HEAD, "intermediate_size": 40, "moe_intermediate_size": 28, "num_shared_experts": 2,
    },
    "minimax_m2": {**LOCAL, **PER_HEAD, "intermediate_size": 40, "rotary_dim": 4},
    "minimax_m3_vl_text": {
        **LOCAL, **PER_HEAD, "intermediate_size": 40, "shared_intermediate_size": 28, "rotary_dim": 4,
    },
    "laguna": {
        **EXPERTS, **PER_HEAD, "intermediate_size": 40, "moe_intermediate_size": 28,
        "shared_expert_intermediate_size": 20, "sliding_window": 16,
    },
    "llama4_text": {**LOCAL, **PER_HEAD, "intermediate_size": 40, "intermediate_size_mlp": 56},
    "phimoe": {**LOCAL, "intermediate_size": 40},
    "aria_text": {
        "moe_num_experts": 8, "moe_topk": 2, "intermediate_size": 40, "moe_num_shared_experts": 2, **PER_HEAD,
    },
    "cohere2_moe": {
        **EXPERTS, **PER_HEAD, "intermediate_size": 40, "num_shared_experts": 2, "sliding_window": 16,
    },
    "flex_olmo": {**EXPERTS, "intermediate_size": 40},
    "afmoe": {
        **EXPERTS, **PER_HEAD, "intermediate_size": 40, "moe_intermediate_size": 28, "num_shared_experts": 2,
        "num_dense_layers": 1, "sliding_window": 16,
    },
    "kolibri1": {
        **LOCAL, **PER_HEAD, "moe_intermediate_size": 28, "shared_expert_intermediate_size": 20, "sliding_window": 16,
    },
}  # fmt: skip


def config(model_type: str, **changes: Any) -> Any:
    """Return the tiny configuration of a family."""
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **{**COMMON, **TINY[model_type], **changes})


def build(model_type: str, device: str = "cpu", **changes: Any) -> nn.Module:
    """Return a tiny model in eager mode."""
    from transformers import AutoModelForCausalLM

    made = config(model_type, **changes)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(made, attn_implementation="eager", experts_implementation="eager")


def wider(model_type: str, factor: int = 2) -> dict[str, Any]:
    """Return changes that make a tiny model wider: width, heads and hidden units."""
    own = {**COMMON, **TINY[model_type]}
    grow = ("hidden_size", "num_attention_heads", "intermediate_size", "moe_intermediate_size", "intermediate_size_mlp")
    grow += ("shared_intermediate_size", "shared_expert_intermediate_size")
    changes = {key: factor * own[key] for key in grow if key in own}
    if own["num_key_value_heads"] == own["num_attention_heads"]:
        changes["num_key_value_heads"] = factor * own["num_key_value_heads"]
    return changes


def more_experts(model_type: str, factor: int = 2) -> dict[str, Any]:
    """Return changes that multiply experts and active experts."""
    own = TINY[model_type]
    keys = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    keys += ("num_experts_per_tok", "moe_k", "moe_topk")
    return {key: factor * own[key] for key in keys if key in own}
