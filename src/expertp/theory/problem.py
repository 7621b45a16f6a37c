"""What is learnt and how: data, target, network and training of the theory.

Names are those of the paper: P data in D dimensions, T steps of full-batch gradient descent, L layers, `n_hid` neurons
in an expert (N_e), sparsity kappa. The loss is sum (y - f)^2 / 2P.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from expertp.errors import InputError
from expertp.spec import Finite, Ratio, Spec
from expertp.theory.activations import ACTIVATIONS, Activation

Gate = Literal["soft", "soft0", "hard"]
Floats = NDArray[np.float64]
# Of a random polynomial: more take longer to write down than a network to train.
MOST_TERMS = 100_000


def _infinite(value: Any) -> Any:
    """Read "inf", as YAML writers write it."""
    return math.inf if isinstance(value, str) and value.strip().lower() in ("inf", "infinite") else value


class Problem(Spec):
    """Data, target, network and training of one theory problem."""

    name: str = Field("problem", min_length=1, description="how pictures call it")
    data: str = Field("gaussian", min_length=1, description="`gaussian`, or a .csv file with a row per datum")
    target: Literal["multi_index", "last_column"] = Field(
        "multi_index", description="a random polynomial of a few directions, or the last column of the file"
    )
    P: int = Field(20, ge=1, description="number of data; of a file, its first rows")
    D: int = Field(20, ge=1, description="dimension of the data")
    degree: int = Field(4, ge=1, le=8, description="of the polynomial")
    indices: int = Field(3, ge=1, description="directions that the polynomial depends on")
    data_seed: int = Field(0, ge=0, description="of data and polynomial")

    T: int = Field(40, ge=1, description="steps; f and loss are those before each of them")
    eta: Finite = Field(0.2, gt=0, description="learning rate")
    gamma0: Finite = Field(2.0, gt=0, description="feature learning: towards 0 the kernel stands still")
    optimizer: Literal["gd", "adam"] = Field("gd", description="gradient descent on all data")
    readout: Literal["linear", "elementwise"] = Field("linear", description="f = w.h / (gamma0 N)")
    train_embed: bool = Field(True, description="whether W0 is trained")

    L: int = Field(2, ge=1, description="number of MoE layers")
    phi: Literal["gelu", "tanh", "erf", "linear"] = Field("gelu", description="nonlinearity of the experts")
    gate: Gate = Field("soft", description="soft: s(p + b); soft0: s(p); hard: the top kappa by s(p) + b, with s(p)")
    kappa: Ratio = Field(1.0, gt=0, le=1, description="share of experts that a hard gate picks")
    bias: Literal["normal", "uniform", "zero"] = Field("normal", description="law of b(0)")
    bias_std: Finite = Field(1.0, gt=0, description="its standard deviation")
    eta_b: Finite = Field(0.0, ge=0, description="step of the biases of hard gates")
    router_init_eps: Finite = Field(0.0, ge=0, description="standard deviation of p at the start")

    n_hid: Annotated[float, BeforeValidator(_infinite)] = Field(math.inf, ge=1, description="neurons in an expert")
    alpha_star: Ratio = Field(0.0, ge=0, description="N / (n_hid E L) in the limit")

    @model_validator(mode="after")
    def _is_solvable(self) -> Self:
        if self.optimizer == "adam":
            raise ValueError(
                "optimizer=adam has no closed mean-field equations here (it divides every coordinate by its own "
                "history); use gd"
            )
        if self.readout == "elementwise":
            raise ValueError(
                "readout=elementwise breaks the linear stream on which the closed forms rest; use readout=linear"
            )
        if self.target == "last_column" and self.data == "gaussian":
            raise ValueError("target=last_column needs a file; set data to a .csv, or target=multi_index")
        if self.target == "multi_index" and self.indices > self.D:
            raise ValueError(f"indices={self.indices} directions do not fit into D={self.D} dimensions")
        terms = math.comb(self.indices + self.degree, self.degree)
        if self.target == "multi_index" and terms > MOST_TERMS:
            raise ValueError(
                f"a polynomial of degree={self.degree} in indices={self.indices} has {terms} terms; lower one"
            )
        if self.gate != "hard" and self.kappa != 1:
            raise ValueError(f"kappa={self.kappa:g} belongs to gate=hard; gate={self.gate} uses all experts")
        if math.isfinite(self.n_hid) and self.n_hid != int(self.n_hid):
            raise ValueError(f"n_hid={self.n_hid:g} is not a whole number, nor inf")
        return self

    @property
    def c(self) -> float:
        """How much one datum moves a weight: gamma0 eta / P."""
        return self.gamma0 * self.eta / self.P

    @property
    def activation(self) -> Activation:
        """The experts' phi with its derivatives."""
        return ACTIVATIONS[self.phi]

    def bias_at(self, share: Tensor) -> Tensor:
        """Return quantiles of b(0)."""
        unit: Tensor = {
            "normal": torch.special.ndtri,
            "uniform": lambda share: math.sqrt(12) * (share - 0.5),
            "zero": torch.zeros_like,
        }[self.bias](share)
        return self.bias_std * unit


