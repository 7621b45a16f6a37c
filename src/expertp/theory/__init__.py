"""The dynamical mean-field theory of a deep residual MoE: solved in two ways, and checked against finite networks.

`Problem` says what is learnt and how; `reduced`, `kernel` and `finite` each turn it into a `Trajectory`. docs/theory.md
has the equations and where each of them is.
"""
