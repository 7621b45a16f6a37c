import math

import pytest
import torch

from expertp.errors import InputError
from expertp.model import MoETransformer, group_of
from expertp.plan import plan
from expertp.spec import BaseHPs, ModelSpec, TrainSpec
from expertp.training.optim import adamw, init_parameters, lr_factor, param_groups, set_lr_factor

SMALL = ModelSpec(n_embd=32, d_head=16, n_layer=2, n_exp=4, n_act=2, vocab_size=96, context=16)
LARGE = ModelSpec(
    n_embd=128, d_head=16, n_layer=4, n_exp=8, n_act=4, alpha_ffn=2, vocab_size=96, context=16,
    tied_embeddings=False, linear_bias=True,
)  # fmt: skip


def planned(target=LARGE, **hps):
    base = SMALL.replace(tied_embeddings=target.tied_embeddings, linear_bias=target.linear_bias)
    return plan(base, target, BaseHPs(lr=0.01, init_std=0.1, adam_eps=1e-9, weight_decay=0.1, **hps))


def built(the_plan, seed=0):
    model = MoETransformer(the_plan.target, the_plan.forward)
    init_parameters(model, the_plan, seed)
    return model


def test_init_follows_the_plan():
    the_plan = planned(constants="paper")
    for name, parameter in built(the_plan).named_parameters():
        std = the_plan.groups[group_of(name)].init_std
        if std is None:
            assert torch.equal(parameter, torch.full_like(parameter, 0.0 if name.endswith("bias") else 1.0)), name
        elif std == 0:
            assert not parameter.any(), name
        else:
            tolerance = 5 / math.sqrt(2 * parameter.numel())
            assert parameter.std().item() == pytest.approx(std, rel=tolerance), name
            assert abs(parameter.mean().item()) < 5 * std / math.sqrt(parameter.numel()), name


def test_init_depends_on_seed_and_name_only():
    the_plan = planned()
    first, again, other = built(the_plan), built(the_plan), built(the_plan, seed=1)
    state = first.state_dict()
    assert all(torch.equal(state[name], value) for name, value in again.state_dict().items())
    assert not torch.equal(state["token.weight"], other.token.weight)
    assert not torch.equal(state["blocks.0.ffn.experts.up"], state["blocks.1.ffn.experts.up"])
    shallow = LARGE.replace(n_layer=2)
    same_start = built(planned(shallow)).state_dict()["blocks.1.attn.v.weight"]
    assert torch.equal(same_start, state["blocks.1.attn.v.weight"])


def test_groups_carry_the_plan_and_every_parameter_once():
    the_plan = planned(constants="paper")
    model = built(the_plan)
    groups = param_groups(model, the_plan)
    assert sorted(name for group in groups for name in group["param_names"]) == sorted(
        name for name, _ in model.named_parameters()
    )
    for group in groups:
        expected = the_plan.groups[group["name"]]
        assert (group["lr"], group["weight_decay"], group["eps"]) == (
            expected.lr,
            expected.weight_decay,
            expected.adam_eps,
        )


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_groups_suit_any_torch_optimizer(optimizer):
    the_plan = planned()
    model = built(the_plan)
    used = optimizer(param_groups(model, the_plan), lr=123.0)
    assert {group["lr"] for group in used.param_groups} == {
        group.lr for name, group in the_plan.groups.items() if group.lr is not None and name not in ABSENT
    }
    before = model.token.weight.clone()
    tokens = torch.arange(16)[None]
    model(tokens, tokens).loss.backward()
    used.step()
    assert not torch.equal(before, model.token.weight)


ABSENT = ("expert_bias",)


@pytest.mark.parametrize("use", [param_groups, lambda model, plan, of: init_parameters(model, plan, 0, of)])
def test_an_unknown_group_is_one_line_that_names_the_parameter(use):
    model = built(planned(LARGE))
    with pytest.raises(
        InputError, match=r"parameter 'token.weight' is in group 'embeding', .* did you mean 'embedding'"
    ):
        use(model, planned(LARGE), lambda _: "embeding")


def test_a_parameter_that_the_plan_does_not_have_is_an_error():
    model = built(planned(LARGE))
    other = planned(LARGE.replace(tied_embeddings=True))
    with pytest.raises(ValueError, match="which the plan does not have"):
        param_groups(model, other)


def test_adam_moves_each_group_by_its_own_lr():
    the_plan = planned(constants="paper")
    model = built(the_plan)
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = adamw(param_groups(model, the_plan))
    assert all(group["fused"] for group in optimizer.param_groups)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    set_lr_factor(optimizer, 0.5)
    optimizer.step()
    for name, parameter in model.named_parameters():
        group = the_plan.groups[group_of(name)]
        expected = start[name] * (1 - 0.5 * group.lr * group.weight_decay) - 0.5 * group.lr
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-5, atol=1e-6)


def schedule(kind, **values):
    spec = TrainSpec(data="d", steps=100, batch_tokens=1, schedule=kind, warmup_steps=10, **values)
    return [lr_factor(spec, step) for step in range(100)]


def test_warm_up_is_linear_and_reaches_one():
    for factors in (schedule("constant"), schedule("cosine"), schedule("wsd", decay_steps=20)):
        assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])


def test_schedules_have_their_shapes():
    assert set(schedule("constant")[10:]) == {1.0}
    cosine = schedule("cosine")
    assert cosine[10] == 1.0
    assert cosine[55] == pytest.approx(0.5)
    assert 0 < cosine[99] < 0.001
    wsd = schedule("wsd", decay_steps=20)
    assert set(wsd[10:81]) == {1.0}
    assert wsd[90] == pytest.approx(0.5)
    assert wsd[99] == pytest.approx(0.05)


def test_factors_keep_the_ratios_between_groups():
    the_plan = planned(constants="paper")
    optimizer = adamw(param_groups(built(the_plan), the_plan))
    for factor in (0.1, 0.7, 0.1):
        set_lr_factor(optimizer, factor)
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(factor * the_plan.groups[group["name"]].lr)


def test_the_two_forms_of_the_alpha_rule_train_identically():
    """Init and lr carry 1/alpha, or the forward pass does: Adam cannot tell, if eps follows."""
    base = ModelSpec(n_embd=32, d_head=16, n_layer=2, n_exp=4, n_act=2, vocab_size=96, context=16)
    target = base.replace(alpha_ffn=4.0)
    the_plan = plan(base, target, BaseHPs(lr=0.01, init_std=0.1, adam_eps=1e-6))
    m_alpha = the_plan.multipliers.alpha
    losses = []
    for in_forward in (False, True):
        forward = the_plan.forward
        if in_forward:
            forward = type(forward)(**{**forward.__dict__, "moe_output": forward.moe_output / m_alpha})
        model = MoETransformer(target, forward).double()
        init_parameters(model, the_plan, seed=0)
        groups = param_groups(model, the_plan)
        if in_forward:
            with torch.no_grad():
                for block in model.blocks:
                    block.ffn.experts.down.mul_(m_alpha)
            for group in groups:
                if group["name"] == "expert_down":
                    group["lr"] *= m_alpha
                    group["eps"] /= m_alpha
        optimizer = torch.optim.Adam(groups)
        ids = torch.randint(0, 96, (4, 17), generator=torch.Generator().manual_seed(3))
        losses.append([])
        for _ in range(15):
            loss = model(ids[:, :-1], ids[:, 1:]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    assert losses[0][0] - losses[0][-1] > 0.5, "they must have trained"
