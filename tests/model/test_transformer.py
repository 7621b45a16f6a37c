import pytest
import torch

from expertp.model import MoETransformer, group_of
from expertp.model.experts import BACKENDS
from expertp.plan import Forward, plan
from expertp.spec import BaseHPs, ModelSpec
from expertp.training.optim import init_parameters


def spec(**changes):
    values = {"n_embd": 32, "d_head": 8, "n_layer": 2, "n_exp": 4, "n_act": 2, "vocab_size": 50, "context": 12}
    return ModelSpec(**{**values, **changes})


DENSE = {"ffn": "dense", "n_exp": 1, "n_act": 1, "alpha_ffn": 2}
SHAPES = {
    "moe": {},
    "softmax": {"gate": "softmax"},
    "untied": {"tied_embeddings": False},
    "biases": {"linear_bias": True},
    "dense": DENSE,
    "dense with biases": {**DENSE, "linear_bias": True, "tied_embeddings": False},
    "small experts": {"alpha_ffn": "1/4", "n_exp": 16, "n_act": 4},
}


def build(model_spec, seed=0, dtype=torch.float32, forward=None, **options):
    planned = plan(model_spec, model_spec, BaseHPs(lr=0.01, init_std=0.1))
    model = MoETransformer(model_spec, forward or planned.forward, **options).to(dtype)
    init_parameters(model, planned, seed)
    return model


def batch(model_spec, sequences=3):
    ids = torch.randint(0, model_spec.vocab_size, (sequences, model_spec.context + 1), generator=torch.manual_seed(5))
    return ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_counts_are_exact(changes):
    model_spec = spec(**changes)
    model, counts = build(model_spec), model_spec.counts()
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    tables = sizes["token.weight"] + sizes["position.weight"]
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    assert counts.total == sum(sizes.values())
    assert counts.active == sum(sizes.values()) - experts + experts * model_spec.n_act // model_spec.n_exp
    assert counts.non_embedding_total == counts.total - tables
    assert counts.non_embedding_active == counts.active - tables


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_every_parameter_has_a_group_that_the_plan_fills(changes):
    model_spec = spec(**changes)
    groups = plan(model_spec, model_spec, BaseHPs(lr=0.01)).groups
    used = {group_of(name) for name, _ in build(model_spec).named_parameters()}
    filled = {name for name, group in groups.items() if group.lr is not None}
    assert used == filled - {"expert_bias"}


def test_an_unknown_parameter_name_is_an_error():
    with pytest.raises(ValueError, match="belongs to no group"):
        group_of("blocks.0.ffn.shared.up")


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_the_loss_at_init_is_that_of_a_uniform_guess(changes):
    model_spec = spec(**changes, vocab_size=1024) if "vocab_size" not in changes else spec(**changes)
    model = build(model_spec)
    for parameter in model.parameters():
        parameter.data.mul_(0.1)
    loss = model(*batch(model_spec)).loss.item()
    assert loss == pytest.approx(torch.tensor(float(model_spec.vocab_size)).log().item(), rel=0.01)


def test_the_future_does_not_leak():
    model_spec = spec()
    model, (tokens, _) = build(model_spec), batch(model_spec)
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % model_spec.vocab_size
    before, after = (model.logits(model.hidden(ids).h_BSN) for ids in (tokens, changed))
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 7:], after[:, 7:], atol=1e-3)


def test_forward_multipliers_act_where_the_plan_says():
    model_spec = spec()
    tokens, _ = batch(model_spec)
    unit = Forward(residual=1.0, logits=1.0, attention_scale=1 / 8, moe_output=0.5)
    model = build(model_spec, forward=unit, dtype=torch.float64)

    def logits(**changes):
        scaled = build(model_spec, forward=Forward(**{**unit.__dict__, **changes}), dtype=torch.float64)
        return scaled.logits(scaled.hidden(tokens).h_BSN)

    plain = model.logits(model.hidden(tokens).h_BSN)
    torch.testing.assert_close(logits(logits=0.25), plain * 0.25)
    stream = (model.token(tokens) + model.position.weight).double()
    torch.testing.assert_close(logits(residual=0.0), model.logits(stream))
    with torch.no_grad():
        for block in model.blocks:
            block.ffn.experts.down.mul_(0.5)
    torch.testing.assert_close(logits(moe_output=0.25), model.logits(model.hidden(tokens).h_BSN))
    with torch.no_grad():
        for block in model.blocks:
            block.ffn.experts.down.mul_(2)
            block.attn.qk.weight[:32].mul_(3.0)
    torch.testing.assert_close(logits(attention_scale=3 / 8), model.logits(model.hidden(tokens).h_BSN))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
def test_activation_checkpointing_changes_neither_gradients_nor_loads(backend, gate):
    model_spec = spec(gate=gate)
    results = []
    for checkpointing in (False, True):
        model = build(model_spec, backend=backend, activation_checkpointing=checkpointing, with_auxiliary=True)
        out = model(*batch(model_spec))
        (out.loss + 0.1 * out.auxiliary).backward()
        results.append((out.load_LE, {name: p.grad for name, p in model.named_parameters()}))
    (loads, gradients), (loads_again, gradients_again) = results
    assert torch.equal(loads, loads_again)
    assert loads.sum(-1).tolist() == [3 * 12 * 2] * 2
    for name, gradient in gradients.items():
        assert torch.equal(gradient, gradients_again[name]), name


def test_the_dense_twin_has_the_same_active_ffn():
    moe = spec(n_exp=8, n_act=4, alpha_ffn=0.5)
    twin = moe.dense_twin()
    router = moe.n_layer * moe.n_embd * moe.n_exp
    assert twin.counts().active == moe.counts().active - router


def test_a_moe_with_one_expert_and_gate_one_is_the_dense_model():
    moe, dense = spec(n_exp=1, n_act=1, alpha_ffn=2), spec(**DENSE)
    first, second = build(moe, dtype=torch.float64), build(dense, dtype=torch.float64)
    with torch.no_grad():
        for ours, theirs in zip(first.blocks, second.blocks, strict=True):
            ours.ffn.experts.up.copy_(theirs.ffn.up.weight.T[None])
            ours.ffn.experts.down.copy_(2 * theirs.ffn.down.weight.T[None])
            ours.ffn.router.weight.zero_()  # sigmoid(0) = 1/2, which the doubled down projection undoes
    torch.testing.assert_close(first(*batch(moe)).loss, second(*batch(dense)).loss)
