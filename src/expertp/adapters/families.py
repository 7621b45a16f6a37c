"""Families of models: one table of roles per `model_type` of transformers, composed of blocks that families share.

Meaning comes from these tables, sizes from the shapes of tensors. The few facts of `Family` are
what neither names nor shapes tell. A table may have rows for parameters that an instance does not have, such as biases
that a configuration adds.
"""

from collections.abc import Mapping
from typing import Any

from expertp.adapters.family import Family, Gate, NativeMultiplier
from expertp.adapters.roles import parse_rows

# fmt: off
TABLES = """
model.embed_tokens.weight                                | embedding          | V N
model.norm.weight                                        | final_norm         | N
model.norm.bias                                          | final_norm         | N
lm_head.weight                                           | unembedding        | V N
lm_head.bias                                             | unembedding_bias   | V
"""
PRE_NORMS = """
model.layers.#.input_layernorm.weight                    | norm               | N
model.layers.#.input_layernorm.bias                      | norm               | N
model.layers.#.post_attention_layernorm.weight           | norm               | N
model.layers.#.post_attention_layernorm.bias             | norm               | N
"""
PROJECTIONS = """
model.layers.#.self_attn.q_proj.weight                   | attn_qk            | Q N
model.layers.#.self_attn.q_proj.bias                     | linear_bias        | Q
model.layers.#.self_attn.k_proj.weight                   | attn_qk            | KV N
model.layers.#.self_attn.k_proj.bias                     | linear_bias        | KV
model.layers.#.self_attn.v_proj.weight                   | attn_v             | KV N
model.layers.#.self_attn.v_proj.bias                     | attn_v_bias        | KV
"""
OUTPUT = """
model.layers.#.self_attn.o_proj.weight                   | attn_o +           | N Q
model.layers.#.self_attn.o_proj.bias                     | linear_bias +      | N
"""
ATTENTION = PROJECTIONS + OUTPUT
HEAD_NORMS = """
model.layers.#.self_attn.q_norm.weight                   | qk_norm            | D
model.layers.#.self_attn.k_norm.weight                   | qk_norm            | D
"""
WIDE_QK_NORMS = """
model.layers.#.self_attn.q_norm.weight                   | norm               | Q
model.layers.#.self_attn.k_norm.weight                   | norm               | KV
"""
SINKS = """
model.layers.#.self_attn.sinks                           | attn_sink          | A
"""
LATENT_ATTENTION = """
model.layers.#.self_attn.q_proj.weight                   | attn_qk            | Q N
model.layers.#.self_attn.q_a_proj.weight                 | latent_down        | RQ N
model.layers.#.self_attn.q_a_proj.bias                   | latent_bias        | RQ
model.layers.#.self_attn.q_a_layernorm.weight            | latent_norm        | RQ
model.layers.#.self_attn.q_b_proj.weight                 | latent_up          | Q RQ
model.layers.#.self_attn.kv_a_proj_with_mqa.weight       | latent_down        | RK+P N
model.layers.#.self_attn.kv_a_proj_with_mqa.bias         | latent_bias        | RK+P
model.layers.#.self_attn.kv_a_layernorm.weight           | latent_norm        | RK
model.layers.#.self_attn.kv_b_proj.weight                | latent_up          | B RK
model.layers.#.self_attn.o_proj.weight                   | attn_o +           | N O
model.layers.#.self_attn.o_proj.bias                     | linear_bias +      | N
"""
EXPERTS = """
model.layers.#.mlp.experts.gate_up_proj                  | expert_up          | E 2H N
model.layers.#.mlp.experts.down_proj                     | expert_down +      | E N H
"""
MOE = EXPERTS + """
model.layers.#.mlp.gate.weight                           | router             | E N
"""
# Experts with the layout [expert, in, out].
EXPERTS_IN_OUT = """
model.layers.#.mlp.router.weight                         | router             | E N
model.layers.#.mlp.router.bias                           | router_bias        | E
model.layers.#.mlp.experts.gate_up_proj                  | expert_up          | E N 2H
model.layers.#.mlp.experts.gate_up_proj_bias             | expert_up_bias     | E 2H
model.layers.#.mlp.experts.down_proj                     | expert_down +      | E H N
model.layers.#.mlp.experts.down_proj_bias                | expert_down_bias + | E N
"""
DENSE = """
model.layers.#.mlp.gate_proj.weight                      | ffn_up             | F N
model.layers.#.mlp.gate_proj.bias                        | ffn_up_bias        | F
model.layers.#.mlp.up_proj.weight                        | ffn_up             | F N
model.layers.#.mlp.up_proj.bias                          | ffn_up_bias        | F
model.layers.#.mlp.down_proj.weight                      | ffn_down +         | N F
model.layers.#.mlp.down_proj.bias                        | linear_bias +      | N
"""
SHARED = """
model.layers.#.mlp.shared_experts.gate_proj.weight       | ffn_up             | S N
model.layers.#.mlp.shared_experts.gate_proj.bias         | ffn_up_bias        | S
model.layers.#.mlp.shared_experts.up_proj.weight         | ffn_up             | S N
model.layers.#.mlp.shared_experts.up_proj.bias           | ffn_up_bias        | S
model.layers.#.mlp.shared_experts.down_proj.weight       | ffn_down +         | N S
model.layers.#.mlp.shared_experts.down_proj.bias         | linear_bias +      | N
"""
SHARED_EXPERT = """
model.layers.#.mlp.shared_expert.gate_proj.weight        | ffn_up             | S N
model.layers.#.mlp.shared_expert.up_proj.weight          | ffn_up             | S N
model.layers.#.mlp.shared_expert.down_proj.weight        | ffn_down +         | N S
"""
SELECTION_BIAS_OF_ROUTER = """
model.layers.#.mlp.gate.e_score_correction_bias          | expert_bias        | E
"""
SELECTION_BIAS_OF_BLOCK = """
model.layers.#.mlp.e_score_correction_bias               | expert_bias        | E
"""
GRANITE = """
model.layers.#.block_sparse_moe.router.weight            | router             | E N
model.layers.#.block_sparse_moe.experts.gate_up_proj     | expert_up          | E 2H N
model.layers.#.block_sparse_moe.experts.down_proj        | expert_down +      | E N H
model.layers.#.shared_mlp.input_linear.weight            | ffn_up             | 2S N
model.layers.#.shared_mlp.output_linear.weight           | ffn_down +         | N S
"""
LLAMA4_FEED_FORWARD = """
model.layers.#.feed_forward.router.weight                | router             | E N
model.layers.#.feed_forward.experts.gate_up_proj         | expert_up          | E N 2H
model.layers.#.feed_forward.experts.down_proj            | expert_down +      | E H N
model.layers.#.feed_forward.shared_expert.gate_proj.weight | ffn_up           | S N
model.layers.#.feed_forward.shared_expert.up_proj.weight | ffn_up             | S N
model.layers.#.feed_forward.shared_expert.down_proj.weight | ffn_down +       | N S
model.layers.#.feed_forward.gate_proj.weight             | ffn_up             | F N
model.layers.#.feed_forward.up_proj.weight               | ffn_up             | F N
model.layers.#.feed_forward.down_proj.weight             | ffn_down +         | N F
"""
# fmt: on

