"""Analysis of a study's results: optima, drift, excess loss, collapse, balance, scaling and the verdict.

Everything here computes values from values; nothing reads or writes files.
"""
