import pytest
import torch

from expertp.model.router import Router, auxiliary_loss


def make_router(n_embd=16, n_exp=8, n_act=2, std=1.0, **options):
    router = Router(n_embd, n_exp, n_act, **options)
    torch.nn.init.normal_(router.weight, std=std, generator=torch.Generator().manual_seed(0))
    return router


def tokens(n_embd=16, batch=3, length=10, dtype=torch.float32):
    return torch.randn(batch, length, n_embd, generator=torch.Generator().manual_seed(1)).to(dtype)


def test_selection_is_the_top_of_gate_plus_bias_and_mixing_uses_the_gate_alone():
    router, x = make_router(), tokens()
    router.bias.copy_(torch.linspace(-0.3, 0.3, 8))
    routing = router(x)
    gate = (x.flatten(0, 1) @ router.weight.T).sigmoid()
    expected = (gate + router.bias).topk(2).indices
    assert torch.equal(routing.expert_TK.sort(-1).values, expected.sort(-1).values)
    torch.testing.assert_close(routing.gate_TK, gate.gather(-1, routing.expert_TK))
    assert not torch.equal(expected.sort(-1).values, gate.topk(2).indices.sort(-1).values), "the bias must matter here"


def test_gradient_reaches_the_weight_through_the_gates_only():
    router, x = make_router(), tokens()
    routing = router(x)
    coefficient = torch.randn(routing.gate_TK.shape, generator=torch.Generator().manual_seed(2))
    (routing.gate_TK * coefficient).sum().backward()
    gate = routing.gate_TK.detach()
    slope = torch.zeros(30, 8).scatter(1, routing.expert_TK, coefficient * gate * (1 - gate))
    torch.testing.assert_close(router.weight.grad, slope.T @ x.flatten(0, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
@pytest.mark.parametrize(("n_exp", "n_act"), [(8, 2), (16, 4), (12, 1), (4, 1)])
def test_a_zero_router_spreads_tokens_evenly(gate, n_exp, n_act):
    router = make_router(n_exp=n_exp, n_act=n_act, std=0.0, gate=gate)
    routing = router(tokens(length=48))
    assert routing.load_E.tolist() == [3 * 48 * n_act // n_exp] * n_exp
    assert all(len(set(row)) == n_act for row in routing.expert_TK.tolist())


def test_ties_break_alike_however_the_batch_is_cut():
    router, x = make_router(std=0.0), tokens(batch=4, length=7)
    whole = router(x).expert_TK
    parts = torch.cat([router(part).expert_TK for part in x.split(1)])
    assert torch.equal(whole, parts)


def test_softmax_gates_are_of_order_one_over_all_experts():
    router, x = make_router(n_act=8, gate="softmax"), tokens()
    torch.testing.assert_close(router(x).gate_TK.sum(-1), torch.full((30,), 8.0))


def test_each_token_is_counted_n_act_times():
    routing = make_router(n_exp=6, n_act=3)(tokens())
    assert routing.load_E.dtype == torch.int64
    assert routing.load_E.sum() == 30 * 3
    assert torch.equal(routing.load_E, torch.stack([(routing.expert_TK == e).sum() for e in range(6)]))


def test_the_bias_stays_float32_and_exact_when_the_model_is_cast():
    router = make_router()
    router.bias.copy_(torch.linspace(0.1234567, 0.7654321, 8))
    exact = router.bias.clone()
    for dtype in (torch.bfloat16, torch.float64, torch.float16):
        router.to(dtype)
        assert router.weight.dtype == dtype
        assert router.bias.dtype == torch.float32
        assert torch.equal(router.bias, exact)
    assert "bias" in router.state_dict()
    assert [name for name, _ in router.named_parameters()] == ["weight"]


def test_routing_is_float32_under_autocast():
    router, x = make_router(std=0.02, n_exp=64, n_act=16), tokens(length=200)
    plain = router(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = router(x)
    assert under_autocast.gate_TK.dtype == torch.float32
    assert torch.equal(plain.expert_TK, under_autocast.expert_TK)
    rounded = (x.flatten(0, 1).bfloat16() @ router.weight.T.bfloat16()).sigmoid().topk(16).indices
    assert not torch.equal(plain.expert_TK.sort(-1).values, rounded.sort(-1).values), "bfloat16 would route otherwise"


def test_the_auxiliary_loss_is_one_when_even_and_more_when_not():
    even = auxiliary_loss(torch.full((8, 4), 0.5), torch.tensor([2, 2, 2, 2]))
    assert even.item() == pytest.approx(1.0)
    gates = torch.tensor([[0.9, 0.1, 0.1, 0.1]]).repeat(8, 1).requires_grad_()
    skewed = auxiliary_loss(gates, torch.tensor([8, 0, 0, 0]))
    assert skewed.item() == pytest.approx(4 * 0.9 / 1.2)
    skewed.backward()
    assert gates.grad[0, 0] > 0 > gates.grad[0, 1], "descent must lower the crowded gate and raise the others"
