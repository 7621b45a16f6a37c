"""Settings per tensor: the identity at the base, the rules, agreement with the mup package, and refusals."""

from collections.abc import Callable
from typing import Any

import mup
import pytest
import torch
from adapters.tiny import TINY, build, more_experts, wider
from torch import nn

from expertp.adapters.adapted import adapt
from expertp.adapters.describe import describe, family_of
from expertp.adapters.families import FAMILIES
from expertp.adapters.fit import Fit, fit
from expertp.errors import InputError
from expertp.spec import BaseHPs

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")

HPS = BaseHPs(lr=2**-6, init_std=0.02, adam_eps=1e-8, weight_decay=0.1)


def fitted(model_type: str, base: dict[str, Any], target: dict[str, Any], hps: BaseHPs = HPS, **options: Any) -> Fit:
    models = (build(model_type, "meta", **changes) for changes in (base, target))
    small, large = (describe(model, family_of(model)) for model in models)
    return fit(small, large, hps, **options)


@pytest.mark.heavy
@pytest.mark.parametrize("rules", ["expertp", "sp"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_base_gets_its_own_hyperparameters_bit_for_bit(model_type: str, rules: str) -> None:
    same = fitted(model_type, {}, {}, HPS.replace(rules=rules))
    minus_one = FAMILIES[model_type].gain_minus_one
    for tensor in same.tensors:
        is_vector = tensor.init_std == 0
        is_gain = "norm" in tensor.role and not tensor.name.endswith("bias")
        assert tensor.lr == HPS.lr
        assert tensor.adam_eps == HPS.adam_eps
        assert tensor.fold == tensor.clip_factor == 1.0
        assert tensor.weight_decay == (0.0 if is_vector else HPS.weight_decay)
        assert tensor.init_std in (0.0, HPS.init_std)
        assert tensor.start == (float(not minus_one) if is_gain else 0.0)
    assert same.aux_loss == 1.0
    assert same.bias_lr in (None, HPS.bias_lr)


def by_name(plans: Fit) -> dict[str, Any]:
    return {tensor.name.replace("model.layers.1.", ""): tensor for tensor in plans.tensors}


def test_settings_follow_the_rules() -> None:
    """Twice the width with the same two keys and values, 4/3 of the depth, twice the experts, H/N from 7/12 to 7/24."""
    target = {
        **wider("deepseek_v3"),
        **more_experts("deepseek_v3"),
        "num_hidden_layers": 4,
        "moe_intermediate_size": 28,
    }
    plans = fitted("deepseek_v3", {}, target)
    names = by_name(plans)
    lr, std, eps, m_l = HPS.lr, HPS.init_std, HPS.adam_eps, 4 / 3
    down = names["mlp.experts.down_proj"]
    assert down.fold == pytest.approx(1 / m_l)
    assert (down.lr, down.init_std) == pytest.approx((lr / m_l, std * 2**-0.5 * 2 / m_l))  # m_a = 1/2
    assert down.adam_eps == pytest.approx(eps / (2 * m_l * 2) * m_l)
    assert down.weight_decay == pytest.approx(0.1 * m_l)
    shared = names["mlp.shared_experts.down_proj.weight"]  # S is n_shared x moe_intermediate_size
    assert shared.lr == pytest.approx(lr / m_l)
    dense = {tensor.name: tensor for tensor in plans.tensors}["model.layers.0.mlp.down_proj.weight"]
    assert dense.lr == pytest.approx(lr / 2 / m_l)  # F grew with the width: m_a = 1
    latent = names["self_attn.kv_a_proj_with_mqa.weight"]
    assert (latent.lr, latent.adam_eps) == pytest.approx((lr / 2, eps / m_l))  # the rank is fixed
    up = names["self_attn.kv_b_proj.weight"]
    assert (up.lr, up.init_std, up.adam_eps) == pytest.approx((lr, std, eps / (2 * m_l)))
    final = names["model.norm.weight"]
    assert (final.start, final.fold, final.lr, final.adam_eps) == pytest.approx((0.5, 0.5, lr / 2, eps))
    assert plans.aux_loss == 0.5
    assert plans.bias_lr == HPS.bias_lr


def test_grouped_queries_have_their_own_eps() -> None:
    names = by_name(fitted("mixtral", {}, wider("mixtral")))
    assert names["self_attn.v_proj.weight"].adam_eps == HPS.adam_eps
    assert names["self_attn.q_proj.weight"].adam_eps == HPS.adam_eps / 2


def test_unnormalized_gates_are_divided_by_the_growth_of_n_act() -> None:
    assert by_name(fitted("dots1", {}, more_experts("dots1")))["mlp.experts.down_proj"].fold == 0.5
    assert by_name(fitted("mixtral", {}, more_experts("mixtral")))["mlp.experts.down_proj"].fold == 1.0


def test_the_bias_on_a_softmax_moves_less_with_more_experts() -> None:
    assert fitted("ernie4_5_moe", {}, more_experts("ernie4_5_moe")).bias_lr == HPS.bias_lr / 2


@pytest.mark.parametrize("rules", ["expertp", "mup"])
def test_width_only_dense_rows_are_those_of_the_mup_package(rules: str) -> None:
    """Matrices whose two dimensions grow, and tables; rows of experts and routers have no counterpart there."""
    kv = {"num_key_value_heads": 6}
    wide = {**wider("qwen2_moe", 4), "num_key_value_heads": 24}
    models = [
        build("qwen2_moe", **changes) for changes in (kv, {**wider("qwen2_moe"), "num_key_value_heads": 12}, wide)
    ]
    for model in models:
        readout = mup.MuReadout(model.lm_head.in_features, model.lm_head.out_features, bias=False)
        model.lm_head = readout
    base, delta, model = models
    mup.set_base_shapes(model, base, delta=delta, do_assert=False)
    plans = fitted("qwen2_moe", kv, wide, HPS.replace(rules=rules))
    ours = {tensor.name: tensor for tensor in plans.tensors}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    compared = 0
    for group in mup.MuAdamW(model.parameters(), lr=HPS.lr, weight_decay=HPS.weight_decay).param_groups:
        for parameter in group["params"]:
            tensor = ours[names[id(parameter)]]
            if tensor.role in ("router", "shared_gate", "expert_up", "expert_down", "unembedding"):
                continue
            compared += 1
            assert tensor.lr / tensor.fold == pytest.approx(group["lr"]), tensor.name
            if tensor.init_std:
                assert tensor.weight_decay * tensor.fold == pytest.approx(group["weight_decay"]), tensor.name
                assert tensor.init_std / tensor.fold == pytest.approx(HPS.init_std * mup_factor(parameter), rel=1e-5)
    assert compared > 20
    assert plans.forward.logits == pytest.approx(1 / model.lm_head.width_mult())


def mup_factor(parameter: nn.Parameter) -> float:
    """Return what mup.init.normal_ multiplies a std by: the same random numbers, with and without it."""
    torch.manual_seed(0)
    mup.init.normal_(parameter, std=1.0)
    with_mup = parameter.detach().clone()
    torch.manual_seed(0)
    nn.init.normal_(parameter, std=1.0)
    return float((with_mup / parameter.detach()).mean())


WIDE = wider("mixtral")
REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("mixtral", {}, {"num_experts_per_tok": 4}, "kappa=n_act/n_exp=1/2 in the target but 1/4 in the base"),
    ("mixtral", {}, {"hidden_size": 96}, "head_dim of attention is 16 in the target but 8 in the base"),
    ("deepseek_v3", {}, {"qk_nope_head_dim": 20}, "scaling of attention is 0.204124 in the target but 0.267261"),
    ("qwen3_moe", {}, {"num_attention_heads": 12}, "attention has Q=96 at width 48 in the target but 48 at 48"),
    ("mixtral", {"num_experts_per_tok": 1, "num_local_experts": 4}, {}, "the base has n_act=1 and normalized gates"),
    ("granitemoe", {}, {**wider("granitemoe"), "logits_scaling": 2.0}, "logits_scaling=2 in the target but 1 in the "),
    ("olmoe", {}, {"norm_topk_prob": True}, "the gate is a mean in the target but all in the base"),
    ("mixtral", {}, {"tie_word_embeddings": True}, "the base has lm_head.weight and the target does not"),
    ("glm4_moe", {}, {"use_qk_norm": False}, "the base has model.layers.#.self_attn.k_norm.weight and the target"),
    ("deepseek_v3", {}, {"routed_scaling_factor": 1.5}, "routed_scaling_factor=1.5 in the target but 2.5 in the base"),
    ("deepseek_v3", {}, {"n_group": 2}, "topk_group/n_group=1/2 in the target but 1/1 in the base; make them equal"),
    ("gpt_oss", {}, {"layer_types": ["full_attention"] * 3}, "layer_types=['full_attention', 'full_attention', "),
    ("gpt_oss", {}, {"layer_types": ["full_attention"] * 5, "num_hidden_layers": 5}, "layer_types=['full_attention'"),
    ("gpt_oss", {}, {"rms_norm_eps": 0.1}, "rms_norm_eps=0.1 in the target but 1e-05 in the base; it changes the arch"),
    ("llama4_text", {}, {"no_rope_layers": [1, 1, 0]}, "layer_types=['chunked_attention', 'chunked_attention', 'full_"),
    ("phimoe", {}, {"num_local_experts": 16, "num_experts_per_tok": 4}, "'phimoe' cannot have 4 experts per token"),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "base", "target", "message"), REFUSALS)
