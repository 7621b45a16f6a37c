"""What a theory file holds: a problem, how it is solved, and the networks that are set beside it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator

from expertp.spec import Spec
from expertp.theory.finite import Biases, Frame, Size
from expertp.theory.problem import Problem
from expertp.theory.sampling import Sampling, default_sampling


class SolverSpec(Spec):
    """How the limit is solved."""

    form: Literal["auto", "reduced", "kernel"] = Field(
        "auto", description="reduced: fast, exact at alpha_star = 0; kernel: any alpha_star, few data and steps"
    )
    infinite_depth: bool = Field(False, description="extrapolate f from L and 2 L to infinitely many layers")
    nodes: int | None = Field(None, ge=1, description="values of b(0), Q; hard gates need kappa * nodes whole")
    neurons: int | None = Field(None, ge=1, description="of each node")
    replicates: int = Field(4, ge=1, description="independent repetitions; their spread is the Monte-Carlo error")
    seed: int = Field(0, ge=0, description="of the first one")

    def form_for(self, problem: Problem) -> Literal["reduced", "kernel"]:
        """Return the form that solves a problem."""
        return self.form if self.form != "auto" else "kernel" if problem.alpha_star else "reduced"

    def sampling(self, problem: Problem) -> Sampling:
        """Return the sampling for a problem; what is not given is chosen."""
        is_kernel = self.form_for(problem) == "kernel"
        usual = default_sampling(problem, 2**12 if is_kernel else 2**16, self.replicates)
        dtype = torch.float64 if is_kernel else torch.float32
        return Sampling(self.nodes or usual.nodes, self.neurons or usual.neurons, self.replicates, self.seed, dtype)


class NetworksSpec(Spec):
    """Finite networks beside the limit."""

    sizes: tuple[Size, ...] = Field(
        tuple(Size(n, n // 2, n // 2) for n in (32, 64, 128)),
        min_length=1,
        description="N (width of the stream), E (experts in a layer) and n_hid (neurons in an expert) of each",
    )
    seeds: Annotated[int, Field(ge=1)] = Field(4, description="networks of each size")
    frame: Frame = Field("gaussian", description="orthonormal: kernels of the stream start at their limit")
    biases: Biases = Field("drawn", description="stratified: biases start at quantiles of their law")


class TheorySpec(Problem):
    """A theory file: the fields of a problem, and two sections."""

    solver: SolverSpec = Field(SolverSpec(), description="how the limit is solved")
    networks: NetworksSpec = Field(NetworksSpec(), description="finite networks beside it")

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if self.solver.form == "reduced" and self.alpha_star:
            raise ValueError(
                f"solver.form=reduced is exact at alpha_star=0 only, not at {self.alpha_star:g}; use kernel or auto"
            )
        return self

    @property
    def problem(self) -> Problem:
        """The problem alone."""
        return Problem(**{name: getattr(self, name) for name in Problem.model_fields})
