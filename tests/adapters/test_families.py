"""Every family: each parameter has a role, and doubling configuration keys confirms each declared axis."""

import inspect
import itertools
import re
from typing import Any

import pytest
import torch
from adapters.tiny import COMMON, LATENT, PER_HEAD, TINY, build, config

from expertp.adapters.adapted import adapt
from expertp.adapters.axes import Shaped, sizes_of
from expertp.adapters.describe import describe, family_of, roles_of, shapes_of
from expertp.adapters.families import FAMILIES, REFUSED
from expertp.adapters.family import parse_family
from expertp.adapters.roles import match_rows
from expertp.errors import InputError
from expertp.spec import BaseHPs

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")

# One configuration key sets both sizes.
ONE_KEY = {("hunyuan_v1_moe", "H", "S"), ("llama4_text", "H", "S"), ("olmoe", "N", "Q"), ("flex_olmo", "N", "Q")}
# The width gives the size of a head.
WITHOUT_HEAD_DIM = ("olmoe", "flex_olmo")
NOT_SIZES = {"pad_token_id", "bos_token_id", "eos_token_id", "n_group", "topk_group", "sliding_window"}


def sizes_with(model_type: str, changes: dict[str, Any]) -> dict[str, int]:
    """Return the sizes of a tiny model; an axis that is declared wrong does not fit the shapes."""
    shapes = shapes_of(build(model_type, "meta", **changes))
    rows = match_rows(shapes, FAMILIES[model_type].rows, model_type)
    return sizes_of([Shaped(name, shapes[name], row.axes) for name, row in rows.items()])


def test_there_are_at_least_24_families() -> None:
    assert len(FAMILIES) >= 24
    assert set(TINY) == set(FAMILIES)
    assert not set(FAMILIES) & set(REFUSED)


@pytest.mark.heavy
@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_parameter_has_a_role_and_doubling_keys_confirms_every_axis(model_type: str) -> None:
    """If two axes were declared the wrong way round, some key would double one of them and not the other."""
    keys = {**COMMON, **TINY[model_type]}
    own = {} if LATENT.items() <= keys.items() or model_type in WITHOUT_HEAD_DIM else dict(PER_HEAD)
    before = sizes_with(model_type, own)
    ratios = []
    for key, value in {**keys, **own}.items():
        if type(value) is not int or key in NOT_SIZES:
            continue
        try:
            build(model_type, "meta", **{**own, key: 2 * value})
        except (ValueError, RuntimeError):  # a key that cannot change alone
            continue
        after = sizes_with(model_type, {**own, key: 2 * value})
        assert after.keys() == before.keys(), key
        ratios.append({symbol: after[symbol] / before[symbol] for symbol in before})
    for symbol in before:
        assert any(ratio[symbol] != 1 for ratio in ratios), f"no key changes {symbol}"
    for one, other in itertools.combinations(before, 2):
        if (model_type, one, other) not in ONE_KEY:
            assert any(ratio[one] != ratio[other] for ratio in ratios), f"no key tells {one} from {other}"


@pytest.mark.parametrize("model_type", ["mixtral", "deepseek_v3", "gpt_oss", "ernie4_5_moe", "afmoe", "dots1"])
def test_n_act_layers_and_gate_of_an_instance(model_type: str) -> None:
    model = build(model_type, "meta")
    found = describe(model, family_of(model))
    assert (found.sizes.n_act, found.sizes.n_exp, found.sizes.n_layer, found.sizes.n_embd) == (2, 8, 3, 48)
    assert found.gate == ("sum" if model_type == "dots1" else "mean")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {tensor.name for tensor in found.tensors} == trained


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_has_an_auxiliary_loss_if_its_code_computes_one(model_type: str) -> None:
    source = inspect.getsource(type(build(model_type, "meta")))
    assert ("load_balancing_loss_func(" in source) == FAMILIES[model_type].auxiliary_loss


@pytest.mark.heavy
@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_auxiliary_loss_of_a_family_is_off_unless_router_logits_are_wanted(model_type: str) -> None:
    torch.manual_seed(0)
    model, tokens = build(model_type), torch.randint(3, 64, (2, 12))
    assert getattr(model(input_ids=tokens, labels=tokens), "aux_loss", None) is None
    out = model(input_ids=tokens, labels=tokens, output_router_logits=True)
    assert (getattr(out, "aux_loss", None) is not None) == FAMILIES[model_type].auxiliary_loss