def test_what_does_not_transfer_is_refused(
    model_type: str, base: dict[str, Any], target: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        fitted(model_type, base, target)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("grow", [wider, more_experts, lambda _: {"num_hidden_layers": 6}])
def test_sizes_of_every_family_may_double(model_type: str, grow: Callable[[str], dict[str, Any]]) -> None:
    if not (grow is more_experts and FAMILIES[model_type].experts_are_fixed):
        assert fitted(model_type, {}, grow(model_type)).target.n_layer in (3, 6)


def test_two_families_are_refused() -> None:
    with pytest.raises(InputError, match="model_type='olmoe' in the target but 'mixtral' in the base"):
        adapt(build("olmoe", "meta"), build("mixtral", "meta"), HPS)


def test_an_absolute_residual_is_refused() -> None:
    with pytest.raises(InputError, match="residual=absolute would change the base"):
        fitted("mixtral", {}, WIDE, HPS.replace(residual="absolute"))


def test_multipliers_in_the_configuration_need_a_family_that_has_them() -> None:
    with pytest.raises(InputError, match="'mixtral' has no multipliers in its configuration; leave apply='fold'"):
        fitted("mixtral", {}, WIDE, apply="config")
    with pytest.raises(InputError, match=r"build the target with logit_scale=0\.03125"):
        fitted("cohere2_moe", {}, wider("cohere2_moe"), apply="config")
    planned = fitted("cohere2_moe", {}, {**wider("cohere2_moe"), "logit_scale": 2**-5}, apply="config")
    assert planned.config == {"logit_scale": 2**-5}
    assert {tensor.fold for tensor in planned.tensors if tensor.role == "final_norm"} == {1.0}


def test_an_auxiliary_loss_with_the_coefficient_of_the_base_is_refused() -> None:
    target = {**more_experts("olmoe"), "output_router_logits": True}
    with pytest.raises(InputError, match=r"build the target with router_aux_loss_coef=0\.005"):
        fitted("olmoe", {}, target)
    assert fitted("olmoe", {}, {**target, "router_aux_loss_coef": 0.005}).aux_loss == 0.5


def test_unknown_families_carry_a_text_to_fill_in() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(4, 2)

    with pytest.raises(InputError, match="a module without model_type is not a known family") as caught:
        adapt(Mine(), Mine(), HPS)
    assert caught.value.roles.splitlines()[1:] == ["embed.weight | ? | ? ?  # 4 x 2"]


def test_constants_reach_every_role() -> None:
    hps = HPS.replace(constants={"latent_norm_lr": 0.5, "attn_qkv_lr": 0.25})
    names = by_name(fitted("deepseek_v3", {}, {}, hps))
    assert names["self_attn.kv_a_layernorm.weight"].lr == HPS.lr / 2
    assert names["self_attn.kv_b_proj.weight"].lr == HPS.lr / 4


@pytest.mark.parametrize("name", ["latent_up_lr", "latent_down_init", "shared_gate_lr", "attn_sink_lr"])
def test_a_constant_of_a_role_that_the_model_lacks_is_an_error(name: str) -> None:
    hps = HPS.replace(constants={"router_lr": 0.5, name: 0.25})
    with pytest.raises(InputError, match=f"hps.constants.{name}: 'mixtral' has no parameter that it would reach"):
        fitted("mixtral", {}, {}, hps)


def test_a_configuration_whose_sizes_disagree_is_what_to_correct() -> None:
    """The user has no row that could be corrected."""
    model = build("olmoe", "meta", hidden_size=128, num_attention_heads=5, num_key_value_heads=5)
    with pytest.raises(InputError, match="correct the sizes in its configuration, such as a hidden_size") as caught:
        adapt(model, build("olmoe", "meta"), HPS)
    assert "row" not in str(caught.value)


def test_hyperparameters_must_be_base_hps() -> None:
    with pytest.raises(InputError, match="hps is a dict; give a BaseHPs, such as BaseHPs"):
        adapt(build("olmoe", "meta"), build("olmoe", "meta"), {"lr": 0.01})  # type: ignore[arg-type]


def test_every_tiny_family_is_tested() -> None:
    assert set(TINY) == set(FAMILIES)
