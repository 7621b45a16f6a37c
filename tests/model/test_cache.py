"""With a key-value cache, new positions have the logits that they have in a pass over all positions."""

import pytest
import torch

from expertp.model import MoETransformer
from expertp.model.experts import BACKENDS
from expertp.plan import plan
from expertp.spec import BaseHPs, ModelSpec
from expertp.training.optim import init_parameters

DENSE = {"ffn": "dense", "n_exp": 1, "n_act": 1, "alpha_ffn": 2}
SHAPES = {
    "moe": {},
    "softmax": {"gate": "softmax"},
    "untied, biases": {"tied_embeddings": False, "linear_bias": True},
    "dense": DENSE,
    "many experts": {"alpha_ffn": "1/4", "n_exp": 16, "n_act": 4},
}
# How the 12 positions are handed to the model.
PIECES = {"one by one": [1] * 12, "prompt, then one by one": [7, 1, 1, 1, 1, 1], "several at once": [3, 5, 4]}


def build(gamma=1.0, backend="fused", **changes):
    sizes = {"n_embd": 32, "d_head": 8, "n_layer": 3, "n_exp": 4, "n_act": 2, "vocab_size": 50, "context": 12}
    spec = ModelSpec(**{**sizes, **changes})
    planned = plan(spec.replace(n_embd=16), spec, BaseHPs(lr=0.01, init_std=0.2, gamma=gamma))
    model = MoETransformer(spec, planned.forward, backend).double()
    init_parameters(model, planned, seed=0)
    return model.eval()


def tokens():
    return torch.randint(0, 50, (3, 12), generator=torch.manual_seed(5))


@torch.no_grad()
def logits_in_pieces(model, tokens_BS, pieces):
    cache = model.empty_cache()
    hidden = [model.hidden(piece, cache) for piece in tokens_BS.split(pieces, dim=1)]
    assert cache.length == 12
    return model.logits(torch.cat([each.h_BSN for each in hidden], dim=1)), sum(each.load_LE for each in hidden)


def check(model, pieces):
    logits, loads = logits_in_pieces(model, tokens(), pieces)
    with torch.no_grad():
        whole = model.hidden(tokens())
        expected = model.logits(whole.h_BSN)
    assert expected.abs().max() > 0.1
    assert (logits - expected).abs().max() <= 1e-10
    assert torch.equal(loads, whole.load_LE)


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_logits_and_loads_are_those_without_a_cache(changes, pieces):
    check(build(**changes), pieces)


@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - {"grouped"}))  # grouped products have no float64
def test_they_are_for_every_backend(backend):
    check(build(backend=backend), [5, 1, 1, 5])


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_experts_with_equal_scores_are_chosen_by_the_position_in_the_text(pieces):
    model = build(gamma=float("inf"))  # a router of zeros: all scores are equal
    assert all(router.weight.abs().max() == 0 for router in model.routers())
    check(model, pieces)


def test_a_repeated_cache_has_every_sequence_several_times_and_shares_nothing():
    model = build()
    start_1S = tokens()[:1, :6]
    with torch.no_grad():
        cache = model.empty_cache()
        model.hidden(start_1S, cache)
        copies = cache.repeated(3)
        next_31 = torch.tensor([[1], [2], [3]])
        logits = model.logits(model.hidden(next_31, copies).h_BSN)
        whole = torch.cat([start_1S.expand(3, -1), next_31], dim=1)
        assert (logits - model.logits(model.hidden(whole).h_BSN)[:, -1:]).abs().max() <= 1e-10
    assert (cache.length, copies.length) == (6, 7)


def test_a_full_cache_refuses_more():
    model = build()
    cache = model.empty_cache()
    with torch.no_grad():
        model.hidden(tokens(), cache)
        with pytest.raises(AssertionError, match="beyond the capacity"):
            model.blocks[0].attn(torch.zeros(3, 1, 32).double(), cache.layers[0])
