"""The run-time type check of the tests."""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype

# An int passes as a float, as it does for static type checkers. The import hook decorates methods one by one, where
# `Self` has no meaning for beartype.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({Self: Any})))

# Packages and modules whose annotations hold the shapes of arrays.
WITH_SHAPES = tuple(
    f"expertp.{name}" for name in ("model", "training", "theory", "figures.theory", "analysis.seed_curves", "bench")
)
