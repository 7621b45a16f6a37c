"""Plans for other programs: their own names of parameters, and the form of their settings.

The names are those of the programs' repositories in August 2026 (torchtitan b5bcd76c, NeMo Automodel 36044ad3).
"""

import re
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, get_args

import pytest
import yaml
from adapters.tiny import build, more_experts, wider

from expertp.adapters.adapted import adapt
from expertp.adapters.export import export, matches
from expertp.adapters.fit import Fit, TensorPlan
from expertp.adapters.programs import Program
from expertp.adapters.roles import pattern_of
from expertp.errors import InputError
from expertp.spec import BaseHPs

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")

HPS = BaseHPs(lr=0.01, init_std=0.02, adam_eps=1e-8, weight_decay=0.1)
ATTENTION, EXPERTS = "layers.1.attention", "layers.1.moe.routed_experts.inner_experts"
SELF, MLP = "model.layers.1.self_attn", "model.layers.1.mlp"
# A name in the program -> the name of the same parameter in transformers.
TITAN_DECODER = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
    "layers.1.attention_norm.weight": "model.layers.1.input_layernorm.weight",
    "layers.1.ffn_norm.weight": "model.layers.1.post_attention_layernorm.weight",
    f"{ATTENTION}.wo.weight": f"{SELF}.o_proj.weight",
}
TITAN_QKV = {
    f"{ATTENTION}.qkv_linear.wq.weight": f"{SELF}.q_proj.weight",
    f"{ATTENTION}.qkv_linear.wk.weight": f"{SELF}.k_proj.weight",
    f"{ATTENTION}.qkv_linear.wv.weight": f"{SELF}.v_proj.weight",
}
TITAN_FUSED = {f"{ATTENTION}.qkv_linear.wqkv.weight": f"{SELF}.q_proj.weight"}
TITAN_DENSE = {
    "layers.0.feed_forward.w1.weight": "model.layers.0.mlp.gate_proj.weight",
    "layers.0.feed_forward.w2.weight": "model.layers.0.mlp.down_proj.weight",
    "layers.0.feed_forward.w3.weight": "model.layers.0.mlp.up_proj.weight",
}
TITAN_MOE = {
    "layers.1.moe.router.gate.weight": f"{MLP}.gate.weight",
    f"{EXPERTS}.w1_EFD": f"{MLP}.experts.gate_up_proj",
    f"{EXPERTS}.w2_EDF": f"{MLP}.experts.down_proj",
    f"{EXPERTS}.w3_EFD": f"{MLP}.experts.gate_up_proj",
}
TITAN = {
    "deepseek_v3": {
        **TITAN_DECODER,
        f"{ATTENTION}.wq_a.weight": f"{SELF}.q_a_proj.weight",
        f"{ATTENTION}.q_norm.weight": f"{SELF}.q_a_layernorm.weight",
        f"{ATTENTION}.wq_b.weight": f"{SELF}.q_b_proj.weight",
        f"{ATTENTION}.wkv_a.weight": f"{SELF}.kv_a_proj_with_mqa.weight",
        f"{ATTENTION}.kv_norm.weight": f"{SELF}.kv_a_layernorm.weight",
        f"{ATTENTION}.wkv_b.weight": f"{SELF}.kv_b_proj.weight",
        **TITAN_DENSE,
        **TITAN_MOE,
        "layers.1.moe.shared_experts.w1.weight": f"{MLP}.shared_experts.gate_proj.weight",
        "layers.1.moe.shared_experts.w2.weight": f"{MLP}.shared_experts.down_proj.weight",
        "layers.1.moe.shared_experts.w3.weight": f"{MLP}.shared_experts.up_proj.weight",
    },
    "qwen3_moe": {
        **TITAN_DECODER,
        **TITAN_QKV,
        f"{ATTENTION}.q_norm.weight": f"{SELF}.q_norm.weight",
        f"{ATTENTION}.k_norm.weight": f"{SELF}.k_norm.weight",
        **TITAN_DENSE,
        **TITAN_MOE,
    },
    "gpt_oss": {
        **TITAN_DECODER,
        **TITAN_QKV,
        f"{ATTENTION}.qkv_linear.wq.bias": f"{SELF}.q_proj.bias",
        f"{ATTENTION}.qkv_linear.wk.bias": f"{SELF}.k_proj.bias",
        f"{ATTENTION}.qkv_linear.wv.bias": f"{SELF}.v_proj.bias",
        f"{ATTENTION}.wo.bias": f"{SELF}.o_proj.bias",
        f"{ATTENTION}.sinks": f"{SELF}.sinks",
        "layers.1.moe.router.gate.weight": f"{MLP}.router.weight",
        "layers.1.moe.router.gate.bias": f"{MLP}.router.bias",
        f"{EXPERTS}.mlp1_weight_EGD": f"{MLP}.experts.gate_up_proj",
        f"{EXPERTS}.mlp1_bias_EG": f"{MLP}.experts.gate_up_proj_bias",
        f"{EXPERTS}.mlp2_weight_EDF": f"{MLP}.experts.down_proj",
        f"{EXPERTS}.mlp2_bias_ED": f"{MLP}.experts.down_proj_bias",
    },
}
# Automodel's other names are those of transformers.
NEMO_EXPERTS = {
    f"{MLP}.experts.gate_and_up_projs": f"{MLP}.experts.gate_up_proj",
    f"{MLP}.experts.gate_up_linear.weight5": f"{MLP}.experts.gate_up_proj",
    f"{MLP}.experts.down_projs": f"{MLP}.experts.down_proj",
    f"{MLP}.experts.down_linear.weight5": f"{MLP}.experts.down_proj",
    "model.norm.weight": "model.norm.weight",
    "model.layers.1.self_attn.o_proj.weight": "model.layers.1.self_attn.o_proj.weight",
}
NEMO_ROUTER = {f"{MLP}.gate.weight": f"{MLP}.gate.weight"}
NEMO_SHARED = {f"{MLP}.shared_experts.down_proj.weight": f"{MLP}.shared_experts.down_proj.weight"}
NEMO = {
    "deepseek_v3": {
        **NEMO_EXPERTS,
        **NEMO_ROUTER,
        **NEMO_SHARED,
        f"{SELF}.kv_b_proj.weight": f"{SELF}.kv_b_proj.weight",
    },
    "qwen3_moe": {**NEMO_EXPERTS, **NEMO_ROUTER, f"{SELF}.q_norm.weight": f"{SELF}.q_norm.weight"},
    "gpt_oss": {
        **NEMO_EXPERTS,
        f"{MLP}.gate.weight": f"{MLP}.router.weight",
        f"{MLP}.gate.bias": f"{MLP}.router.bias",
        f"{MLP}.experts.gate_up_proj_bias": f"{MLP}.experts.gate_up_proj_bias",
        f"{MLP}.experts.gate_up_linear.bias5": f"{MLP}.experts.gate_up_proj_bias",
        f"{MLP}.experts.down_proj_bias": f"{MLP}.experts.down_proj_bias",
        f"{MLP}.experts.down_linear.bias5": f"{MLP}.experts.down_proj_bias",
        f"{SELF}.sinks": f"{SELF}.sinks",
        f"{SELF}.attn_module.softmax_offset": f"{SELF}.sinks",
        f"{SELF}.v_proj.bias": f"{SELF}.v_proj.bias",
    },
    "glm4_moe": {**NEMO_EXPERTS, **NEMO_ROUTER, **NEMO_SHARED},
    "glm4_moe_lite": {**NEMO_EXPERTS, **NEMO_ROUTER, **NEMO_SHARED},
    "ernie4_5_moe": {**NEMO_EXPERTS, **NEMO_ROUTER, **NEMO_SHARED},
    "minimax_m2": {**NEMO_EXPERTS, **NEMO_ROUTER},
    "laguna": {**NEMO_EXPERTS, **NEMO_ROUTER, **NEMO_SHARED, f"{SELF}.g_proj.weight": f"{SELF}.g_proj.weight"},
    "hy_v3": {**NEMO_EXPERTS, **NEMO_ROUTER, **NEMO_SHARED},
}