PRE_NORM_MOE = TABLES + PRE_NORMS + ATTENTION + MOE
DEEPSEEK = TABLES + PRE_NORMS + LATENT_ATTENTION + MOE + SHARED + DENSE
GLM4 = PRE_NORM_MOE + HEAD_NORMS + SHARED + DENSE + SELECTION_BIAS_OF_ROUTER


def _inside(text: str) -> str:
    """Return rows of a block whose outputs pass a norm before they are added to the stream."""
    return text.replace(" +", "  ")


def _all_unless_normalized(config: Any) -> Gate:
    return "mean" if config.norm_topk_prob else "all"


def _sum_unless_normalized(config: Any) -> Gate:
    return "mean" if config.norm_topk_prob else "sum"


def _all(config: Any) -> Gate:
    del config
    return "all"


def _sum(config: Any) -> Gate:
    del config
    return "sum"


def _cohere(config: Any) -> Gate:
    return "mean" if config.expert_selection_fn == "softmax" or config.norm_topk_prob else "sum"


def _scaled_embedding(config: Any) -> str | None:
    return "mup_enabled multiplies the embedding by sqrt(hidden_size)" if config.mup_enabled else None


def _weights_on_inputs(config: Any) -> str | None:
    return "moe_apply_router_weight_on_input is not covered" if config.moe_apply_router_weight_on_input else None


GRANITE_MULTIPLIERS = (
    NativeMultiplier("residual_multiplier", "residual", 1),
    NativeMultiplier("logits_scaling", "logits", -1),
)
LIKE_DEEPSEEK_V3: dict[str, Any] = {
    "gate": _sum_unless_normalized,
    "selection": "sigmoid",
    "auxiliary_loss": False,
}


