import pytest

from expertp.cli.progress import Reporter


def test_without_a_terminal_there_is_one_line_per_heartbeat(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter("train", total=10, terminal=False, heartbeat=0.0) as reporter:
        reporter.update(5, "loss 1.0")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["train: 50%, loss 1.0, 0 s"]
    with Reporter("train", total=10, terminal=False, heartbeat=30.0) as reporter:
        reporter.update(5, "loss 1.0")
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter("prepare", total=None, terminal=True) as reporter:
        reporter.line("[a line] that stays")
        reporter.update(5, "12 documents")
    err = capsys.readouterr().err
    assert "[a line] that stays" in err
    assert "12 documents" in err
