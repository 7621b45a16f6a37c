"""Models of transformers as sections of files: reading, growing, counting, and errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from adapters.tiny import COMMON, TINY
from hugging_face import model_tree

from expertp.adapters.families import FAMILIES
from expertp.adapters.fit import fit
from expertp.adapters.spec import HFModelSpec
from expertp.config import build
from expertp.errors import InputError
from expertp.spec import BaseHPs, Model, ModelSpec

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")

TRAINABLE = [name for name, family in FAMILIES.items() if not family.no_run]


def spec(model_type: str, **keys: Any) -> HFModelSpec:
    return HFModelSpec(**model_tree(model_type, **keys))


def tiny_spec(model_type: str) -> HFModelSpec:
    keys = {**COMMON, **TINY[model_type], "model_type": model_type}
    if model_type == "glm4_moe_lite":
        del keys["first_k_dense_replace"]  # it has mlp_layer_types instead
    return HFModelSpec(hf=keys, context=16)


def test_a_section_is_of_the_kind_that_its_keys_say() -> None:
    assert isinstance(build(Model, model_tree("olmoe"), "model"), HFModelSpec)
    assert isinstance(build(Model, {"n_embd": 64, "n_layer": 2, "n_exp": 4}, "model"), ModelSpec)


def test_a_model_survives_a_round_trip_and_can_be_hashed() -> None:
    model = spec("deepseek_v3")
    again = build(Model, json.loads(json.dumps(model.to_dict())), "model")
    assert (again, hash(again)) == (model, hash(model))
    assert model != spec("deepseek_v3", n_shared_experts=2)


def test_a_file_may_hold_the_configuration(tmp_path: Path) -> None:
    model = spec("mixtral")
    (tmp_path / "config.json").write_text(json.dumps({**model.hf, "a_key_of_some_other_program": 1}))
    for path in (tmp_path, tmp_path / "config.json"):
        assert HFModelSpec(hf=str(path), context=16) == model  # keys that the family does not use are left out


@pytest.mark.parametrize("model_type", TRAINABLE)
def test_every_family_grows_along_every_axis(model_type: str) -> None:
    """The sizes of the keys are those of the tensors, and the plan accepts base and target as one architecture."""
    base = tiny_spec(model_type)
    for sizes in ({"n_embd": 96}, {"n_layer": 6}, {"n_exp": 16, "n_act": 4}, {"alpha_ffn": 2 * base.alpha_ffn}):
        target = base.grown(**sizes)
        assert {name: getattr(target, name) for name in sizes} == sizes
        planned = fit(base.described(), target.described(), BaseHPs(lr=0.01))
        assert planned.target.axes["H"] == target.n_hid
        if sizes.keys() & {"n_layer", "n_exp"}:
            assert target.alpha_ffn == base.alpha_ffn


def test_counts_are_those_of_the_parameters() -> None:
    from expertp.adapters.hub import training_config, with_weights

    model = spec("deepseek_v3")
    sizes = {name: each.numel() for name, each in with_weights(training_config(model.hf), 0).named_parameters()}
    routed = sum(size for name, size in sizes.items() if ".experts." in name)
    counts = model.counts()
    assert counts.total == sum(sizes.values())
    assert counts.active == counts.total - routed // 2
    assert counts.non_embedding_total == counts.total - sizes["model.embed_tokens.weight"]
    # queries of 2 heads of 8 + 4, outputs of 2 heads of 8
    assert model.flops_per_token() == 6 * counts.non_embedding_active + 6 * 2 * (24 + 16) * 16


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "olmo"}, "model_type 'olmo' is not a known family; did you mean 'olmoe'?"),
        ({"model_type": 3}, "model_type must be the name of a family"),
        ({"model_type": "jamba"}, "model_type 'jamba' is not supported: its state-space"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number of at least 1, not '64'"),
        ({"num_experts_per_tok": 8}, "8 experts per token but only 4 experts"),
        ({"rope_parameters": {1: 2, "a": 3}}, "hf: has values that a config.json cannot have"),
        ({"rms_norm_eps": float("nan")}, "hf: has values that a config.json cannot have"),
        ({"max_position_embeddings": 8}, "context=16 is more than max_position_embeddings=8"),
    ],
)
def test_a_bad_section_is_one_line(keys: dict[str, Any], message: str) -> None:
    tree = model_tree("olmoe")
    with pytest.raises(InputError) as error:
        build(Model, {**tree, "hf": {**tree["hf"], **keys}}, "model")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_sizes_are_not_left_to_defaults() -> None:
    tree = model_tree("olmoe")
    del tree["hf"]["num_experts_per_tok"]
    with pytest.raises(InputError, match="num_experts_per_tok or moe_k or moe_topk is missing; give all sizes"):
        build(Model, tree, "model")


@pytest.mark.parametrize(
    ("model_type", "keys", "message"),
    [
        (
            "olmoe",
            {"hiden_act": "silu"},
            r"hf\.hiden_act: model_type 'olmoe' has no such key; did you mean 'hidden_act",
        ),
        ("olmoe", {"_attn_implementation": "some/kernel"}, r"hf\._attn_implementation: .* has no such key"),
        ("olmoe", {"quantization_config": {}}, r"hf\.quantization_config: .* has no such key; remove it"),
        ("olmoe", {"attention_dropout": 0.1}, r"hf\.attention_dropout=0\.1 draws random numbers"),
        ("olmoe", {"hidden_act": "sillu"}, "transformers cannot build the model|transformers rejects it"),
        ("olmoe", {"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000: more than 1,000 layers; give a smaller"),
    ],
)
def test_what_only_transformers_knows_is_checked_when_a_model_is_described(
    model_type: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        spec(model_type, **keys).described()


def test_families_that_the_loop_cannot_train_say_why() -> None:
    for model_type in ("phimoe", "llama4_text"):
        with pytest.raises(InputError, match="use adapt in a loop of your own"):
            tiny_spec(model_type).described()


def test_a_width_needs_whole_heads() -> None:
    with pytest.raises(InputError, match=r"n_embd=40 needs num_attention_heads=2\.5"):
        spec("olmoe").grown(n_embd=40)
    with pytest.raises(InputError, match=r"alpha_ffn=0\.51 needs intermediate_size=16\.32"):
        spec("olmoe").grown(alpha_ffn=0.51)
