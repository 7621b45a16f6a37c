"""Fixtures of command line tests."""

from collections.abc import Callable

import pytest

from expertp.cli.main import main

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let verbs suggest the next command, as on a terminal."""
    monkeypatch.setattr("expertp.cli.next.is_read_by_people", lambda: True)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command line; return its exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
