"""`expertp init`: all files or none, and next commands that work."""

import errno
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from expertp.cli import init
from expertp.cli.main import build_parser
from expertp.config import load_base, load_run, load_target

Say = Callable[..., tuple[int, str, str]]


def test_the_next_commands_name_the_files_that_were_written(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = say("init")
    assert (code, err) == (0, "")
    written = [*init.STARTERS, init.GUIDE]
    assert out == f"wrote to configs: {', '.join(written)}\n"
    assert sorted(path.name for path in (tmp_path / "configs").iterdir()) == sorted(written)
    guide = (tmp_path / "configs" / init.GUIDE).read_text()
    lines = [shlex.split(line) for line in re.findall(r"^\d\. `(expertp .*?)`: ", guide, re.M)]
    assert len(lines) == 5
    plan, prepare, sweep, report, train = (build_parser(verb).parse_intermixed_args(rest) for _, verb, *rest in lines)
    assert all(Path(path).is_file() for path in (plan.base, plan.target, sweep.study_file, train.run_file))
    assert str(prepare.out) == "prepared/builtin-1024"
    assert report.directory == sweep.out
    assert train.overrides[0] == f"train.data={prepare.out}"
    assert say(*lines[0][1:])[0] == 0
    load_base("configs/base.yaml"), load_target("configs/target.yaml"), load_run("configs/run.yaml")


def test_a_readme_that_exists_is_kept(tmp_path: Path, say: Say) -> None:
    (tmp_path / "README.md").write_text("mine")
    code, out, _ = say("init", tmp_path)
    assert (code, out) == (0, f"wrote to {tmp_path}: {', '.join(init.STARTERS)}\n")
    assert (tmp_path / "README.md").read_text() == "mine"


@pytest.mark.parametrize("taken", init.STARTERS)
def test_a_file_that_exists_is_kept_and_no_other_is_written(taken: str, tmp_path: Path, say: Say) -> None:
    (tmp_path / taken).write_text("mine")
    code, _, err = say("init", tmp_path)
    assert (code, err) == (2, f"expertp: {tmp_path / taken} exists; choose another directory, or delete the file\n")
    assert [path.name for path in tmp_path.iterdir()] == [taken]
    assert (tmp_path / taken).read_text() == "mine"


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = iter([b"1", b"2"])

    class Full:
        def __truediv__(self, _: str) -> "Full":
            return self

        def read_bytes(self) -> bytes:
            if content := next(contents, None):
                return content
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(init, "files", lambda _: Full())
    code, _, err = say("init", tmp_path / "a/b")
    assert (code, err.count("\n")) == (2, 1)
    assert list(tmp_path.iterdir()) == []
