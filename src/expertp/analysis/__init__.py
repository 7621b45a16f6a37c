"""What the runs of a study show: optima, drift, excess loss, collapse, balance, scaling, and the verdict.

Everything here computes values from values; nothing reads or writes files.
"""
