"""The plan against the `mup` package on the same shapes: width grows, everything else is fixed.

That package sorts tensors by how many of their dimensions grow with width, the plan by their role. Where both have an
opinion they must agree. A router is the exception: (n_embd -> n_exp) has one growing dimension, like a head.
"""

import mup
import pytest
import torch
from torch import nn

from expertp.plan import Plan, plan
from expertp.spec import BaseHPs, ModelSpec

BASE_WIDTH, WIDTH = 32, 128
M_N = WIDTH / BASE_WIDTH
LR, STD, DECAY = 0.01, 0.02, 0.1


class Experts(nn.Module):
    """The tensors of a one-layer MoE transformer, each named after its group and never called."""

    def __init__(self, width: int, router: type[nn.Linear], n_exp: int = 4, alpha: int = 2, vocabulary: int = 11):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width)
        self.final_norm = nn.LayerNorm(width)
        self.attn_qk = nn.Linear(width, width)
        self.attn_v = nn.Linear(width, width)
        self.attn_o = nn.Linear(width, width)
        self.router = router(width, n_exp, bias=False)
        self.expert_up = nn.ModuleList(nn.Linear(width, alpha * width, bias=False) for _ in range(n_exp))
        self.expert_down = nn.ModuleList(nn.Linear(alpha * width, width, bias=False) for _ in range(n_exp))
        self.unembedding = mup.MuReadout(width, vocabulary, bias=False)


def scaled(router: type[nn.Linear] = mup.MuReadout, do_assert: bool = True) -> Experts:
    """Return the wide model with the shapes of base and delta set, as the package's README has it."""
    base, delta, model = (Experts(width, router) for width in (BASE_WIDTH, 2 * BASE_WIDTH, WIDTH))
    mup.set_base_shapes(model, base, delta=delta, do_assert=do_assert)
    return model


def group_of(name: str) -> str:
    role = name.split(".")[0]
    return "linear_bias" if role.startswith("attn") and name.endswith("bias") else role


