import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from expertp.errors import BusyError
from expertp.util.files import exclusive, write_atomically


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


@pytest.mark.heavy
def test_one_at_a_time_holds_a_directory_that_comes_and_goes(tmp_path):
    run, at_once = tmp_path / "run", []

    def visit(_):
        try:
            with exclusive(run, "busy"):
                (run / "here").touch(exist_ok=False)
                at_once.append(len(list(run.iterdir())))
                (run / "here").unlink()
        except BusyError:
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(visit, range(4000)))
    assert set(at_once) == {1}
