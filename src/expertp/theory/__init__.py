"""Dynamical mean-field theory of a deep residual MoE: two solvers of the limit, and finite networks to compare with.

`solve` (in `compare`, with the forms `reduced` and `kernel`) and `simulate` (in `finite`) turn a `Problem` into a
`Trajectory`. docs/theory.md lists the equations and where to find them in the code.
"""

from expertp.theory.compare import solve
from expertp.theory.finite import Size, simulate
from expertp.theory.problem import Problem
from expertp.theory.trajectory import Trajectory

__all__ = ["Problem", "Size", "Trajectory", "simulate", "solve"]
