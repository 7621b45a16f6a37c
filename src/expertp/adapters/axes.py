"""Axes of tensors, and the sizes of a model that their shapes give.

An axis is written as a product or a sum of symbols: `N`, `2H` (gate and up in one tensor), `RK+P`, `1`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from expertp.errors import InputError, did_you_mean, shown

SYMBOLS: Mapping[str, str] = {
    "N": "width of the residual stream",
    "V": "vocabulary",
    "Q": "queries of all heads",
    "KV": "keys or values of all heads",
    "O": "outputs of all heads, if not Q",
    "A": "heads",
    "D": "one head",
    "P": "keys beside RK that all heads share",
    "E": "experts",
    "H": "hidden units of a routed expert",
    "S": "hidden units of the shared experts",
    "F": "hidden units of a dense FFN",
    "RQ": "rank of latent queries",
    "RK": "rank of latent keys and values",
    "B": "keys and values made from RK",
}
_AXIS = re.compile(r"(?P<factor>\d*)(?P<symbols>[A-Z]+(?:\+[A-Z]+)*)|1")


@dataclass(frozen=True)
class Axis:
    """One axis of a tensor: `factor` times the sum of the sizes of `symbols`; without symbols, an axis of size 1.

    >>> Axis.parse("2H"), str(Axis.parse("RK+P"))
    (Axis(factor=2, symbols=('H',)), 'RK+P')
    """

    factor: int
    symbols: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """Read an axis such as `N`, `2H`, `RK+P` or `1`."""
        match = _AXIS.fullmatch(text)
        if match is None:
            raise InputError(f"axis {shown(text)} is not a symbol, a number times a symbol, a sum or 1; write N or 2H")
        symbols = tuple(match["symbols"].split("+")) if match["symbols"] else ()
        for symbol in symbols:
            if symbol not in SYMBOLS:
                raise InputError(
                    f"axis {shown(text)} has the unknown symbol '{symbol}'; {did_you_mean(symbol, SYMBOLS)}"
                )
        return cls(int(match["factor"] or 1), symbols)

    def __str__(self) -> str:
        return ("" if self.factor == 1 else str(self.factor)) + "+".join(self.symbols) if self.symbols else "1"

    def size(self, sizes: Mapping[str, int]) -> int | None:
        """Return the size of the axis; None if the size of a symbol is not known."""
        if not self.symbols:
            return 1
        known = [sizes[symbol] for symbol in self.symbols if symbol in sizes]
        return self.factor * sum(known) if len(known) == len(self.symbols) else None


@dataclass(frozen=True)
class Shaped:
    """The name, the shape and the axes of a tensor."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]


def sizes_of(tensors: Sequence[Shaped], remedy: str = "correct its row") -> dict[str, int]:
    """Return the size of every symbol; all tensors must agree. The remedy is for an error.

    >>> sizes_of([Shaped("up", (8, 64, 16), (Axis.parse("E"), Axis.parse("2H"), Axis.parse("N")))])
    {'E': 8, 'H': 32, 'N': 16}
    """
    for tensor in tensors:
        if len(tensor.shape) != len(tensor.axes):
            raise InputError(
                f"{tensor.name} has the shape {_brackets(tensor.shape)}, but its row gives the axes "
                f"{_brackets(tensor.axes)}; correct the row"
            )
    sizes: dict[str, int] = {}
    while _solve_more(tensors, sizes):
        pass
    for tensor in tensors:
        _check(tensor, sizes, remedy)
    return sizes


def _solve_more(tensors: Iterable[Shaped], sizes: dict[str, int]) -> bool:
    """Add the sizes of symbols that stand alone among known ones; return whether there were any."""
    before = len(sizes)
    for tensor in tensors:
        for axis, size in zip(tensor.axes, tensor.shape, strict=True):
            unknown = [symbol for symbol in axis.symbols if symbol not in sizes]
            if len(unknown) == 1:
                rest = size / axis.factor - sum(sizes[symbol] for symbol in axis.symbols if symbol in sizes)
                if rest >= 1 and rest == int(rest):
                    sizes[unknown[0]] = int(rest)
    return len(sizes) > before


def _check(tensor: Shaped, sizes: Mapping[str, int], remedy: str) -> None:
    """Raise an error for a tensor whose shape does not fit the sizes."""
    expected = tuple(axis.size(sizes) for axis in tensor.axes)
    if tensor.shape == expected:
        return
    axes = _brackets(tensor.axes)
    if _fits(tensor.shape[:-2] + tensor.shape[-2:][::-1], tensor.axes, sizes):
        raise InputError(
            f"{tensor.name} has the shape {_brackets(tensor.shape)}, the mirror image of its axes {axes}; its layout "
            "differs from that of the family, so give roles of your own or transpose it"
        )
    raise InputError(
        f"{tensor.name} has the shape {_brackets(tensor.shape)}, but its axes {axes} are {_brackets(expected)} by the "
        f"shapes of other tensors; {remedy}"
    )


def _fits(shape: tuple[int, ...], axes: tuple[Axis, ...], sizes: Mapping[str, int]) -> bool:
    """Return whether a shape has the width where its axes have it; other symbols may come from a mirrored tensor."""
    width = Axis(1, ("N",))
    return any(axis == width for axis in axes) and all(
        size == sizes.get("N") for axis, size in zip(axes, shape, strict=True) if axis == width
    )


def _brackets(items: Iterable[object]) -> str:
    return f"[{', '.join(map(str, items))}]"
