"""Axes and the sizes that shapes give."""

import pytest

from expertp.adapters.axes import Axis, Shaped, sizes_of
from expertp.errors import InputError


def shaped(name: str, shape: tuple[int, ...], axes: str) -> Shaped:
    return Shaped(name, shape, tuple(map(Axis.parse, axes.split())))


EMBEDDING = shaped("embed", (64, 48), "V N")


def test_sizes_come_from_products_and_sums() -> None:
    tensors = [
        shaped("kv_a", (16, 48), "RK+P N"),  # not solvable before the norm
        shaped("kv_norm", (12,), "RK"),
        shaped("up", (8, 80, 48), "E 2H N"),
        shaped("gate", (1, 48), "1 N"),
    ]
    assert sizes_of(tensors) == {"N": 48, "RK": 12, "E": 8, "H": 40, "P": 4}


@pytest.mark.parametrize("text", ["", "2", "h", "N-", "2 H", "N+", "0"])
def test_what_is_no_axis_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a symbol"):
        Axis.parse(text)


def test_an_unknown_symbol_is_refused() -> None:
    with pytest.raises(InputError, match="unknown symbol 'KX'; choose one of N, V, Q, KV"):
        Axis.parse("KX")


@pytest.mark.parametrize("text", ["N", "2H", "RK+P", "1"])
def test_an_axis_is_written_as_it_was_read(text: str) -> None:
    assert str(Axis.parse(text)) == text


def test_a_mirrored_layout_is_named() -> None:
    """Experts as [expert, in, out], in a family with [expert, out, in]."""
    experts = [shaped("up", (8, 48, 80), "E 2H N"), shaped("down", (8, 40, 48), "E N H")]
    with pytest.raises(InputError, match=r"up has the shape \[8, 48, 80\], the mirror image of its axes \[E, 2H, N\]"):
        sizes_of([EMBEDDING, *experts])


def test_shapes_that_disagree_are_named() -> None:
    with pytest.raises(InputError, match=r"down has the shape \[8, 48, 20\], but its axes .* \[8, 48, 40\] by the"):
        sizes_of([EMBEDDING, shaped("up", (8, 80, 48), "E 2H N"), shaped("down", (8, 48, 20), "E N H")])


def test_a_row_with_too_few_axes_is_named() -> None:
    with pytest.raises(InputError, match=r"up has the shape \[8, 80, 48\], but its row gives the axes \[E, N\]"):
        sizes_of([shaped("up", (8, 80, 48), "E N")])
