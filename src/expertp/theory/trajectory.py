"""The trajectory of training outputs, from a solver of the theory or from finite networks.

Shapes: R replicate or seed, P datum, T step, L layer, E expert (node of a solver), N direction of the stream.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from expertp.errors import InputError
from expertp.theory.gates import Gates, load_of
from expertp.theory.problem import Problem

# Progress callback, called with the number of steps done and the total number of steps.
Tick = Callable[[int, int], None]


def silent(_done: int, _total: int, /) -> None:
    """Report nothing."""


class Parts:
    """The tick of consecutive computations, which reports them as one of `total` steps."""

    def __init__(self, tick: Tick, total: int) -> None:
        self._tick, self._total, self._before = tick, total, 0

    def __call__(self, done: int, of_part: int) -> None:
        """Report the progress of the current part."""
        self._tick(self._before + done, self._total)
        if done == of_part:
            self._before += of_part


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Training on one problem, in the limit or averaged over finite networks.

    Args:
        f: outputs before each step, averaged over replicates (solver) or seeds (networks).
        f_each: outputs of each replicate or seed.
        y: targets.
        p: router preactivations.
        loads: fraction of the data routed to each expert; for soft gates the mean of sigma over the data.
        biases: biases b of the experts.
        C_h: kernels <h h'> of the stream; None if they were not requested.
        C_g: kernels <g g'> of the gradients; None if they were not requested.
    """

    f: Float[np.ndarray, "P T"]
    f_each: Float[np.ndarray, "R P T"]
    y: Float[np.ndarray, "P"]
    p: Float[np.ndarray, "R L E P T"]
    loads: Float[np.ndarray, "R L E T"]
    biases: Float[np.ndarray, "R L E T"]
    C_h: Float[np.ndarray, "L+1 P T P T"] | None = None
    C_g: Float[np.ndarray, "L+1 P T P T"] | None = None

    @property
    def loss(self) -> Float[np.ndarray, "T"]:
        """Loss of the mean output: sum over data (y - f)^2 / 2P."""
        return losses(self.f, self.y)

    @property
    def losses_each(self) -> Float[np.ndarray, "R T"]:
        """Loss of each replicate or seed."""
        return losses(self.f_each, self.y)

    @property
    def mc_error(self) -> float:
        """Standard error of f over replicates relative to the norm of f; nan with a single replicate."""
        n = len(self.f_each)
        if n < 2:
            return float("nan")
        return float(np.sqrt((self.f_each.var(0, ddof=1) / n).sum()) / np.linalg.norm(self.f))

    @property
    def is_monotone(self) -> bool:
        """Whether the loss falls at every step. If not, training is above the edge of stability and amplifies noise."""
        return bool((np.diff(self.loss) < 0).all())


class Snapshot(NamedTuple):
    """The state of one replicate, or of several networks, before one step; one list entry per layer (h, g: L + 1)."""

    f: Float[Tensor, "*R P"]
    p: Sequence[Float[Tensor, "*R E P"]]
    gates: Sequence[Gates]
    biases: Float[Tensor, "*R L E"]
    h: Sequence[Float[Tensor, "*R N P"]] = ()
    g: Sequence[Float[Tensor, "*R N P"]] = ()


def record(
    problem: Problem, y: Float[np.ndarray, "P"], n: int, runs: Iterable[Iterable[Snapshot]], tick: Tick, width: int = 1
) -> Trajectory:
    """Record the runs of n replicates or networks; raise if an output is not finite.

    If the streams h and g are given, their kernels are <h h'> = h.h' / width.
    """
    found, done = [], 0
    for run in runs:
        steps = []
        for step, at in enumerate(run):
            if not torch.isfinite(at.f).all():
                raise diverged(problem, step)
            loads = torch.stack([load_of(problem, gate) for gate in at.gates], -2)
            layers = [torch.stack(list(each), -3) for each in (at.p, at.h, at.g) if each]
            values = (at.f, loads, at.biases.clone(), *layers)
            steps.append(values if at.f.ndim == 2 else [each[None] for each in values])
            done += len(steps[-1][0])
            tick(done, n * problem.T)
        found.append([torch.stack(each, -1).double() for each in zip(*steps, strict=True)])
    f, loads, biases, p, *streams = (torch.cat(each) for each in zip(*found, strict=True))
    flat = [each.flatten(3) for each in streams]
    kernels = [(each.mT @ each / width).unflatten(3, f.shape[1:]).unflatten(2, f.shape[1:]) for each in flat]
    f, p, loads, biases, *kernels = (each.numpy() for each in (f, p, loads, biases, *kernels))
    return Trajectory(f.mean(0), f, y, p, loads, biases, *(each.mean(0) for each in kernels))


def diverged(problem: Problem, step: int) -> InputError:
    """Return the error to raise when training diverges."""
    return InputError(f"eta={problem.eta:g}: training diverges at step {step}; lower eta or gamma0")


def losses(f: Float[np.ndarray, "*batch P T"], y: Float[np.ndarray, "P"]) -> Float[np.ndarray, "*batch T"]:
    """Return the loss sum over data (y - f)^2 / 2P at every step.

    >>> losses(np.zeros((2, 1)), np.array([1.0, 3.0]))
    array([2.5])
    """
    return np.asarray(((y[:, None] - f) ** 2).mean(-2) / 2)


def distance(f: Float[np.ndarray, "*shape"], reference: Float[np.ndarray, "*shape"]) -> float:
    """Return the distance |f - reference| / |reference| over all data and steps.

    >>> distance(np.array([3.0, 5.0]), np.array([3.0, 4.0]))
    0.2
    """
    return float(np.linalg.norm(f - reference) / np.linalg.norm(reference))
