"""Plans: identity at the base, the numbers that must come out, gamma, residual, weight decay, constants, refusals."""

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expertp.errors import InputError
from expertp.plan import Group, constant_names, plan
from expertp.spec import BaseHPs, ModelSpec

RULES = ("expertp", "sp", "mup", "completep", "fan_in_down", "no_depth", "no_mean", "no_alpha", "fan_in_stack")
BASE = ModelSpec(n_embd=512, n_layer=8, n_exp=4, n_act=1)
LARGE = ModelSpec(n_embd=2048, n_layer=32, n_exp=16, n_act=4, alpha_ffn=2)
HPS = BaseHPs(lr=0.016, init_std=0.02, adam_eps=1e-8, weight_decay=0.1, bias_lr=0.3)

MAPPING = {"router_lr": "1/8", "mlp_up_init": 2, "attn_qkv_init": 0.5, "norm_lr": 4}
# (init, lr) per group, by hand; groups that are not named have (1, 1).
CONSTANTS: dict[str, dict[str, tuple[float, float]]] = {
    "ones": {},
    "paper": {
        "attn_qk": (1, 1 / 16),
        "attn_v": (1 / 16, 1 / 16),
        "router": (1, 1 / 16),
        "expert_down": (1 / 4, 1 / 16),
        "ffn_down": (1 / 4, 1 / 16),
    },
    "mapping": {
        "router": (1, 1 / 8),
        "expert_up": (2, 1),
        "ffn_up": (2, 1),
        "attn_qk": (0.5, 1),
        "attn_v": (0.5, 1),
        "norm": (1, 4),
    },
}
MOE_GROUPS = {"router", "expert_up", "expert_down", "expert_bias"}
DENSE_GROUPS = {"ffn_up", "ffn_up_bias", "ffn_down"}
BIASES = {"linear_bias", "ffn_up_bias"}
MATRICES = {"embedding", "unembedding", "attn_qk", "attn_v", "attn_o", *MOE_GROUPS, *DENSE_GROUPS}
MATRICES -= {"expert_bias", "ffn_up_bias"}
WRITES_TO_RESIDUAL = {"attn_o", "expert_down", "ffn_down"}


def hps_with(hps: BaseHPs = HPS, **changes: Any) -> BaseHPs:
    return BaseHPs(**{**hps.model_dump(), **changes})


def model_with(model: ModelSpec, **changes: Any) -> ModelSpec:
    return ModelSpec(**{**model.model_dump(), **changes})


def variant(ffn: str, tied: bool, linear_bias: bool) -> ModelSpec:
    experts = {"n_exp": 12, "n_act": 3} if ffn == "moe" else {}
    return ModelSpec(
        n_embd=384, n_layer=6, alpha_ffn=0.5, ffn=ffn, tied_embeddings=tied, linear_bias=linear_bias, **experts
    )


VARIANTS = [variant(*choice) for choice in itertools.product(("moe", "dense"), (True, False), (True, False))]


@pytest.mark.parametrize(
    "model",
    VARIANTS,
    ids=lambda model: f"{model.ffn}-{'tied' if model.tied_embeddings else 'untied'}-{'bias' * model.linear_bias}",
)
@pytest.mark.parametrize("constants", CONSTANTS)
@pytest.mark.parametrize("decay", ["independent", "tau"])
@pytest.mark.parametrize("eps_rule", ["consistent", "paper"])
@pytest.mark.parametrize("rules", RULES)
def test_at_the_base_a_plan_is_the_base_hyperparameters_times_the_constants(
    rules: str, eps_rule: str, decay: str, constants: str, model: ModelSpec
) -> None:
    hps = hps_with(
        rules=rules,
        eps_rule=eps_rule,
        decay=decay,
        tuned_steps=1000,
        constants=MAPPING if constants == "mapping" else constants,
    )
    absent = set(DENSE_GROUPS if model.ffn == "moe" else MOE_GROUPS)
    absent |= {"unembedding"} if model.tied_embeddings else set()
    absent |= set() if model.linear_bias else BIASES
    for name, group in plan(model, model, hps).groups.items():
        init, lr = CONSTANTS[constants].get(name, (1, 1))
        if name in absent:
            assert group == Group(), name
        elif name == "expert_bias":
            assert group == Group(init_std=0.0, lr=hps.bias_lr)
        elif name in MATRICES:
            residual_init = (2 * model.n_layer) ** -0.5 if rules == "sp" and name in WRITES_TO_RESIDUAL else 1
            assert group == Group(hps.init_std * init * residual_init, hps.lr * lr, hps.weight_decay, hps.adam_eps)
        else:
            assert group == Group(0.0 if name in BIASES else None, hps.lr * lr, 0.0, hps.adam_eps), name


