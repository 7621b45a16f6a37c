"""Tables of the command line."""

import pytest

from expertp.analysis.paired import paired
from expertp.cli import bench, tune
from expertp.cli.text import text_table
from expertp.search.tune import Outcome, Trial
from expertp.spec import BaseHPs

ROWS = [("name", "value [unit] of each"), ("a [bold] :smile:", "long words " * 20), ("b", "")]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_table_is_as_wide_as_the_output_and_keeps_every_word(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = text_table(ROWS)
    assert width - 15 <= max(map(len, text.splitlines())) <= width
    assert text.count("long") == text.count("words") == 20
    assert "a [bold] :smile:" in text


def test_a_pipe_gets_80_columns_of_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = text_table(ROWS)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_headers_wrap_before_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    lines = text_table([("name", "a header of many words"), ("x", "1 2 3 4 5")]).splitlines()
    assert lines[-1] == "x     1 2 3 4 5"
    assert [line[6:] for line in lines[:2]] == ["a header of", "many words"]


def test_rows_become_blocks_where_words_would_have_to_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    rows = [("axis", "the verdict", "cost"), ("width", "TRANSFERS", "0.0029"), ("experts", "UNDECIDED so far", "-")]
    assert text_table(rows).split("\n") == [
        "axis        width",
        "the         TRANSFER",
        "verdict     S",
        "cost        0.0029",
        "",
        "axis        experts",
        "the         UNDECIDE",
        "verdict     D so far",
        "cost        -",
    ]


def test_a_narrow_output_breaks_words_rather_than_losing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    text = text_table([("name", "b"), ("abcdefghijklmnop", "q")])
    assert max(map(len, text.splitlines())) <= 12
    assert "".join(line[6:].strip() for line in text.splitlines()) == "abcdefghijklmnopq"


def test_what_a_terminal_obeys_is_shown_as_its_escape() -> None:
    assert text_table([("name",), ("a\x1b[31mb\nc",)]).splitlines()[-1] == r"a\x1b[31mb\nc"


def test_the_table_of_a_benchmark_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ms = dict.fromkeys(("fused", "loop", "grouped", "bmm", "dense"), 3257.8)
    text = text_table(bench._table([{"name": "E64A16 alpha 0.25", "ms": ms, "vs_dense": 4.05, "vs_best_peer": 0.93}]))
    assert max(map(len, text.splitlines())) <= 80
    assert "E64A16 alpha 0.25" in text


def test_the_table_of_constants_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    outcome, change = Outcome((4.7, 4.8), (0.4, 0.5)), paired([1.0, 1.1], [1.2, 1.31])
    taken = Trial("attn_qkv_lr", 1 / 16, 0.25, BaseHPs(lr=0.01), outcome, outcome, change, "taken")
    text = tune._table([Trial("", 1.0, 1.0, BaseHPs(lr=0.01), outcome), taken])
    assert max(map(len, text.splitlines())) <= 80
    assert "attn_qkv_lr 1/16" in text
