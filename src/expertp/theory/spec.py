"""The contents of a theory file: a problem, the settings of the solver, and the finite networks to compare with."""

from typing import Literal

import torch
from pydantic import Field, model_validator

from expertp.spec import Spec
from expertp.theory.finite import Biases, Frame, Size
from expertp.theory.problem import LARGEST, Problem
from expertp.theory.sampling import Sampling, default_sampling


class SolverSpec(Spec):
    """Settings of the solver of the limit."""

    form: Literal["auto", "reduced", "kernel"] = Field(
        "auto", description="reduced: fast, exact at alpha_star = 0; kernel: any alpha_star, few data and steps"
    )
    infinite_depth: bool = Field(False, description="extrapolate f to infinite depth from L and 2 L")
    nodes: int | None = Field(
        None, ge=1, le=LARGEST, description="number Q of values of b(0); hard gates need whole kappa * nodes"
    )
    neurons: int | None = Field(None, ge=1, le=LARGEST, description="neurons per node")
    replicates: int = Field(
        4, ge=1, le=LARGEST, description="independent repetitions; their spread is the Monte-Carlo error"
    )
    seed: int = Field(0, ge=0, description="seed of the first replicate")

    @property
    def runs(self) -> int:
        """Number of runs of the solver."""
        return self.replicates * (2 if self.infinite_depth else 1)

    def form_for(self, problem: Problem) -> Literal["reduced", "kernel"]:
        """Return the form that solves a problem."""
        return self.form if self.form != "auto" else "kernel" if problem.alpha_star else "reduced"

    def sampling(self, problem: Problem) -> Sampling:
        """Return the sample sizes for a problem, with defaults where the spec has None."""
        is_kernel = self.form_for(problem) == "kernel"
        default = default_sampling(problem, 2**12 if is_kernel else 2**16, self.replicates)
        dtype = torch.float64 if is_kernel else torch.float32
        return Sampling(self.nodes or default.nodes, self.neurons or default.neurons, self.replicates, self.seed, dtype)


class NetworksSpec(Spec):
    """Finite networks to compare with the limit."""

    sizes: tuple[Size, ...] = Field(
        tuple(Size(n, n // 2, n // 2) for n in (32, 64, 128)),
        min_length=1,
        description="sizes of the networks: N (stream width), E (experts per layer), n_hid (neurons per expert)",
    )
    seeds: int = Field(4, ge=1, le=LARGEST, description="networks per size")
    frame: Frame = Field("gaussian", description="orthonormal: the initial stream kernels equal those of the limit")
    biases: Biases = Field("drawn", description="stratified: the initial biases are quantiles of their distribution")


class TheorySpec(Problem):
    """A theory file: the fields of a problem and the sections `solver` and `networks`."""

    solver: SolverSpec = Field(SolverSpec(), description="settings of the solver of the limit")
    networks: NetworksSpec = Field(NetworksSpec(), description="finite networks to compare with the limit")

    @model_validator(mode="after")
    def _has_one_form(self) -> "TheorySpec":
        if self.solver.form == "reduced" and self.alpha_star:
            raise ValueError(
                f"solver.form=reduced is exact at alpha_star=0 only, not at {self.alpha_star:g}; use kernel or auto"
            )
        return self

    @property
    def problem(self) -> Problem:
        """The problem without the two sections."""
        return Problem(**{name: getattr(self, name) for name in Problem.model_fields})
