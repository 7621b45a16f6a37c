"""Gradient entries scale with width like the eps of the rules, in rows that the reference model does not have."""

from typing import Any

import pytest
from adapters.exponents import LATE, exponents

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")

FACTORS = (1, 2, 4)
# model_type, whether ranks or keys and values grow with the width -> exponents of the rules.
EXPECTED: dict[tuple[str, bool], dict[str, float]] = {
    ("deepseek_v3", False): {
        "self_attn.q_a_proj.weight": 0, "self_attn.q_a_layernorm.weight": 0, "self_attn.q_b_proj.weight": -1,
        "self_attn.kv_a_proj_with_mqa.weight": 0, "self_attn.kv_a_layernorm.weight": 0,
        "self_attn.kv_b_proj.weight": -1,
        "self_attn.q_a_proj.bias": 0, "self_attn.kv_a_proj_with_mqa.bias": 0,
    },
    ("deepseek_v3", True): {
        "self_attn.q_a_proj.weight": -1, "self_attn.q_a_layernorm.weight": -1, "self_attn.q_b_proj.weight": -1,
        "self_attn.kv_a_proj_with_mqa.weight": -1, "self_attn.kv_a_layernorm.weight": -1,
        "self_attn.kv_b_proj.weight": -1,
    },
    ("gpt_oss", False): {"self_attn.v_proj.bias": 0, "self_attn.sinks": -1},
    ("gpt_oss", True): {
        "self_attn.v_proj.weight": -1, "self_attn.v_proj.bias": -1, "self_attn.sinks": -1,
    },
}  # fmt: skip
# Rows whose gradients add up over heads or positions: their terms agree only after some training.
EXPECTED_LATE = {
    "gpt_oss": {"self_attn.v_proj.weight": 0, "self_attn.v_proj.bias": 0, "self_attn.sinks": -1},
    "qwen2_moe": {"mlp.shared_expert_gate.weight": 0},
}


def shape(model_type: str, grows: bool, factor: int) -> dict[str, Any]:
    """Return a model of 64 times `factor` channels, with heads of 16."""
    heads, part = 4 * factor, factor if grows else 1
    common = {"hidden_size": 64 * factor, "num_attention_heads": heads, "num_hidden_layers": 2, "vocab_size": 256}
    own: dict[str, dict[str, Any]] = {
        "deepseek_v3": {
            "num_key_value_heads": heads, "q_lora_rank": 32 * part, "kv_lora_rank": 32 * part, "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 4, "v_head_dim": 16, "intermediate_size": 64 * factor,
            "moe_intermediate_size": 32 * factor, "n_shared_experts": 1, "n_routed_experts": 4,
            "attention_bias": True,
        },
        "gpt_oss": {
            "num_key_value_heads": part, "head_dim": 16, "intermediate_size": 32 * factor, "num_local_experts": 4,
        },
        "qwen2_moe": {
            "num_key_value_heads": heads, "intermediate_size": 64 * factor, "moe_intermediate_size": 32 * factor,
            "shared_expert_intermediate_size": 64 * factor, "num_experts": 4,
        },
    }  # fmt: skip
    return {**common, **own[model_type]}


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "grows"), EXPECTED)
def test_gradient_exponents_are_those_of_the_rules(model_type: str, grows: bool) -> None:
    found = exponents(model_type, [shape(model_type, grows, factor) for factor in FACTORS], FACTORS)
    expected = EXPECTED[model_type, grows]
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=0.3)
    if "mlp.router.bias" in found:  # the same error signal reaches the weight and the bias of a router
        assert found["mlp.router.bias"] == pytest.approx(found["mlp.router.weight"], abs=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", EXPECTED_LATE)
def test_gradient_exponents_after_some_training(model_type: str) -> None:
    """The steps were chosen with the seeds 0 to 2; these are other seeds."""
    sizes = [shape(model_type, False, factor) for factor in FACTORS]
    found = exponents(model_type, sizes, FACTORS, seeds=(3, 4, 5), steps=LATE)
    expected = EXPECTED_LATE[model_type]
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=0.3)


@pytest.mark.slow
def test_gradients_of_up_biases_fall_with_the_expert_size() -> None:
    common = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2}
    own = {"vocab_size": 256, "moe_num_experts": 4, "moe_num_shared_experts": 1, "mlp_bias": True}
    sizes = [{**common, **own, "intermediate_size": 32 * factor} for factor in FACTORS]
    found = exponents("aria_text", sizes, FACTORS)
    biases = {f"mlp.shared_experts.{name}.bias": -1 for name in ("gate_proj", "up_proj")}
    assert {name: found[name] for name in biases} == pytest.approx(biases, abs=0.3)
