"""The figure of a coordinate check: its data, and that it can be drawn with missing runs."""

from dataclasses import replace

import pytest
from synthetic import synthetic_check

from expertp.coordcheck.slopes import EXPECTED, CoordinateCheck, Divergence, Sizes, Slope, judge
from expertp.figures.coordcheck import MODULE_MARKERS, data, draw
from expertp.figures.save import render
from expertp.figures.style import FAIL


def made(sizes: Sizes, diverged: tuple[Divergence, ...] = ()) -> CoordinateCheck:
    slopes = [
        Slope(axis, module, check, 0.5, None, 1, 0.0, 0.0, 0.2, "FAIL" if module == "attn_v" else "PASS")
        for axis, module, check in sizes
    ]
    return CoordinateCheck("expertp", tuple(slopes), diverged)


SIZES: Sizes = {
    ("width", "stream", "init"): {0: {1.0: 3.0, 2.0: 3.0}, 1: {1.0: 3.0, 2.0: 3.0}},
    ("width", "attn_v", "init"): {0: {1.0: 2.0, 2.0: 4.0}, 1: {1.0: 1.0, 2.0: 8.0}},
    ("width", "attn_v", "size"): {0: {1.0: 2.0, 2.0: 6.0}, 1: {1.0: 1.0}},
    ("width", "router", "size"): {0: {1.0: 0.0, 2.0: 0.0}},
}


def test_lines_are_relative_to_the_base_and_over_seeds_that_have_all_scales() -> None:
    found = data(made(SIZES), SIZES)
    lines = {(line.module, line.check): line for line in found.lines}
    assert set(lines) == {("stream", "init"), ("attn_v", "init"), ("attn_v", "size")}
    assert lines["attn_v", "init"].sizes == pytest.approx({1.0: 1.0, 2.0: 4.0})  # the geometric mean of 2 and 8
    assert lines["attn_v", "size"].sizes == pytest.approx({1.0: 1.0, 2.0: 3.0})
    assert lines["attn_v", "size"].verdict == "FAIL"
    assert found.shape == (1, 4)
    assert found.rows()[0] == {
        "axis": "width", "check": "init", "module": "stream", "scale": 1.0, "relative_size": 1.0,
    }  # fmt: skip


@pytest.mark.heavy
def test_the_same_numbers_give_the_same_bytes_and_name_the_modules() -> None:
    found = data(made(SIZES), SIZES)
    first, second = (render("coordcheck", draw, found) for _ in range(2))
    assert first == second
    assert all(word in first.svg for word in ("attn_v", "stream", "width", "size at init"))
    assert first.png.startswith(b"\x89PNG")


def test_a_check_in_which_all_runs_diverged_is_drawn() -> None:
    sizes = {key: value for key, value in SIZES.items() if key[2] == "init"}
    found = data(made(sizes, (Divergence("width", 2.0, 0, 3),)), sizes)
    assert "1 diverged" in render("coordcheck", draw, found).svg


@pytest.mark.heavy
def test_lines_are_marked_by_their_expected_slope_and_not_by_flatness() -> None:
    check, sizes = synthetic_check(wrong=("attn_v", "size"))
    right = render("coordcheck", draw, data(check, sizes)).svg
    for text in ("expected slope 0", "expected slope −0.5", "expected slope −0.5 to 0", "shaded: slopes within"):
        assert f">{text}" in right
    assert ">outside: not as expected<" in right
    assert right.count(">attn_v<") == 1 + 2  # in the legend, and beside its red line on both axes
    # Router logits shrink at init as expected, and are no failure; those that stay flat are one.
    key = ("width", "router", "init")
    flat = {**sizes, key: {seed: dict.fromkeys(each, 1.0) for seed, each in sizes[key].items()}}
    slopes = [
        judge("width", "router", "init", flat[key], set(flat[key][0]), (each.low, each.high))
        if (each.axis, each.module, each.check) == key
        else each
        for each in check.slopes
    ]
    wrong = render("coordcheck", draw, data(replace(check, slopes=tuple(slopes)), flat)).svg
    assert right.count(">router<") == 1
    assert wrong.count(">router<") == 2


def test_every_module_has_a_marker_of_its_own_and_no_expected_slope_is_red() -> None:
    assert len(set(MODULE_MARKERS.values())) == len(EXPECTED)
    assert FAIL not in data(*synthetic_check()).colours.values()
