"""A theory problem: data, target, network and training.

Names follow the paper: P data in D dimensions, T steps of full-batch gradient descent, L layers, sparsity kappa. The
number of neurons per expert is `n_hid`; the paper writes N_e. The loss is sum (y - f)^2 / 2P.

Shapes: P datum, D input dimension.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from expertp.errors import InputError
from expertp.spec import Finite, Name, Ratio, Spec
from expertp.theory.activations import ACTIVATIONS, Activation

Gate = Literal["soft", "soft0", "hard"]
# A larger network or data set does not fit into any memory.
LARGEST = 1_000_000
# A polynomial with more terms takes longer to evaluate than a network to train.
MOST_TERMS = 100_000


def _infinite(value: Any) -> Any:
    """Accept "inf" and "infinite", as written in YAML."""
    return math.inf if isinstance(value, str) and value.strip().lower() in ("inf", "infinite") else value


class Problem(Spec):
    """Data, target, network and training of one theory problem.

    >>> problem = Problem(P=4, gate="hard", kappa="1/4")
    >>> problem.c, problem.kappa
    (0.1, 0.25)
    """

    path_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {"data": ("gaussian",)}

    name: Name = Field("problem", description="name in figures and tables")
    data: str = Field("gaussian", min_length=1, description="`gaussian`, or a .csv file with one datum per row")
    target: Literal["multi_index", "last_column"] = Field(
        "multi_index", description="random polynomial of a few directions, or the last column of the file"
    )
    P: int = Field(20, ge=1, le=LARGEST, description="number of data; a file contributes its first P rows")
    D: int = Field(20, ge=1, le=LARGEST, description="dimension of the data")
    degree: int = Field(4, ge=1, le=8, description="degree of the polynomial")
    indices: int = Field(3, ge=1, le=LARGEST, description="number of directions the polynomial depends on")
    data_seed: int = Field(0, ge=0, description="seed of data and polynomial")

    T: int = Field(40, ge=1, le=LARGEST, description="steps; f and loss are recorded before each step")
    eta: Finite = Field(0.2, gt=0, description="learning rate")
    gamma0: Finite = Field(2.0, gt=0, description="strength of feature learning; the kernel is static as gamma0 -> 0")
    optimizer: Literal["gd", "adam"] = Field("gd", description="full-batch gradient descent; adam is refused")
    readout: Literal["linear", "elementwise"] = Field("linear", description="f = w.h / (gamma0 N)")
    train_embed: bool = Field(True, description="whether W0 is trained")

    L: int = Field(2, ge=1, le=LARGEST, description="number of MoE layers")
    phi: Literal["gelu", "tanh", "erf", "linear"] = Field("gelu", description="nonlinearity of the experts")
    gate: Gate = Field("soft", description="soft: s(p + b); soft0: s(p); hard: s(p) for the top kappa E by s(p) + b")
    kappa: Ratio = Field(1.0, gt=0, le=1, description="fraction of experts that a hard gate selects")
    bias: Literal["normal", "uniform", "zero"] = Field("normal", description="distribution of b(0)")
    bias_std: Finite = Field(1.0, gt=0, description="standard deviation of b(0)")
    eta_b: Finite = Field(0.0, ge=0, description="step size of the bias updates of hard gates")
    router_init_eps: Finite = Field(0.0, ge=0, description="standard deviation of p at initialization")

    n_hid: Annotated[float, BeforeValidator(_infinite)] = Field(math.inf, ge=1, description="neurons per expert")
    alpha_star: Ratio = Field(0.0, ge=0, description="limit of N / (n_hid E L)")

    @model_validator(mode="after")
    def _is_solvable(self) -> "Problem":
        terms = math.comb(self.indices + self.degree, self.degree)
        if self.optimizer == "adam":
            raise ValueError("optimizer=adam has no closed mean-field equations; use gd")
        if self.readout == "elementwise":
            raise ValueError(
                "readout=elementwise makes the stream nonlinear, so the equations do not close; use readout=linear"
            )
        if self.target == "last_column" and self.data == "gaussian":
            raise ValueError("target=last_column needs a file; set data to a .csv, or target=multi_index")
        if self.target == "multi_index" and self.indices > self.D:
            raise ValueError(f"indices={self.indices} directions do not fit into D={self.D} dimensions")
        if self.target == "multi_index" and terms > MOST_TERMS:
            raise ValueError(
                f"a polynomial of degree={self.degree} in indices={self.indices} has {terms} terms; lower one"
            )
        if self.gate != "hard" and self.kappa != 1:
            raise ValueError(f"kappa={self.kappa:g} belongs to gate=hard; gate={self.gate} uses all experts")
        if math.isfinite(self.n_hid) and self.n_hid % 1 != 0:
            raise ValueError(f"n_hid={self.n_hid:g} is not a whole number, nor inf")
        return self

    @property
    def c(self) -> float:
        """Weight of one datum in one step: gamma0 eta / P."""
        return self.gamma0 * self.eta / self.P

    @property
    def activation(self) -> Activation:
        """The experts' phi with its derivatives."""
        return ACTIVATIONS[self.phi]

    def bias_at(self, probability: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return quantiles of the distribution of b(0)."""
        unit: Tensor = {
            "normal": torch.special.ndtri,
            "uniform": lambda q: math.sqrt(12) * (q - 0.5),
            "zero": torch.zeros_like,
        }[self.bias](probability)
        return self.bias_std * unit


@dataclass(frozen=True, eq=False)
class Data:
    """Points X and targets y."""

    X: Float[np.ndarray, "P D"]
    y: Float[np.ndarray, "P"]

    @property
    def K_x(self) -> Float[np.ndarray, "P P"]:
        """x.x' / D."""
        return np.asarray(self.X @ self.X.T / self.X.shape[1])


def make_data(problem: Problem) -> Data:
    """Return the data and targets of a problem, drawn at random or read from its file.

    >>> data = make_data(Problem(P=4, D=3))
    >>> data.X.shape, data.y.shape
    ((4, 3), (4,))
    """
    if problem.data != "gaussian":
        X, y = _from_file(problem)
    else:
        X, y = np.random.default_rng((problem.data_seed, 0)).standard_normal((problem.P, problem.D)), None
    return Data(X, _multi_index(problem, X) if y is None else y)


def _multi_index(problem: Problem, X: Float[np.ndarray, "P D"]) -> Float[np.ndarray, "P"]:
    """Return a random polynomial in a few orthonormal directions u_i, with unit variance under x ~ N(0, I).

    y = sum_a c_a prod_i He_{a_i}(u_i.x) / sqrt(a_i!) over multi-indices 1 <= |a| <= degree, with sum c_a^2 = 1.
    The generator is separate from that of the data, so that the polynomial does not depend on P.
    """
    rng = np.random.default_rng((problem.data_seed, 1))
    frame, _ = np.linalg.qr(rng.standard_normal((problem.D, problem.indices)))
    powers = _multi_indices(problem.indices, problem.degree)
    coefficients = rng.standard_normal(len(powers))
    coefficients /= np.linalg.norm(coefficients)
    scale = [math.sqrt(math.factorial(n)) for n in range(problem.degree + 1)]
    hermite = np.polynomial.hermite_e.hermevander(X @ frame, problem.degree) / scale
    terms = [math.prod(hermite[:, i, power] for i, power in enumerate(each)) for each in powers]
    return np.asarray(sum(c * term for c, term in zip(coefficients, terms, strict=True)))


def _multi_indices(indices: int, degree: int) -> list[tuple[int, ...]]:
    """Return the exponents of all monomials in `indices` variables with total degree 1 to `degree`.

    >>> _multi_indices(2, 2)
    [(0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    """
    monomials = itertools.chain.from_iterable(
        itertools.combinations_with_replacement(range(indices), total) for total in range(1, degree + 1)
    )
    return sorted(tuple(np.bincount(each, minlength=indices).tolist()) for each in monomials)


def _from_file(problem: Problem) -> tuple[Float[np.ndarray, "P D"], Float[np.ndarray, "P"] | None]:
    """Return the points of a file, and the targets if its last column holds them."""
    path, columns = Path(problem.data), problem.D + (problem.target == "last_column")
    if not path.is_file():
        raise InputError(f"data: {path}: no such file; give `gaussian` or a .csv with one datum per row")
    if not path.read_text(encoding="utf-8", errors="replace").strip():
        raise InputError(f"data: {path}: is empty; it needs one datum per row")
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
        raise InputError(f"data: {path}: contains values that are not finite")
    return (table[:, :-1], table[:, -1]) if problem.target == "last_column" else (table, None)