@pytest.mark.parametrize(
    ("model_type", "words"), [("olmoe", "balance it with its auxiliary loss"), ("deepseek_v2", "own")]
)
def test_balancing_without_a_selection_bias_says_what_else_balances(model_type: str, words: str) -> None:
    model = build(model_type, "meta")
    fitted = adapt(model, build(model_type, "meta"), BaseHPs(lr=0.01, init_std=0.02))
    with pytest.raises(InputError, match=words) as caught:
        fitted.balancing(model)
    assert ("no auxiliary loss" in str(caught.value)) == (model_type == "deepseek_v2")


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_roles_of_a_family_are_a_roles_text(model_type: str) -> None:
    """With its facts and its selection bias, be that a parameter or a buffer."""
    model, family = build(model_type, "meta"), FAMILIES[model_type]
    text = roles_of(model, family)
    read = parse_family(text, model_type)
    facts = [(each.gate(model.config), each.selection, each.gain_minus_one) for each in (read, family)]
    assert facts[0] == facts[1]
    assert "?" not in text
    ours, theirs = (describe(model, each) for each in (read, family))
    assert (ours.sizes, ours.tensors, ours.gate) == (theirs.sizes, theirs.tensors, theirs.gate)


@pytest.mark.parametrize(
    ("model_type", "changes", "gate"),
    [
        ("olmoe", {}, "all"),
        ("olmoe", {"norm_topk_prob": True}, "mean"),
        ("deepseek_v3", {"norm_topk_prob": False}, "sum"),
        ("cohere2_moe", {"expert_selection_fn": "sigmoid", "norm_topk_prob": False}, "sum"),
        ("kolibri1", {}, "sum"),
    ],
)
def test_the_gate_depends_on_the_configuration(model_type: str, changes: dict[str, Any], gate: str) -> None:
    assert FAMILIES[model_type].gate(config(model_type, **changes)) == gate


def test_dense_layers_and_queries_without_latents_have_roles() -> None:
    for model_type, changes in (
        ("minimax_m3_vl_text", {"mlp_layer_types": ["dense", "sparse", "sparse"]}),
        ("llama4_text", {"interleave_moe_layer_step": 2}),
        ("deepseek_v3", {"q_lora_rank": None}),
        ("glm4_moe", {"use_qk_norm": False, "attention_bias": True}),
    ):
        model = build(model_type, "meta", **changes)
        assert describe(model, family_of(model)).sizes.n_embd == 48


@pytest.mark.parametrize("model_type", REFUSED)
def test_families_without_rules_are_refused_by_name(model_type: str) -> None:
    class Config:
        pass

    model = build("mixtral", "meta")
    model.config = Config()
    model.config.model_type = model_type
    with pytest.raises(
        InputError, match=re.escape(f"model_type '{model_type}' is not supported: {REFUSED[model_type]}")
    ):
        family_of(model)


def test_a_scaled_embedding_is_refused() -> None:
    model = build("afmoe", "meta", mup_enabled=True)
    with pytest.raises(InputError, match=r"mup_enabled multiplies the embedding by sqrt\(hidden_size\)"):
        describe(model, family_of(model))


def test_a_roles_text_for_a_known_family_does_not_lift_its_refusals() -> None:
    model = build("afmoe", "meta")
    text = roles_of(model, FAMILIES["afmoe"])
    scaled = build("afmoe", "meta", mup_enabled=True)
    with pytest.raises(InputError, match=r"mup_enabled multiplies the embedding by sqrt\(hidden_size\)"):
        adapt(scaled, scaled, BaseHPs(lr=0.01, init_std=0.02), roles=text)
    assert adapt(model, model, BaseHPs(lr=0.01, init_std=0.02), roles=text).fit.family == "afmoe"


def test_the_layout_of_square_experts_is_checked_against_their_module() -> None:
    """Without a gate in the shape, [E, H, N] and [E, N, H] look alike at H = N."""
    model = build("mixtral", "meta", intermediate_size=24, hidden_size=48)
    for name, module in model.named_modules():
        if name.endswith("experts"):
            module.is_transposed = True
    with pytest.raises(InputError, match="but its module says is_transposed=True: the layout is mirrored"):
        describe(model, family_of(model))


def test_layers_with_different_numbers_of_active_experts_are_refused() -> None:
    model = build("hunyuan_v1_moe", "meta", moe_topk=[2, 4, 4])
    with pytest.raises(
        InputError, match=r"has 2 experts per token but .* has 4; the rules need the same in all layers"
    ):
        describe(model, family_of(model))


@pytest.mark.parametrize(
    ("model_type", "changes", "roles"),
    [
        ("phimoe", {"lm_head_bias": True}, {"lm_head.bias": "unembedding_bias"}),
        ("ernie4_5_moe", {"use_bias": True}, {"lm_head.bias": "unembedding_bias"}),
        ("aria_text", {"mlp_bias": True}, {"model.layers.0.mlp.shared_experts.up_proj.bias": "ffn_up_bias"}),
        ("deepseek_v3", {"attention_bias": True}, {"model.layers.0.self_attn.q_a_proj.bias": "latent_bias"}),
    ],
)
def test_biases_that_a_configuration_adds_have_roles(
    model_type: str, changes: dict[str, Any], roles: dict[str, str]
) -> None:
    model = build(model_type, "meta", **changes)
    found = {tensor.name: tensor.row.role for tensor in describe(model, family_of(model)).tensors}
    assert {name: found[name] for name in roles} == roles
