import errno
import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from expertp.errors import BusyError, InputError
from expertp.util.files import LOCK_FILE, exclusive, write_atomically


def test_an_atomic_write_that_dies_keeps_the_old_text(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_atomically(path, b'{"old": true}')

    def die(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", die)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b'{"new": true}')
    assert json.loads(path.read_text()) == {"old": True}


def test_a_directory_that_was_made_and_stays_empty_goes_away(tmp_path):
    with exclusive(tmp_path / "new" / "run", "busy"):
        assert (tmp_path / "new" / "run").is_dir()
    assert list((tmp_path / "new").iterdir()) == []


def test_whoever_finds_a_new_directory_busy_leaves_it_alone(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with exclusive(run, "busy"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "exists", lambda _: False)  # looked just before the holder made it
            with pytest.raises(BusyError, match="somebody has it"), exclusive(run, "somebody has it"):
                pass
        (run / "run.json").write_text("{}")
    assert (run / "run.json").exists()


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(FileExistsError), exclusive(tmp_path / "run", "busy"):
        pass


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "gone", tmp_path / "gone" / "run"):
        with pytest.raises(OSError, match="gone"), exclusive(path, "busy"):
            pass


def test_the_lock_is_on_a_file_opened_for_writing_as_nfs_demands(tmp_path, monkeypatch):
    modes, flock = [], fcntl.flock

    def watched(descriptor, operation):
        modes.append(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # what NFS makes of flock: EBADF on a directory
        flock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", watched)
    with exclusive(tmp_path, "busy"):
        pass
    assert modes == [os.O_RDWR]
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]


def test_a_file_system_without_locks_is_one_line(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    message = r"its file system has no locks \(No locks available\); choose a directory on another one"
    with pytest.raises(InputError, match=message), exclusive(tmp_path, "busy"):
        pass


@pytest.mark.parametrize("may_write", [False, True])
def test_only_a_directory_that_can_be_written_needs_a_lock(tmp_path, monkeypatch, may_write):
    opened = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, flags, *mode)

    monkeypatch.setattr("os.open", refuse)
    monkeypatch.setattr("os.access", lambda *_: may_write)
    if may_write:
        with pytest.raises(PermissionError), exclusive(tmp_path, "busy"):
            pass
    else:
        with exclusive(tmp_path, "busy"):
            assert list(tmp_path.iterdir()) == []


def test_a_temporary_directory_is_removed_unless_it_has_files(tmp_path):
    for name, stays in (("empty", False), ("full", True)):
        (tmp_path / name).mkdir()
        with exclusive(tmp_path / name, "busy", is_temporary=True):
            if stays:
                (tmp_path / name / "page").touch()
        assert (tmp_path / name).exists() == stays


@pytest.mark.heavy
def test_one_at_a_time_holds_a_directory_that_comes_and_goes(tmp_path):
    run, at_once = tmp_path / "run", []

    def visit(_):
        try:
            with exclusive(run, "busy"):
                (run / "here").touch(exist_ok=False)
                at_once.append(sorted(path.name for path in run.iterdir()))
                (run / "here").unlink()
        except BusyError:
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(visit, range(4000)))
    assert at_once
    assert all(names == [LOCK_FILE, "here"] for names in at_once)