@dataclass(frozen=True, eq=False)
class Data:
    """Points X [P, D] and targets y [P]."""

    X: Floats
    y: Floats

    @property
    def K_x(self) -> Floats:
        """x.x' / D."""
        kernel: Floats = self.X @ self.X.T / self.X.shape[1]
        return kernel


def make_data(problem: Problem) -> Data:
    """Return the problem's data and targets: drawn, or read from its file."""
    if problem.data != "gaussian":
        X, y = _from_file(problem)
    else:
        X, y = np.random.default_rng((problem.data_seed, 0)).standard_normal((problem.P, problem.D)), None
    return Data(X, _multi_index(problem, X) if y is None else y)


def _multi_index(problem: Problem, X: Floats) -> Floats:
    """Return a random polynomial of points, in a few orthonormal directions; of unit variance where x ~ N(0, I).

    y = sum_a c_a prod_i He_{a_i}(u_i.x) / sqrt(a_i!) over multi-indices 1 <= |a| <= degree, with sum c_a^2 = 1.
    It has a generator of its own, so that it stays the same whatever the number of points.
    """
    rng = np.random.default_rng((problem.data_seed, 1))
    frame, _ = np.linalg.qr(rng.standard_normal((problem.D, problem.indices)))
    powers = list(_multi_indices(problem.indices, problem.degree))
    coefficients = rng.standard_normal(len(powers))
    coefficients /= np.linalg.norm(coefficients)
    hermite = _hermite(X @ frame, problem.degree)
    terms = [math.prod(hermite[power][:, i] for i, power in enumerate(each)) for each in powers]
    return np.asarray(sum(c * term for c, term in zip(coefficients, terms, strict=True)))


def _multi_indices(indices: int, degree: int) -> Iterator[tuple[int, ...]]:
    """Yield powers of several variables with a total from 1 to the degree.

    >>> sorted(_multi_indices(2, 2))
    [(0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    """

    def extended(powers: tuple[int, ...], left: int) -> Iterator[tuple[int, ...]]:
        if len(powers) == indices:
            yield powers
            return
        for power in range(left + 1):
            yield from extended((*powers, power), left - power)

    return (powers for powers in extended((), degree) if any(powers))


def _hermite(x: Floats, degree: int) -> list[Floats]:
    """Return He_n(x) / sqrt(n!) for n = 0..degree, of unit variance under a normal law."""
    found = [np.ones_like(x), x]
    for n in range(1, degree):
        found.append(x * found[n] - n * found[n - 1])
    return [each / math.sqrt(math.factorial(n)) for n, each in enumerate(found[: degree + 1])]


def _from_file(problem: Problem) -> tuple[Floats, Floats | None]:
    """Return points, and targets where the last column has them."""
    path, columns = Path(problem.data), problem.D + (problem.target == "last_column")
    if not path.is_file():
        raise InputError(f"data: {path}: no such file; give `gaussian` or a .csv with a row per datum")
    if not path.read_text(encoding="utf-8", errors="replace").strip():
        raise InputError(f"data: {path}: is empty; it needs a row per datum")
    try:
        table = np.loadtxt(path, delimiter=",", ndmin=2, comments="#")
    except ValueError as error:
        raise InputError(f"data: {path}: not a table of numbers ({error}); a header begins with #") from None
    if len(table) < problem.P or table.shape[1] != columns:
        raise InputError(
            f"data: {path}: {table.shape[0]} rows of {table.shape[1]} numbers; P={problem.P}, D={problem.D} and "
            f"target={problem.target} need at least {problem.P} rows of {columns}"
        )
    table = table[: problem.P]
    if not np.isfinite(table).all():
        raise InputError(f"data: {path}: holds values that are not finite")
    return (table[:, :-1], table[:, -1]) if problem.target == "last_column" else (table, None)
