"""Names of parameters in other training programs, for the families that these programs implement themselves.

A row has the pattern of a name in transformers, then the program's names of the same parameter. `#` stands for a
number. Layouts may differ: learning rates and weight decay do not depend on them.
"""

from collections.abc import Mapping
from typing import Literal

from expertp.errors import InputError

Program = Literal["torchtitan", "automodel"]
Names = Mapping[str, tuple[str, ...]]
TITLES: Mapping[Program, str] = {"torchtitan": "torchtitan", "automodel": "NeMo Automodel"}

# fmt: off
TITAN_DECODER = """
model.embed_tokens.weight                          | tok_embeddings.weight
model.norm.weight                                  | norm.weight
lm_head.weight                                     | lm_head.weight
model.layers.#.input_layernorm.weight              | layers.#.attention_norm.weight
model.layers.#.post_attention_layernorm.weight     | layers.#.ffn_norm.weight
model.layers.#.self_attn.o_proj.weight             | layers.#.attention.wo.weight
"""
TITAN_QKV = """
model.layers.#.self_attn.q_proj.weight             | layers.#.attention.qkv_linear.wq.weight
model.layers.#.self_attn.k_proj.weight             | layers.#.attention.qkv_linear.wk.weight
model.layers.#.self_attn.v_proj.weight             | layers.#.attention.qkv_linear.wv.weight
"""
TITAN_HEAD_NORMS = """
model.layers.#.self_attn.q_norm.weight             | layers.#.attention.q_norm.weight
model.layers.#.self_attn.k_norm.weight             | layers.#.attention.k_norm.weight
"""
TITAN_LATENT_ATTENTION = """
model.layers.#.self_attn.q_proj.weight             | layers.#.attention.wq.weight
model.layers.#.self_attn.q_a_proj.weight           | layers.#.attention.wq_a.weight
model.layers.#.self_attn.q_a_layernorm.weight      | layers.#.attention.q_norm.weight
model.layers.#.self_attn.q_b_proj.weight           | layers.#.attention.wq_b.weight
model.layers.#.self_attn.kv_a_proj_with_mqa.weight | layers.#.attention.wkv_a.weight
model.layers.#.self_attn.kv_a_layernorm.weight     | layers.#.attention.kv_norm.weight
model.layers.#.self_attn.kv_b_proj.weight          | layers.#.attention.wkv_b.weight
"""
TITAN_DENSE = """
model.layers.#.mlp.gate_proj.weight                | layers.#.feed_forward.w1.weight
model.layers.#.mlp.up_proj.weight                  | layers.#.feed_forward.w3.weight
model.layers.#.mlp.down_proj.weight                | layers.#.feed_forward.w2.weight
"""
TITAN_EXPERTS = "layers.#.moe.routed_experts.inner_experts"
TITAN_MOE = f"""
model.layers.#.mlp.gate.weight                     | layers.#.moe.router.gate.weight
model.layers.#.mlp.experts.gate_up_proj            | {TITAN_EXPERTS}.w1_EFD | {TITAN_EXPERTS}.w3_EFD
model.layers.#.mlp.experts.down_proj               | {TITAN_EXPERTS}.w2_EDF
"""
TITAN_SHARED = """
model.layers.#.mlp.shared_experts.gate_proj.weight | layers.#.moe.shared_experts.w1.weight
model.layers.#.mlp.shared_experts.up_proj.weight   | layers.#.moe.shared_experts.w3.weight
model.layers.#.mlp.shared_experts.down_proj.weight | layers.#.moe.shared_experts.w2.weight
"""
TITAN_GPT_OSS = f"""
model.layers.#.self_attn.q_proj.bias               | layers.#.attention.qkv_linear.wq.bias
model.layers.#.self_attn.k_proj.bias               | layers.#.attention.qkv_linear.wk.bias
model.layers.#.self_attn.v_proj.bias               | layers.#.attention.qkv_linear.wv.bias
model.layers.#.self_attn.o_proj.bias               | layers.#.attention.wo.bias
model.layers.#.self_attn.sinks                     | layers.#.attention.sinks
model.layers.#.mlp.router.weight                   | layers.#.moe.router.gate.weight
model.layers.#.mlp.router.bias                     | layers.#.moe.router.gate.bias
model.layers.#.mlp.experts.gate_up_proj            | {TITAN_EXPERTS}.mlp1_weight_EGD
model.layers.#.mlp.experts.gate_up_proj_bias       | {TITAN_EXPERTS}.mlp1_bias_EG
model.layers.#.mlp.experts.down_proj               | {TITAN_EXPERTS}.mlp2_weight_EDF
model.layers.#.mlp.experts.down_proj_bias          | {TITAN_EXPERTS}.mlp2_bias_ED
"""
# Automodel keeps the other names of transformers. The last name of a row is that of its Transformer Engine backends.
NEMO_PLACE = "model.layers.#.mlp.experts"
NEMO_EXPERTS = f"""
{NEMO_PLACE}.gate_up_proj        | {NEMO_PLACE}.gate_and_up_projs  | {NEMO_PLACE}.gate_up_linear.weight#
{NEMO_PLACE}.down_proj           | {NEMO_PLACE}.down_projs         | {NEMO_PLACE}.down_linear.weight#
"""
NEMO_GPT_OSS = f"""
{NEMO_PLACE}.gate_up_proj_bias   | {NEMO_PLACE}.gate_up_proj_bias  | {NEMO_PLACE}.gate_up_linear.bias#
{NEMO_PLACE}.down_proj_bias      | {NEMO_PLACE}.down_proj_bias     | {NEMO_PLACE}.down_linear.bias#
model.layers.#.mlp.router.weight | model.layers.#.mlp.gate.weight
model.layers.#.mlp.router.bias   | model.layers.#.mlp.gate.bias
model.layers.#.self_attn.sinks   | model.layers.#.self_attn.sinks  | model.layers.#.self_attn.attn_module.softmax_offset
"""
# fmt: on
NEMO_FAMILIES = (
    *("deepseek_v3", "glm4_moe", "glm4_moe_lite", "qwen3_moe", "ernie4_5_moe"),
    *("minimax_m2", "laguna", "hy_v3"),
)


