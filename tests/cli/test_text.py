"""Tables of the command line."""

import pytest

from expertp.cli.text import table

ROWS = [("name", "value [unit]"), ("a [bold] :smile:", "long words " * 20), ("b", "")]


def test_a_pipe_gets_plain_text_that_is_never_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    header, rule, first, second = table(ROWS).splitlines()
    assert header.split("  ")[0].strip() == "name"
    assert set(rule) == {"-"}
    assert first == f"a [bold] :smile:  {('long words ' * 20).rstrip()}"
    assert second == "b"


def test_a_narrow_terminal_wraps_cells_and_keeps_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text = table(ROWS)
    assert max(map(len, text.splitlines())) <= 40
    assert text.count("long") == text.count("words") == 20
    assert "a [bold] :smile:" in text
