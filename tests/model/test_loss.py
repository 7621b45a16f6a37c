import pytest
import torch
import torch.nn.functional as F

from expertp.model import loss
from expertp.model.loss import linear_cross_entropy


def problem(tokens=37, n_embd=8, vocabulary=11, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(tokens, n_embd, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, n_embd, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return h, weight, torch.randint(0, vocabulary, (tokens,), generator=generator)


@pytest.fixture(params=[2**23, 55, 1], ids=["one chunk", "chunks of five", "chunks of one"])
def chunks(request, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_LOGITS", request.param)


@pytest.mark.usefixtures("chunks")
def test_loss_and_gradients_are_those_of_the_unchunked_loss():
    h, weight, target = problem()
    ours = linear_cross_entropy(h, weight, target)
    expected = F.cross_entropy(F.linear(h, weight), target)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    for got, wanted in zip(
        torch.autograd.grad(3 * ours, (h, weight)), torch.autograd.grad(3 * expected, (h, weight)), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("chunks")
def test_gradcheck_passes_in_float64():
    h, weight, target = problem(tokens=7, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda h, w: linear_cross_entropy(h, w, target), (h, weight))


@pytest.mark.usefixtures("chunks")
def test_under_autocast_products_are_bfloat16_and_the_loss_float32():
    h, weight, target = problem()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = linear_cross_entropy(h, weight, target)
    exact = linear_cross_entropy(h, weight, target)
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(exact.item(), rel=0.01)
    assert ours.item() != exact.item()
    for got, wanted in zip(
        torch.autograd.grad(ours, (h, weight)), torch.autograd.grad(exact, (h, weight)), strict=True
    ):
        assert got.dtype == torch.float32
        assert (got - wanted).norm() / wanted.norm() < 0.02


def test_without_gradients_there_is_only_a_loss():
    h, weight, target = problem()
    with torch.no_grad():
        plain = linear_cross_entropy(h, weight, target)
    assert not plain.requires_grad
    assert plain.item() == linear_cross_entropy(h, weight, target).item()


def test_no_tensor_holds_the_logits_of_all_tokens(monkeypatch):
    """The largest tensor made on the way is a chunk of logits, not T x V."""
    monkeypatch.setattr(loss, "CHUNK_LOGITS", 10 * 500)
    h, weight, target = problem(tokens=400, n_embd=4, vocabulary=500)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Watch():
        linear_cross_entropy(h, weight, target).backward()
    assert largest == 10 * 500
