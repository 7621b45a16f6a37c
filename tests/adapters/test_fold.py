"""Folded settings train like multipliers in the forward pass, in float64, with factors that are no powers of two."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from adapters.float64 import Float64
from adapters.tiny import TINY, build
from torch import Tensor, nn

from expertp.adapters.adapted import Adapted, adapt
from expertp.adapters.families import FAMILIES
from expertp.adapters.fit import TensorPlan
from expertp.spec import BaseHPs

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")

HPS = BaseHPs(lr=1e-3, init_std=0.2, adam_eps=1e-3, weight_decay=0.1, clip=None)
STEPS = 10
# A base with 1/3 of the width, 2/3 of the layers and 2/3 of the experts.
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
MORE_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
MORE_ACTIVE = ("num_experts_per_tok", "moe_k", "moe_topk")
# Blocks whose outputs are added to the stream, by the code of transformers; in other families: attention and mlp.
BLOCKS = {
    "granitemoe": ("self_attn", "block_sparse_moe"),
    "granitemoe_swa": ("self_attn", "block_sparse_moe", "shared_mlp"),
    "granitemoeshared": ("self_attn", "block_sparse_moe", "shared_mlp"),
    "llama4_text": ("self_attn", "feed_forward"),
    "flex_olmo": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "afmoe": ("post_attention_layernorm", "post_mlp_layernorm"),
    "kolibri1": ("post_self_attn_layernorm", "post_mlp_layernorm"),
}
QUICK = ("mixtral", "deepseek_v3", "gpt_oss", "dots1", "minimax_m3_vl_text", "axk1")


def larger(model_type: str) -> dict[str, Any]:
    """Return the changes that make the tiny model the target: 12 experts, 3 of them active."""
    if model_type == "phimoe":
        return {}
    own = TINY[model_type]
    return {**{key: 12 for key in MORE_EXPERTS if key in own}, **{key: 3 for key in MORE_ACTIVE if key in own}}


def adapted(model_type: str, tied: bool, hps: BaseHPs = HPS) -> tuple[nn.Module, Adapted]:
    changes = {"tie_word_embeddings": tied}
    if model_type.startswith("granitemoe"):
        changes["attention_multiplier"] = 0.35  # the default, 1.0, makes scores huge
    small = {**changes, **SMALL}
    if model_type in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "axk1"):
        small["num_key_value_heads"] = 2
    if model_type == "ernie4_5_moe":
        small["moe_layer_end_index"] = 1
    target = build(model_type, **changes, **larger(model_type)).double()
    return target, adapt(target, build(model_type, "meta", **small), hps)


def multiplied(model: nn.Module, model_type: str, fitted: Adapted) -> None:
    """Put the forward multipliers where the code of transformers computes what they multiply."""
    forward = fitted.fit.forward

    def times(factor: float) -> Callable[..., Any]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            if isinstance(output, tuple):
                return (factor * output[0], *output[1:])
            return factor * output

        return hook

    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if ".layers." in name and name.count(".") == 3 and last in BLOCKS.get(model_type, ("self_attn", "mlp")):
            module.register_forward_hook(times(forward.residual))
        if last == "experts":
            module.register_forward_hook(times(forward.moe_output))
        if name == "lm_head":
            module.register_forward_hook(times(forward.logits))


class Run(NamedTuple):
    losses: Tensor
    parameters: dict[str, Tensor]


def train(model: nn.Module, groups: list[dict[str, Any]], clip: Callable[[Any], object] | None = None) -> Run:
    optimizer = torch.optim.AdamW(groups)
    tokens = torch.randint(3, 64, (4, 12), generator=torch.Generator().manual_seed(1))
    losses = []
    for step in range(STEPS):
        torch.manual_seed(step)  # phimoe samples its experts
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        if clip:
            clip(optimizer)
        optimizer.step()
        losses.append(loss.detach())
    return Run(torch.stack(losses), {name: each.detach().clone() for name, each in model.named_parameters()})


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64():
            yield
    finally:
        torch.set_default_dtype(before)


def unfolded(tensor: TensorPlan) -> TensorPlan:
    """Return the settings of a tensor whose multiplier is in the forward pass."""
    c = tensor.fold
    return replace(
        tensor,
        start=tensor.start / c,
        init_std=tensor.init_std / c,
        lr=tensor.lr / c,
        weight_decay=tensor.weight_decay * c,
        adam_eps=tensor.adam_eps * c,
    )


def with_tensors(fitted: Adapted, change: Callable[[TensorPlan], TensorPlan]) -> Adapted:
    return replace(fitted, fit=replace(fitted.fit, tensors=tuple(map(change, fitted.fit.tensors))))


def effective(fitted: Adapted, run: Run, folds: bool) -> dict[str, Tensor]:
    """Return parameters as the forward pass sees them; norms that store gain - 1 as gains."""
    found = {}
    for tensor in fitted.fit.tensors:
        value = run.parameters[tensor.name]
        gain = fitted.family.gain_minus_one and "norm" in tensor.role
        value = value + 1 if gain else value
        found[tensor.name] = value if folds else tensor.fold * value
    return found


def both(model_type: str, tied: bool) -> tuple[Run, Run, Adapted]:
    """Train the same model folded, and with multipliers by hooks."""
    with in_float64():
        model, fitted = adapted(model_type, tied)
        fitted.init_(model)
        folded = train(model, fitted.param_groups(model))
        hooked_model, _ = adapted(model_type, tied)
        plain = with_tensors(fitted, unfolded)
        if fitted.family.gain_minus_one:  # its norms start at gain 1, stored as 0
            plain = with_tensors(plain, lambda tensor: replace(tensor, start=0.0))
        plain.init_(hooked_model)
        multiplied(hooked_model, model_type, fitted)
        hooked = train(hooked_model, plain.param_groups(hooked_model))
    return folded, hooked, fitted


def assert_same(model_type: str, tied: bool) -> None:
    folded, hooked, fitted = both(model_type, tied)
    # Without multipliers the comparison would be empty.
    assert fitted.fit.forward.residual == pytest.approx(2 / 3)
    assert fitted.fit.forward.logits == pytest.approx(1 / 3)
    assert (folded.losses - hooked.losses).abs().max() < 1e-11
    ours, theirs = effective(fitted, folded, folds=True), effective(fitted, hooked, folds=False)
    for name, value in ours.items():
        assert (value - theirs[name]).abs().max() < 1e-11 * max(1.0, float(theirs[name].abs().max())), name
    assert folded.losses[-1] < folded.losses[0]


@pytest.mark.heavy
@pytest.mark.parametrize("model_type", QUICK)
def test_folding_is_multiplying(model_type: str) -> None:
    assert_same(model_type, tied=model_type == "mixtral")


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_folding_is_multiplying_in_every_family(model_type: str, tied: bool) -> None:
    assert_same(model_type, tied)


WRONG: dict[str, Callable[[TensorPlan], TensorPlan]] = {
    "eps": lambda tensor: replace(tensor, adam_eps=unfolded(tensor).adam_eps),
    "weight decay": lambda tensor: replace(tensor, weight_decay=unfolded(tensor).weight_decay),
    "lr": lambda tensor: replace(tensor, lr=unfolded(tensor).lr),
    "init": lambda tensor: replace(tensor, init_std=unfolded(tensor).init_std, start=unfolded(tensor).start),
}
# Settings at which each of the four matters within ten steps.
STRONG = HPS.replace(lr=3e-2, weight_decay=1.0)


@pytest.mark.heavy
@pytest.mark.parametrize("what", WRONG)
def test_a_setting_that_is_not_folded_shows(what: str) -> None:
    """The comparison can fail: with one setting left out, losses are apart by more than 1e-3."""
    with in_float64():
        model, fitted = adapted("mixtral", tied=False, hps=STRONG)
        fitted.init_(model)
        right = train(model, fitted.param_groups(model))
        model, _ = adapted("mixtral", tied=False)
        wrong = with_tensors(fitted, WRONG[what])
        wrong.init_(model)
        found = train(model, wrong.param_groups(model))
    assert (right.losses - found.losses).abs().max() > 1e-3


@pytest.mark.heavy
def test_clipping_in_planned_units_is_the_same_folded_and_multiplied_unlike_that_of_torch() -> None:
    def losses(norm: str, folds: bool) -> Tensor:
        with in_float64():
            model, fitted = adapted("mixtral", tied=False, hps=HPS.replace(lr=1e-2))
            form = fitted if folds else with_tensors(fitted, unfolded)
            form.init_(model)
            if not folds:
                multiplied(model, "mixtral", fitted)
                # The size of the gradient of an unfolded tensor is not divided by the multiplier.
                form = with_tensors(form, lambda tensor: replace(tensor, clip_factor=tensor.clip_factor / tensor.fold))
            planned = lambda optimizer: form.clip_grad_norm_(optimizer, 1e-2)  # noqa: E731
            torchs = lambda _: nn.utils.clip_grad_norm_(model.parameters(), 1e-2)  # noqa: E731
            return train(model, form.param_groups(model), planned if norm == "planned" else torchs).losses

    assert (losses("planned", folds=True) - losses("planned", folds=False)).abs().max() < 1e-11
    assert (losses("torch", folds=True) - losses("torch", folds=False)).abs().max() > 1e-3


@pytest.mark.heavy
def test_multipliers_in_the_configuration_train_like_folded_ones() -> None:
    model_type = "granitemoe"
    with in_float64():
        model, fitted = adapted(model_type, tied=False)
        fitted.init_(model)
        folded = train(model, fitted.param_groups(model))
        changes = {"attention_multiplier": 0.35, "tie_word_embeddings": False}
        base = build(model_type, "meta", **changes, **SMALL)
        native = {"residual_multiplier": 2 / 3, "logits_scaling": 3.0}
        model = build(model_type, **changes, **larger(model_type), **native).double()
        by_config = adapt(model, base, HPS, apply="config")
        assert by_config.fit.config == pytest.approx(native)
        assert {tensor.fold for tensor in by_config.fit.tensors} == {1.0}
        by_config.init_(model)
        found = train(model, by_config.param_groups(model))
    assert (folded.losses - found.losses).abs().max() < 1e-11