@pytest.mark.parametrize("model", [VARIANTS[0], VARIANTS[-1]], ids=["moe", "dense"])
@pytest.mark.parametrize("rules", RULES)
def test_at_the_base_only_the_architecture_is_in_the_forward_pass(rules: str, model: ModelSpec) -> None:
    forward = plan(model, model, hps_with(rules=rules)).forward
    assert (forward.residual, forward.logits) == (1.0, 1.0)
    assert forward.attention_scale == pytest.approx(64**-0.5 if rules == "sp" else 1 / 64, rel=1e-15)
    assert forward.moe_output == (1 / model.n_act if model.ffn == "moe" else None)


@pytest.mark.parametrize(
    ("group", "lr_factor", "weight_decay", "adam_eps"),
    [
        ("embedding", 1, 0.1, 5e-9),
        ("unembedding", 1, 0.1, 5e-9),
        ("attn_qk", 0.5, 0.2, 1.25e-9),
        ("attn_v", 0.5, 0.2, 1.25e-9),
        ("attn_o", 0.5, 0.2, 1.25e-9),
        ("ffn_up", 0.5, 0.2, 1.25e-9),
        ("ffn_down", 0.5, 0.2, 1.25e-9),
        ("norm", 1, 0, 1.25e-9),
        ("linear_bias", 1, 0, 1.25e-9),
        ("ffn_up_bias", 1, 0, 1.25e-9),
        ("final_norm", 1, 0, 5e-9),
    ],
)
def test_a_dense_model_of_twice_the_width_and_four_times_the_depth(
    group: str, lr_factor: float, weight_decay: float, adam_eps: float
) -> None:
    base = ModelSpec(n_embd=256, n_layer=2, ffn="dense", tied_embeddings=False, linear_bias=True)
    target = model_with(base, n_embd=512, n_layer=8)
    settings = plan(base, target, BaseHPs(lr=0.01, adam_eps=1e-8, weight_decay=0.1)).groups[group]
    assert settings.lr == pytest.approx(0.01 * lr_factor)
    assert settings.weight_decay == pytest.approx(weight_decay)
    assert settings.adam_eps == pytest.approx(adam_eps)


@pytest.mark.parametrize(("gamma", "factor"), [(0.5, 4**-0.5), (1, 1 / 4), (2, 1 / 16), (math.inf, 0.0)])
@pytest.mark.parametrize("rules", RULES)
def test_router_init_falls_with_width_to_the_gamma(rules: str, gamma: float, factor: float) -> None:
    router = plan(BASE, LARGE, hps_with(rules=rules, gamma=gamma)).groups["router"]
    # Standard parameterization has no power of width, but a zero router stays zero.
    expected = 1.0 if rules == "sp" and math.isfinite(gamma) else factor
    assert router.init_std == pytest.approx(HPS.init_std * expected, rel=1e-15)
    assert router.lr == pytest.approx(HPS.lr * (1 if rules == "sp" else 1 / 4))


@pytest.mark.parametrize(
    ("rules", "relative", "absolute"),
    [
        ("expertp", 1 / 4, 1 / 32),
        ("completep", 1 / 4, 1 / 32),
        ("fan_in_down", 1 / 4, 1 / 32),
        ("no_depth", 1, 1),
        ("mup", 1, 1),
        ("sp", 1, 1),
    ],
)
def test_block_outputs_are_divided_by_relative_or_absolute_depth(rules: str, relative: float, absolute: float) -> None:
    assert plan(BASE, LARGE, hps_with(rules=rules)).forward.residual == relative
    assert plan(BASE, LARGE, hps_with(rules=rules, residual="absolute")).forward.residual == absolute


@pytest.mark.heavy
@pytest.mark.parametrize("rules", RULES)
@given(
    width=st.integers(1, 64),
    depth=st.integers(1, 64),
    experts=st.integers(1, 32),
    alpha=st.sampled_from((0.25, 0.5, 3)),
)
def test_lr_times_weight_decay_does_not_depend_on_scale(
    rules: str, width: int, depth: int, experts: int, alpha: float
) -> None:
    target = ModelSpec(n_embd=64 * width, n_layer=depth, n_exp=4 * experts, n_act=experts, alpha_ffn=alpha)
    groups = plan(BASE, target, hps_with(rules=rules, constants="paper")).groups
    for name in ("embedding", "attn_qk", "attn_v", "attn_o", "router", "expert_up", "expert_down"):
        _, constant = CONSTANTS["paper"].get(name, (1, 1))
        shrinkage = groups[name].lr * groups[name].weight_decay
        assert shrinkage == pytest.approx(0.016 * 0.1 * constant, rel=1e-12), name


