import pytest
import torch
from torch.func import grad, vmap

from expertp.theory.activations import ACTIVATIONS, sigmoid_slope

X = torch.linspace(-5, 5, 401, dtype=torch.float64)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slope_and_bend_are_the_derivatives(name):
    phi = ACTIVATIONS[name]
    slope = grad(phi.value)
    for written, derived in ((phi.slope, slope), (phi.bend, grad(slope))):
        assert (written(X) - vmap(derived)(X)).abs().max() < 1e-10


def test_functions_are_what_they_are_called():
    one = torch.tensor(1.0, dtype=torch.float64)
    seen = {name: phi.value(one).item() for name, phi in ACTIVATIONS.items()}
    expected = {"gelu": 0.8413447460685429, "tanh": 0.7615941559557649, "erf": 0.8427007929497149, "linear": 1.0}
    assert seen == pytest.approx(expected, abs=1e-12)


def test_the_slope_of_the_sigmoid_is_its_derivative():
    assert (sigmoid_slope(X) - vmap(grad(torch.sigmoid))(X)).abs().max() < 1e-12
