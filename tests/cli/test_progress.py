import os
import pty
import re
import subprocess
import sys

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


@pytest.mark.heavy
@pytest.mark.parametrize("has_colours", [True, False])
def test_a_terminal_that_wants_no_colours_gets_none(has_colours: bool) -> None:
    program = "from expertp.cli.progress import Reporter\nwith Reporter('x', 2) as r: r.update(1, '', above='loss 1.0')"
    primary, secondary = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", **({} if has_colours else {"NO_COLOR": "1"})}
    subprocess.run([sys.executable, "-c", program], stderr=secondary, env=environment, check=True)
    os.close(secondary)
    shown = os.read(primary, 100_000).decode()
    os.close(primary)
    assert "loss 1.0" in shown
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]", shown)) == has_colours