def _family(model_type: str, text: str, **facts: Any) -> Family:
    return Family(model_type, parse_rows(text), **facts)


_ALL_FAMILIES = (
    _family("mixtral", PRE_NORM_MOE),
    _family("olmoe", PRE_NORM_MOE + WIDE_QK_NORMS, gate=_all_unless_normalized),
    _family(
        "qwen2_moe",
        PRE_NORM_MOE + DENSE + SHARED_EXPERT + "model.layers.#.mlp.shared_expert_gate.weight | shared_gate | 1 N",
        gate=_all_unless_normalized,
    ),
    _family("qwen3_moe", PRE_NORM_MOE + HEAD_NORMS + DENSE, gate=_all_unless_normalized),
    _family("mellum", PRE_NORM_MOE + HEAD_NORMS + DENSE, gate=_all_unless_normalized),
    _family("flint", PRE_NORM_MOE + HEAD_NORMS + SINKS + DENSE + SHARED_EXPERT, gate=_sum_unless_normalized),
    _family("deepseek_v2", DEEPSEEK, gate=_all, auxiliary_loss=False),
    _family("deepseek_v3", DEEPSEEK + SELECTION_BIAS_OF_ROUTER, **LIKE_DEEPSEEK_V3),
    _family("glm4_moe_lite", DEEPSEEK + SELECTION_BIAS_OF_ROUTER, **LIKE_DEEPSEEK_V3),
    _family(
        "axk1",
        TABLES
        + PRE_NORMS
        + LATENT_ATTENTION
        + DENSE
        + _inside(MOE + SHARED)
        + SELECTION_BIAS_OF_ROUTER
        + "model.layers.#.mlp.post_mlp_layernorm.weight | norm + | N",
        **LIKE_DEEPSEEK_V3,
    ),
    _family("glm4_moe", GLM4, **LIKE_DEEPSEEK_V3),
    _family("exaone_moe", GLM4, **LIKE_DEEPSEEK_V3),
    _family("solar_open", GLM4, **LIKE_DEEPSEEK_V3),
    _family("dots1", GLM4, **LIKE_DEEPSEEK_V3),
    _family("gpt_oss", TABLES + PRE_NORMS + ATTENTION + SINKS + EXPERTS_IN_OUT),
    _family("granitemoe", TABLES + PRE_NORMS + ATTENTION + GRANITE, native=GRANITE_MULTIPLIERS),
    _family("granitemoe_swa", TABLES + PRE_NORMS + ATTENTION + SINKS + GRANITE, native=GRANITE_MULTIPLIERS),
    _family("granitemoeshared", TABLES + PRE_NORMS + ATTENTION + GRANITE, native=GRANITE_MULTIPLIERS),
    _family(
        "ernie4_5_moe",
        PRE_NORM_MOE
        + DENSE
        + SHARED
        + "model.layers.#.mlp.gate.moe_statics.e_score_correction_bias | expert_bias | 1 E",
        selection="softmax",
    ),
    _family(
        "hunyuan_v1_moe",
        TABLES
        + PRE_NORMS
        + ATTENTION
        + EXPERTS
        + SHARED.replace("shared_experts", "shared_mlp")
        + """
        model.layers.#.self_attn.query_layernorm.weight  | qk_norm | D
        model.layers.#.self_attn.key_layernorm.weight    | qk_norm | D
        model.layers.#.mlp.gate.wg.weight                | router  | E N
        """,
        auxiliary_loss=False,
    ),
    _family(
        "hy_v3",
        PRE_NORM_MOE + HEAD_NORMS + DENSE + SHARED + SELECTION_BIAS_OF_BLOCK,
        selection="sigmoid",
        auxiliary_loss=False,
    ),
    _family("minimax_m2", PRE_NORM_MOE + WIDE_QK_NORMS + SELECTION_BIAS_OF_BLOCK, selection="sigmoid"),
    _family(
        "minimax_m3_vl_text",
        PRE_NORM_MOE
        + HEAD_NORMS
        + SELECTION_BIAS_OF_ROUTER
        + """
        model.layers.#.mlp.shared_experts.gate_up_proj.weight | ffn_up     | 2S N
        model.layers.#.mlp.shared_experts.down_proj.weight    | ffn_down + | N S
        model.layers.#.mlp.gate_up_proj.weight                | ffn_up     | 2F N
        model.layers.#.mlp.down_proj.weight                   | ffn_down + | N F
        """,
        selection="sigmoid",
        gain_minus_one=True,
    ),
    _family(
        "laguna",
        PRE_NORM_MOE
        + HEAD_NORMS
        + DENSE
        + SHARED
        + SELECTION_BIAS_OF_ROUTER
        + "model.layers.#.self_attn.g_proj.weight | attn_qk | A N",
        selection="sigmoid",
        why_not=_weights_on_inputs,
    ),
    _family(
        "llama4_text",
        TABLES + PRE_NORMS + ATTENTION + LLAMA4_FEED_FORWARD,
        gate=_sum,
        auxiliary_loss=False,
        no_run="its router does not return the chosen experts, so that loads could not be counted",
    ),
    _family(
        "phimoe",
        TABLES + PRE_NORMS + ATTENTION + EXPERTS + "model.layers.#.mlp.router.weight | router | E N",
        experts_are_fixed=True,
        no_run="its router draws random numbers in training, so that a run could not be resumed",
    ),
    _family("aria_text", TABLES + PRE_NORMS + ATTENTION + EXPERTS_IN_OUT + SHARED, auxiliary_loss=False),
    _family(
        "cohere2_moe",
        PRE_NORM_MOE + DENSE + SHARED,
        gate=_cohere,
        auxiliary_loss=False,
        native=(NativeMultiplier("logit_scale", "logits", 1),),
    ),
    _family(
        "flex_olmo",
        TABLES
        + _inside(ATTENTION + MOE)
        + WIDE_QK_NORMS
        + """
        model.layers.#.post_attention_layernorm.weight   | norm + | N
        model.layers.#.post_feedforward_layernorm.weight | norm + | N
        """,
        gate=_all_unless_normalized,
    ),
    _family(
        "afmoe",
        TABLES
        + _inside(ATTENTION + EXPERTS + DENSE + SHARED)
        + HEAD_NORMS
        + """
        model.layers.#.self_attn.gate_proj.weight        | attn_qk     | Q N
        model.layers.#.input_layernorm.weight            | norm        | N
        model.layers.#.post_attention_layernorm.weight   | norm +      | N
        model.layers.#.pre_mlp_layernorm.weight          | norm        | N
        model.layers.#.post_mlp_layernorm.weight         | norm +      | N
        model.layers.#.mlp.router.gate.weight            | router      | E N
        model.layers.#.mlp.expert_bias                   | expert_bias | E
        """,
        selection="sigmoid",
        auxiliary_loss=False,
        why_not=_scaled_embedding,
    ),
    _family(
        "kolibri1",
        TABLES
        + PRE_NORMS
        + _inside(ATTENTION + MOE + SHARED)
        + HEAD_NORMS
        + SELECTION_BIAS_OF_ROUTER
        + """
        model.layers.#.post_self_attn_layernorm.weight   | norm + | N
        model.layers.#.post_mlp_layernorm.weight         | norm + | N
        """,
        gate=_sum_unless_normalized,
        selection="logit",
        auxiliary_loss=False,
    ),
)
FAMILIES: Mapping[str, Family] = {family.model_type: family for family in _ALL_FAMILIES}

STATE_SPACE = "its state-space or linear-attention parameters have no rule in the paper"
INDEXER = "the parameters of its indexer get no gradient from the language-model loss"
# Families without rules -> the reason.
REFUSED: Mapping[str, str] = {
    "minimax": "its residual stream is the normed state, where 1/m_L has another meaning",
    "jetmoe": "its attention has experts of its own",
    "deepseek_v4": "hyper-connections have no rule in the paper",
    "hy_v4": "hyper-connections have no rule in the paper",
    "zaya": "its router is an MLP and its residual scales are learned",
    "longcat_flash": "it has experts without parameters and two blocks per layer",
    "mimo_v2_flash": "its layers have different numbers of keys and values",
    "deepseek_v32": INDEXER,
    "glm_moe_dsa": INDEXER,
    "axk2": INDEXER,
    "jamba": STATE_SPACE,
    "granitemoehybrid": STATE_SPACE,
    "nemotron_h": STATE_SPACE,
    "lfm2_moe": STATE_SPACE,
    "qwen3_next": STATE_SPACE,
    "qwen3_5_moe": STATE_SPACE,
    "qwen3_5_moe_text": STATE_SPACE,
}
