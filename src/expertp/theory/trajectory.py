"""What training did, as a solver of the theory or finite networks tell it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from expertp.errors import InputError
from expertp.theory.problem import Floats, Problem


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A training run of one problem, in the limit or as the mean over networks.

    Args:
        f: outputs [P, T] before each step, mean over replicates (of a solver) or seeds (of networks).
        f_each: the same of each replicate or seed [R, P, T].
        y: targets [P].
        p: router preactivations [R, L, E, P, T], E the nodes of a solver.
        loads: share of the data that an expert sees [R, L, E, T]; of soft gates their mean opening.
        biases: b [R, L, E, T].
        C_h: stream kernels <h h'> [L+1, P, T, P, T]; None where they were not asked for.
        C_g: gradient kernels <g g'> likewise.
    """

    f: Floats
    f_each: Floats
    y: Floats
    p: Floats
    loads: Floats
    biases: Floats
    C_h: Floats | None = None
    C_g: Floats | None = None

    @property
    def loss(self) -> Floats:
        """Loss of the mean output [T]: sum over data (y - f)^2 / 2P."""
        return losses(self.f, self.y)

    @property
    def mc_error(self) -> float:
        """Standard error of f over replicates, relative to its size; nan for one."""
        n = len(self.f_each)
        if n < 2:
            return float("nan")
        return float(np.sqrt((self.f_each.var(0, ddof=1) / n).sum()) / np.linalg.norm(self.f))

    @property
    def is_monotone(self) -> bool:
        """Whether the loss falls at every step: above the edge of stability noise is amplified."""
        return bool((np.diff(self.loss) < 0).all())


def require_finite(problem: Problem, f: Tensor, step: int) -> None:
    """Refuse outputs that are no numbers any more."""
    if not torch.isfinite(f).all():
        raise diverged(problem, step)


def diverged(problem: Problem, step: int) -> InputError:
    """Return what to raise where outputs have left all bounds."""
    return InputError(f"eta={problem.eta:g}: training diverges at step {step}; lower eta or gamma0")


def losses(f: Floats, y: Floats) -> Floats:
    """Return sum over data (y - f)^2 / 2P of outputs [..., P, T]."""
    loss: Floats = ((y[:, None] - f) ** 2).mean(-2) / 2
    return loss


def distance(f: Floats, reference: Floats) -> float:
    """Return how far outputs lie from a reference over all data and steps, relative to its size."""
    return float(np.linalg.norm(f - reference) / np.linalg.norm(reference))
