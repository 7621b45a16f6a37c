"""The run-time type check of the tests."""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype

# An int passes as a float, as it does for static type checkers. The import hook decorates methods one by one, where
# `Self` has no meaning for beartype.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({Self: Any})))