def lr_and_decay_of(model: nn.Module) -> dict[str, tuple[float, float]]:
    """Return lr and weight decay per parameter name, as MuAdamW sets them."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        names[parameter]: (group["lr"], group["weight_decay"])
        for group in mup.MuAdamW(model.parameters(), lr=LR, weight_decay=DECAY).param_groups
        for parameter in group["params"]
    }


def init_factor(parameter: nn.Parameter) -> float:
    """Return what mup.init.normal_ multiplies a std by: the same random numbers, with and without it."""
    torch.manual_seed(0)
    mup.init.normal_(parameter, std=1.0)
    with_mup = parameter.detach().clone()
    torch.manual_seed(0)
    nn.init.normal_(parameter, std=1.0)
    ratios = with_mup / parameter.detach()
    assert ratios.std() < 1e-5
    return float(ratios.mean())


def wide_plan(rules: str) -> Plan:
    base = ModelSpec(
        n_embd=BASE_WIDTH, n_layer=1, d_head=16, n_exp=4, n_act=1, alpha_ffn=2, tied_embeddings=False, linear_bias=True
    )
    target = ModelSpec(**{**base.model_dump(), "n_embd": WIDTH})
    return plan(base, target, BaseHPs(lr=LR, init_std=STD, weight_decay=DECAY, rules=rules))


both_rule_sets = pytest.mark.parametrize("rules", ["expertp", "mup"])
PARAMETERS = [name for name, _ in Experts(BASE_WIDTH, mup.MuReadout).named_parameters()]
OTHERS = [name for name in PARAMETERS if group_of(name) != "router"]
MATRICES = [name for name in OTHERS if name.endswith("weight") and "norm" not in name]


@both_rule_sets
@pytest.mark.parametrize("name", OTHERS)
def test_lr_is_that_of_mu_adamw(rules: str, name: str) -> None:
    lr, _ = lr_and_decay_of(scaled())[name]
    assert wide_plan(rules).groups[group_of(name)].lr == pytest.approx(lr)


@both_rule_sets
@pytest.mark.parametrize("name", MATRICES)
def test_weight_decay_is_that_of_mu_adamw(rules: str, name: str) -> None:
    """Of matrices and tables: the package would decay norms and biases too, the plan does not."""
    _, decay = lr_and_decay_of(scaled())[name]
    assert wide_plan(rules).groups[group_of(name)].weight_decay == pytest.approx(decay)


@both_rule_sets
@pytest.mark.parametrize("name", MATRICES)
def test_init_std_is_that_of_mup_init(rules: str, name: str) -> None:
    factor = init_factor(dict(scaled().named_parameters())[name])
    assert wide_plan(rules).groups[group_of(name)].init_std == pytest.approx(STD * factor, rel=1e-5)


@both_rule_sets
def test_the_logit_multiplier_is_that_of_the_readout(rules: str) -> None:
    readout = scaled().unembedding
    x = torch.randn(3, WIDTH)
    torch.testing.assert_close(readout(x), nn.functional.linear(x, readout.weight) * wide_plan(rules).forward.logits)


def test_a_router_built_as_linear_is_refused_by_mup() -> None:
    with pytest.raises(AssertionError, match="router has infinite fan-in and finite fan-out"):
        scaled(router=nn.Linear)


def test_a_router_built_as_linear_is_left_unscaled_by_mup() -> None:
    """When its check is off. The plan does scale it, by width in init, lr and weight decay."""
    model = scaled(router=nn.Linear, do_assert=False)
    assert lr_and_decay_of(model)["router.weight"] == (LR, DECAY)
    assert init_factor(model.router.weight) == pytest.approx(1.0)
    router = wide_plan("mup").groups["router"]
    assert (router.init_std, router.lr, router.weight_decay) == pytest.approx((STD / M_N, LR / M_N, DECAY * M_N))


@both_rule_sets
def test_a_router_built_as_readout_is_the_plans_router_at_gamma_one(rules: str) -> None:
    """Scaled forward, unscaled init and lr: as the effective weight W / m_N, that is init and lr over m_N."""
    model = scaled(router=mup.MuReadout)
    lr, decay = lr_and_decay_of(model)["router.weight"]
    x = torch.randn(3, WIDTH)
    forward = float((model.router(x) / nn.functional.linear(x, model.router.weight)).detach().median())
    assert (forward, lr, decay) == pytest.approx((1 / M_N, LR, DECAY))
    router = wide_plan(rules).groups["router"]
    assert router.init_std == pytest.approx(STD * init_factor(model.router.weight) * forward)
    assert (router.lr, router.weight_decay) == pytest.approx((lr * forward, decay / forward))


def test_both_routers_take_the_same_steps() -> None:
    """The symmetry itself: readout under MuAdamW, and a plain linear layer under the plan's settings."""
    torch.manual_seed(0)
    readout = scaled(router=mup.MuReadout).router.double()
    plain = nn.Linear(WIDTH, readout.out_features, bias=False).double()
    with torch.no_grad():
        plain.weight.copy_(readout.weight / M_N)
    router = wide_plan("expertp").groups["router"]
    tiny = 1e-30  # an eps would have to be folded too
    readout_adam = mup.MuAdamW(readout.parameters(), lr=LR, weight_decay=DECAY, eps=tiny)
    plain_adam = torch.optim.AdamW(plain.parameters(), lr=router.lr, weight_decay=router.weight_decay, eps=tiny)
    before = plain.weight.detach().clone()
    for _ in range(5):
        x, wanted = torch.randn(8, WIDTH).double(), torch.randn(8, readout.out_features).double()
        for layer, adam in ((readout, readout_adam), (plain, plain_adam)):
            adam.zero_grad()
            (layer(x) - wanted).square().mean().backward()
            adam.step()
    torch.testing.assert_close(readout.weight / M_N, plain.weight)
    assert not torch.allclose(before, plain.weight)