@pytest.mark.parametrize("group", ["embedding", "attn_o", "router", "expert_down"])
def test_tau_divides_weight_decay_by_the_relative_number_of_steps(group: str) -> None:
    def decay(kind: str, steps: int | None) -> float | None:
        return plan(BASE, LARGE, hps_with(decay=kind, tuned_steps=1000), steps=steps).groups[group].weight_decay

    assert decay("tau", 4000) == pytest.approx(decay("independent", 4000) / 4)
    assert decay("tau", 500) == pytest.approx(decay("independent", 500) * 2)
    assert decay("tau", None) == decay("independent", None)


def test_tau_leaves_undecayed_groups_undecayed() -> None:
    groups = plan(BASE, LARGE, hps_with(decay="tau", tuned_steps=10), steps=30).groups
    assert (groups["norm"].weight_decay, groups["final_norm"].weight_decay) == (0.0, 0.0)
    assert groups["expert_bias"].weight_decay is None


def test_multipliers_are_sizes_of_the_target_over_sizes_of_the_base() -> None:
    m = plan(BASE, LARGE, HPS).multipliers
    assert (m.width, m.depth, m.experts, m.alpha) == (4, 4, 4, 2)


def test_a_plan_is_one_strict_json_object_even_with_an_infinite_gamma() -> None:
    tree = plan(BASE, LARGE, hps_with(gamma=math.inf)).to_dict()
    text = json.dumps(tree, allow_nan=False)
    assert ModelSpec(**json.loads(text)["target"]) == LARGE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_act": 2}, "kappa=n_act/n_exp=1/8 in the target but 1/4 in the base; learning rates do not transfer"),
        ({"n_act": 2}, "so set n_act=4 or pass --allow-kappa-change"),
        ({"n_exp": 6}, "so set n_exp to a multiple of 4 or pass --allow-kappa-change"),
        ({"d_head": 128}, "d_head=128 in the target but 64 in the base"),
        ({"gate": "softmax"}, "gate=softmax in the target but sigmoid in the base"),
        ({"ffn": "dense", "n_exp": 1, "n_act": 1}, "ffn=dense in the target but moe in the base"),
        ({"tied_embeddings": False}, "tied_embeddings=False in the target but True in the base"),
        ({"linear_bias": True}, "linear_bias=True in the target but False in the base"),
    ],
)
def test_another_architecture_or_sparsity_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]*$") as refusal:
        plan(BASE, model_with(LARGE, **changes), HPS)
    assert message in str(refusal.value)


def test_a_change_of_sparsity_can_be_allowed() -> None:
    planned = plan(BASE, model_with(LARGE, n_act=2), HPS, allow_kappa_change=True)
    assert planned.forward.moe_output == 1 / 2
    assert planned.multipliers.experts == 4


@pytest.mark.parametrize("steps", [0, -5])
def test_a_run_has_at_least_one_step(steps: int) -> None:
    with pytest.raises(InputError, match=f"steps={steps} is not positive"):
        plan(BASE, LARGE, hps_with(decay="tau", tuned_steps=10), steps=steps)


def test_tau_needs_the_length_of_the_base_run() -> None:
    with pytest.raises(InputError, match=r"hps\.tuned_steps is missing"):
        plan(BASE, LARGE, hps_with(decay="tau"))


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"routr_lr": 1}, "hps.constants.routr_lr: unknown constant; did you mean 'router_lr'?"),
        ({"router": 1}, "hps.constants.router: unknown constant"),
        ({"norm_init": 1}, "hps.constants.norm_init: unknown constant"),
        ({"qk_norm_lr": 1}, "hps.constants.qk_norm_lr: unknown constant"),
        ({"expert_bias_lr": 1}, "hps.constants.expert_bias_lr: unknown constant"),
        ({"router_lr": 0}, "hps.constants.router_lr: must be positive and finite, not 0"),
        ({"router_lr": -1}, "hps.constants.router_lr: must be positive and finite, not -1"),
        ({"attn_qkv_lr": 1, "attn_v_lr": 2}, "hps.constants.attn_v_lr: lr of group 'attn_v' is set twice"),
        ({"expert_down_init": 1, "mlp_down_init": 2}, "init of group 'expert_down' is set twice"),
    ],
)
def test_a_bad_constant_is_refused(constants: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]*$") as refusal:
        plan(BASE, LARGE, hps_with(constants=constants))
    assert message in str(refusal.value)


@pytest.mark.parametrize("name", constant_names())
def test_every_constant_that_is_offered_does_something(name: str) -> None:
    """On the one group, or some groups, of a model that has everything."""
    models = [model for model in VARIANTS if model.linear_bias and not model.tied_embeddings]
    changed = [
        (group, after, before)
        for model in models
        for (group, after), before in zip(
            plan(model, model, hps_with(constants={name: 3})).groups.items(),
            plan(model, model, HPS).groups.values(),
            strict=True,
        )
        if after != before
    ]
    assert changed
    for _, after, before in changed:
        if name.endswith("_lr"):
            assert after.lr == pytest.approx(3 * before.lr)
        else:
            assert after.init_std == pytest.approx(3 * before.init_std)
