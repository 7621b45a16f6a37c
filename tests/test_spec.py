"""Specs: what is a model, a set of hyperparameters and a run; parameter and FLOP counts."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from expertp.spec import BaseHPs, ModelSpec, RunSpec, TrainSpec

SMALL: dict[str, Any] = {"n_embd": 128, "n_layer": 2, "n_exp": 4, "n_act": 1}
TRAIN: dict[str, Any] = {"data": "tokens", "steps": 10, "batch_tokens": 4096}


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [
        (ModelSpec(n_embd=512, n_layer=8, n_exp=4, n_act=1), "5.14e+07", "3.89e+07"),
        (ModelSpec(n_embd=2880, n_layer=8, n_exp=16, n_act=4), "2.54e+09", "9.44e+08"),
    ],
    ids=["base of the paper", "largest of the paper"],
)
def test_the_formulas_of_the_paper_give_its_sizes(model: ModelSpec, total: str, active: str) -> None:
    counts = model.counts()
    assert (f"{counts.paper_total:.3g}", f"{counts.paper_active:.3g}") == (total, active)


def tensor_sizes(model: ModelSpec) -> dict[str, int]:
    """Sizes of all tensors by name, counted one by one as a GPT-2 with experts has them."""
    n, hidden = model.n_embd, int(Fraction(model.alpha_ffn) * model.n_embd)
    sizes = {"token table": model.vocab_size * n, "position table": model.context * n}
    sizes |= {"final norm gain": n, "final norm bias": n}
    if not model.tied_embeddings:
        sizes["head"] = model.vocab_size * n
    for layer in range(model.n_layer):
        here: dict[str, int] = {f"norm {which} {part}": n for which in (1, 2) for part in ("gain", "bias")}
        here |= dict.fromkeys("qkvo", n * n)
        if model.linear_bias:
            here |= {f"{name} bias": n for name in "qkvo"}
        if model.ffn == "dense":
            here |= {"up": n * hidden, "down": hidden * n}
            here |= {"up bias": hidden, "down bias": n} if model.linear_bias else {}
        else:
            here["router"] = n * model.n_exp
            here |= {f"expert {number} {name}": n * hidden for number in range(model.n_exp) for name in ("up", "down")}
        sizes |= {f"{layer}: {name}": size for name, size in here.items()}
    return sizes


def is_active(name: str, model: ModelSpec) -> bool:
    """Say that a token passes a tensor, were the first n_act experts its own."""
    _, expert, number = name.partition("expert ")
    return not expert or int(number.split()[0]) < model.n_act


models = st.builds(
    lambda heads, act, more, moe, **rest: ModelSpec(
        n_embd=16 * heads, d_head=16, **({"n_exp": act + more, "n_act": act} if moe else {"ffn": "dense"}), **rest
    ),
    heads=st.integers(1, 5),
    act=st.integers(1, 4),
    more=st.integers(0, 5),
    moe=st.booleans(),
    n_layer=st.integers(1, 5),
    alpha_ffn=st.sampled_from((0.125, 0.25, 1, 1.5, 4)),
    vocab_size=st.integers(1, 500),
    context=st.integers(1, 100),
    tied_embeddings=st.booleans(),
    linear_bias=st.booleans(),
)


@given(models)
def test_counts_are_the_sum_of_all_tensors(model: ModelSpec) -> None:
    sizes, counts = tensor_sizes(model), model.counts()
    tables = sizes["token table"] + sizes["position table"]
    total = sum(sizes.values())
    active = sum(size for name, size in sizes.items() if is_active(name, model))
    assert (counts.total, counts.active) == (total, active)
    assert (counts.non_embedding_total, counts.non_embedding_active) == (total - tables, active - tables)


@given(models)
def test_the_paper_leaves_out_norms_biases_router_and_untied_head(model: ModelSpec) -> None:
    left_out = ("norm", "bias", "router", "head")
    sizes = {name: size for name, size in tensor_sizes(model).items() if not any(word in name for word in left_out)}
    assert model.counts().paper_total == sum(sizes.values())
    assert model.counts().paper_active == sum(size for name, size in sizes.items() if is_active(name, model))


@given(models)
def test_flops_are_six_per_active_parameter_and_attention(model: ModelSpec) -> None:
    sizes = tensor_sizes(model)
    used = sum(size for name, size in sizes.items() if is_active(name, model) and "table" not in name)
    used += sizes["token table"] if model.tied_embeddings else 0
    scores_and_values = 2 * 2 * model.context * model.n_embd * model.n_layer  # one multiply-add is two
    assert model.flops_per_token() == 6 * used + 3 * scores_and_values


@given(models)
def test_the_dense_twin_has_the_active_ffn_and_nothing_else_changed(model: ModelSpec) -> None:
    twin = model.dense_twin()
    assert (twin.ffn, twin.n_exp, twin.n_act) == ("dense", 1, 1)
    assert twin.n_hid == model.n_act * model.n_hid
    changed = {name for name in ModelSpec.model_fields if getattr(twin, name) != getattr(model, name)}
    assert changed <= {"ffn", "n_exp", "n_act", "alpha_ffn"}
    assert twin.counts().paper_active == twin.counts().paper_total == model.counts().paper_active


def test_sparsity_hidden_size_and_heads_follow_from_the_shape() -> None:
    model = ModelSpec(n_embd=384, n_layer=1, n_exp=12, n_act=3, alpha_ffn="1/3")
    assert (model.kappa, model.n_hid, model.n_head) == (Fraction(1, 4), 128, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_act": 5}, "n_act=5 is more than n_exp=4"),
        ({"n_embd": 100}, "n_embd=100 is not a multiple of d_head=64; set n_embd=128 or another d_head"),
        ({"n_embd": 10}, "n_embd=10 is not a multiple of d_head=64; set n_embd=64 or another d_head"),
        ({"alpha_ffn": 0.3}, "alpha_ffn*n_embd=38.4 is not an integer >= 1; set alpha_ffn=38/128 for 38 hidden units"),
        ({"alpha_ffn": 1e-9}, "is not an integer >= 1; set alpha_ffn=1/128 for 1 hidden units"),
        ({"ffn": "dense"}, "ffn=dense has no experts but n_exp=4; leave n_exp and n_act out and give alpha_ffn"),
    ],
)
def test_what_is_no_model_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        ModelSpec(**{**SMALL, **changes})
    assert message in str(refusal.value)


def test_a_mixture_needs_a_number_of_experts() -> None:
    with pytest.raises(ValidationError, match="n_exp is missing; give n_exp and n_act, or set ffn=dense"):
        ModelSpec(n_embd=64, n_layer=1)


def test_the_alpha_that_an_error_suggests_is_accepted() -> None:
    assert ModelSpec(**{**SMALL, "alpha_ffn": "38/128"}).n_hid == 38


@pytest.mark.parametrize("field", ["n_embd", "n_layer", "d_head", "n_exp", "n_act", "alpha_ffn", "vocab_size"])
@pytest.mark.parametrize("value", [0, -1, "many", float("inf"), float("nan")])
def test_sizes_are_positive_numbers(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refusal:
        ModelSpec(**{**SMALL, field: value})
    assert refusal.value.errors()[0]["loc"] == (field,)


@pytest.mark.parametrize("field", ["lr", "init_std", "adam_eps", "weight_decay", "bias_lr"])
@pytest.mark.parametrize("value", [-1, "high", float("inf"), float("nan")])
def test_hyperparameters_are_finite_numbers(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refusal:
        BaseHPs(**{"lr": 1, field: value})
    assert refusal.value.errors()[0]["loc"] == (field,)


@pytest.mark.parametrize("gamma", [0.4, 0, -1, float("nan")])
def test_gamma_is_at_least_one_half(gamma: float) -> None:
    with pytest.raises(ValidationError, match=r"greater than or equal to 0\.5"):
        BaseHPs(lr=1, gamma=gamma)


@pytest.mark.parametrize(("text", "value"), [("1/2", 0.5), (".5", 0.5), ("1e-3", 1e-3)])
def test_ratios_can_be_written_as_ratios(text: str, value: float) -> None:
    assert BaseHPs(lr=text).lr == value
    assert BaseHPs(lr=1, constants={"router_lr": text}).constants == {"router_lr": value}


def test_gamma_can_be_written_as_a_ratio() -> None:
    assert BaseHPs(lr=1, gamma="1/2").gamma == 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warmup_steps": 11}, "warmup_steps=11 is more than steps=10"),
        ({"schedule": "wsd"}, "give both or neither"),
        ({"decay_steps": 3}, "give both or neither"),
        (
            {"schedule": "wsd", "warmup_steps": 6, "decay_steps": 5},
            "warmup_steps=6 + decay_steps=5 is more than steps=10; shorten one",
        ),
    ],
)
def test_what_is_no_schedule_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        TrainSpec(**{**TRAIN, **changes})
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_tokens": 1500}, "train.batch_tokens=1500 is not a multiple of model.context=1024; set 1024"),
        ({"micro_batch": 3}, "train.micro_batch=3 does not divide the batch of 4 sequences; set 1 or another"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        RunSpec(base=SMALL, model=SMALL, hps={"lr": 0.01}, train={**TRAIN, **changes})
    assert message in str(refusal.value)


def test_a_batch_is_counted_in_sequences() -> None:
    run = RunSpec(base=SMALL, model=SMALL, hps={"lr": 0.01}, train={**TRAIN, "micro_batch": 2})
    assert run.sequences == 4


def test_specs_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ModelSpec(**SMALL).n_embd = 256


def test_equal_runs_have_equal_hashes_and_serve_as_keys() -> None:
    model = ModelSpec(**SMALL)
    hps = BaseHPs(lr=0.25, constants={"router_lr": 0.5, "attn_o_lr": 2})
    run = RunSpec(base=model, model=model, hps=hps, train=TrainSpec(**TRAIN))
    same = RunSpec(
        base={**SMALL, "alpha_ffn": 1},
        model=ModelSpec(**{**SMALL, "n_embd": 256}).replace(n_embd=128),
        hps={"constants": {"attn_o_lr": "2/1", "router_lr": "1/2"}, "lr": "1/4", "clip": None},
        train=TRAIN,
    )
    loaded = RunSpec(**run.to_dict())
    assert run == same == loaded
    assert hash(run) == hash(same) == hash(loaded)
    assert {run: "found"}[same] == "found"
    other = run.replace(hps=hps.replace(constants={"router_lr": 0.5}))
    assert len({run, same, other, run.replace(hps=BaseHPs(lr=0.25))}) == 3