def _names(text: str) -> Names:
    """Read a table."""
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line]
    return {pattern: tuple(names) for pattern, *names in rows}


# Families that a program implements itself -> its names.
IMPLEMENTED: Mapping[Program, Mapping[str, Names]] = {
    "torchtitan": {
        "deepseek_v3": _names(TITAN_DECODER + TITAN_LATENT_ATTENTION + TITAN_DENSE + TITAN_MOE + TITAN_SHARED),
        "qwen3_moe": _names(TITAN_DECODER + TITAN_QKV + TITAN_HEAD_NORMS + TITAN_DENSE + TITAN_MOE),
        "gpt_oss": _names(TITAN_DECODER + TITAN_QKV + TITAN_GPT_OSS),
    },
    "automodel": {
        **dict.fromkeys(NEMO_FAMILIES, _names(NEMO_EXPERTS)),
        "gpt_oss": _names(NEMO_EXPERTS + NEMO_GPT_OSS),
    },
}
# The names of query, key and value projections in torchtitan, and of one projection that makes all three.
TITAN_SEPARATE, TITAN_FUSED = ("wq", "wk", "wv"), "wqkv"


def implements(program: Program, family: str) -> bool:
    """Return whether a program has an implementation of its own, with names of its own."""
    return family in IMPLEMENTED[program]


def names_in(program: Program, family: str, pattern: str) -> tuple[str, ...]:
    """Return the names that a parameter may have in a program, given its name pattern in transformers.

    >>> names_in("torchtitan", "qwen3_moe", "model.layers.#.mlp.experts.down_proj")
    ('layers.#.moe.routed_experts.inner_experts.w2_EDF',)
    >>> names_in("automodel", "mixtral", "model.norm.weight")
    ('model.norm.weight',)
    """
    own = IMPLEMENTED[program].get(family, {})
    if program == "torchtitan" and own:
        if pattern not in own:
            raise InputError(
                f"torchtitan's own {family} has no parameter for {pattern}; plan a configuration without it, or "
                "export the plan with --json"
            )
        return own[pattern]
    # Automodel can also train the model of transformers, which has the names of transformers.
    return tuple(dict.fromkeys((pattern, *own.get(pattern, ()))))
