"""A plan of tensors as a table: a row per role and settings."""

from collections.abc import Iterable

from expertp.adapters.fit import TensorPlan, alike
from expertp.adapters.roles import pattern_of

HEADER = ("role", "tensors", "init", "lr", "weight decay", "Adam eps", "fold", "such as")


def rows(tensors: Iterable[TensorPlan]) -> list[tuple[str, ...]]:
    """Return the settings of tensors as text, tensors with equal role and settings in one row.

    The init is a standard deviation, or "=" and the value at which a tensor starts.
    """
    return [_row(group) for group in alike(tensors)]


def _row(group: list[TensorPlan]) -> tuple[str, ...]:
    one = group[0]
    init = f"{one.init_std:.4g}" if one.init_std else f"={one.start:.4g}"
    numbers = (one.lr, one.weight_decay, one.adam_eps, one.fold)
    example = pattern_of(one.name).removeprefix("model.layers.#.")
    return (one.role, str(len(group)), init, *(f"{number:.4g}" for number in numbers), example)