def fitted(model_type: str, **changes: Any) -> Fit:
    """Return the settings of a model that is wider, deeper and has more experts than its base."""
    grown = {**wider(model_type), **more_experts(model_type), "num_hidden_layers": 5, **changes}
    if model_type == "ernie4_5_moe":
        grown["moe_layer_end_index"] = 4
    base = {"num_hidden_layers": 3, **{key: changes[key] for key in changes if key == "attention_bias"}}
    return adapt(build(model_type, "meta", **grown), build(model_type, "meta", **base), HPS).fit


def plans(fit: Fit) -> dict[str, TensorPlan]:
    return {tensor.name: tensor for tensor in fit.tensors}


@dataclass(kw_only=True, slots=True)
class ParamGroupConfig:
    """The fields that torchtitan's class has."""

    pattern: str
    optimizer_name: str
    optimizer_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Config:
    param_groups: list[ParamGroupConfig] = field(default_factory=list)


class OptimizersContainer:
    Config = Config


def titan_groups(text: str, monkeypatch: pytest.MonkeyPatch) -> list[ParamGroupConfig]:
    """Run an exported text as Python, as a part of a configuration of torchtitan."""
    for name in ("torchtitan", "torchtitan.components", "torchtitan.components.optimizer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    there: Any = sys.modules["torchtitan.components.optimizer"]
    there.ParamGroupConfig, there.OptimizersContainer = ParamGroupConfig, OptimizersContainer
    scope: dict[str, Any] = {}
    exec(compile(text, "export", "exec"), scope)
    assert isinstance(scope["optimizer"], Config)
    return scope["optimizer"].param_groups


@pytest.mark.parametrize("model_type", TITAN)
def test_torchtitan_gives_every_parameter_of_its_own_model_its_planned_settings(
    monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    fit = fitted(model_type)
    text = export(fit, "torchtitan")
    assert f"# Names are those of torchtitan's own {model_type}." in text
    assert "WARNING" not in text
    groups = titan_groups(text, monkeypatch)
    planned = plans(fit)
    assert {pattern_of(name) for name in planned} == {pattern_of(name) for name in TITAN[model_type].values()}
    for name, theirs in TITAN[model_type].items():
        tensor = planned[theirs]
        wrapped = re.sub(r"^(layers\.[0-9]+\.)", r"\1_checkpoint_wrapped_module.", name)
        for each in (name, wrapped, name.replace("layers.1.", "layers.11.")):
            [found] = [group for group in groups if re.search(group.pattern, each)]
            assert found.optimizer_name == "AdamW"
            assert found.optimizer_kwargs == {
                "lr": tensor.lr,
                "weight_decay": tensor.weight_decay,
                "eps": tensor.adam_eps,
                "betas": HPS.betas,
            }, name
    for group in groups:  # torchtitan refuses a pattern without parameters
        assert any(re.search(group.pattern, name) for name in TITAN[model_type]), group.pattern


def test_torchtitan_names_no_parameter_of_another_place() -> None:
    patterns = [match.pattern for match in matches(fitted("deepseek_v3"), "torchtitan")]
    for name in ("layers.1.moe.expert_bias_E", "layers.1.enorm.weight", "model.norm.weight", "x.norm.weight"):
        assert not any(re.search(pattern, name) for pattern in patterns)


@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss"])
def test_one_projection_for_q_k_and_v_has_the_settings_that_they_share(
    monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    """Keys and values grow with the width here; torchtitan's own configurations have one projection."""
    fit = fitted(model_type, num_key_value_heads=4)
    text = export(fit, "torchtitan")
    assert "fuse_qkv" not in text
    groups = titan_groups(text, monkeypatch)
    for name, theirs in {**TITAN_QKV, **TITAN_FUSED}.items():
        [found] = [group for group in groups if re.search(group.pattern, name)]
        assert found.optimizer_kwargs["eps"] == plans(fit)[theirs].adam_eps
    names = [name for name in TITAN[model_type] if ".qkv_linear." not in name]
    names += [f"{ATTENTION}.qkv_linear.wqkv.{what}" for what in ("weight", "bias")]
    assert all(any(re.search(group.pattern, name) for name in names) for group in groups)


@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss"])
def test_q_k_and_v_with_different_settings_need_separate_projections(model_type: str) -> None:
    """With fixed keys and values, the eps of values is another."""
    text = export(fitted(model_type), "torchtitan")
    assert "# q, k and v have different settings: build the model with fuse_qkv=False." in text
    assert "wqkv" not in text


def test_a_parameter_that_torchtitan_lacks_is_an_error() -> None:
    fit = fitted("qwen3_moe", attention_bias=True)
    with pytest.raises(
        InputError, match=r"torchtitan's own qwen3_moe has no parameter for model\.layers\.#.*q_proj\.bias"
    ):
        export(fit, "torchtitan")
    assert export(fit, "automodel")


@pytest.mark.parametrize("model_type", NEMO)
def test_automodel_gives_every_parameter_of_its_own_model_its_planned_rates(model_type: str) -> None:
    """As it reads overrides: the first pattern that is found; multipliers of 1 without one."""
    fit = fitted(model_type)
    text = export(fit, "automodel")
    assert f"# Names are those of NeMo Automodel's own {model_type} and of that of transformers." in text
    groups = yaml.safe_load(text)["param_group_overrides"]
    patterns = [match.pattern for match in matches(fit, "automodel")]
    planned = plans(fit)
    for name, theirs in {**NEMO[model_type], **{each: each for each in planned}}.items():
        assert sum(bool(re.search(pattern, name)) for pattern in patterns) == 1, name
        group = next((each for each in groups if re.search(each["pattern"], name)), {"lr_mult": 1.0, "wd_mult": 1.0})
        assert group["lr_mult"] * HPS.lr == pytest.approx(planned[theirs].lr, rel=1e-12), name
        assert group["wd_mult"] * HPS.weight_decay == pytest.approx(planned[theirs].weight_decay, rel=1e-12), name


def test_families_that_a_program_lacks_have_the_names_of_transformers_and_the_text_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit = fitted("mixtral")
    text = export(fit, "torchtitan")
    assert "# WARNING: names are those of transformers. torchtitan had no mixtral of its own" in text
    groups = titan_groups(text, monkeypatch)
    for tensor in fit.tensors:
        [found] = [group for group in groups if re.search(group.pattern, tensor.name)]
        assert found.optimizer_kwargs["lr"] == tensor.lr
    assert "# Names are those of transformers, whose mixtral it trains" in export(fit, "automodel")


def test_the_text_says_what_is_left_to_do() -> None:
    fit = fitted("deepseek_v3")
    titan, nemo = (export(fit, program).replace("\n# ", " ") for program in get_args(Program))
    assert "Not taken by this program: init, clipping in planned units; selection biases have the update of" in titan
    assert "turn clipping off (training.max_norm=1e9)" in titan
    assert "Not taken by this program: init, eps per parameter, clipping in planned units" in nemo
    assert "turn clipping off (clip_grad_norm.max_norm: 1.0e+9)" in nemo
    assert "Its lr: 0.01, weight_decay: 0.1, betas: [0.9, 0.95]." in nemo
