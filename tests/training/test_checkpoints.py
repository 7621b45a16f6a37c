"""Checkpoints: what is saved comes back, damage is set aside, and nothing that could not be read is removed."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from runs import tiny_run, write_tokens
from safetensors import SafetensorError

from expertp.data import open_dataset
from expertp.errors import DamagedError, RunError
from expertp.training.checkpoints import Checkpoint, newest_weights, resume, save
from expertp.training.records import RunResult, StepMetrics
from expertp.training.store import open_run
from expertp.util.files import not_writable

HERE = {"python": "3"}
USING = "damaged checkpoint .* using the one before"


def dataset(tmp_path):
    return open_dataset(write_tokens(tmp_path / "data"))


@pytest.fixture
def directory(tmp_path):
    with open_run(tmp_path / "run", tiny_run(tmp_path), dataset(tmp_path), HERE) as directory:
        directory.metrics_path.write_bytes(b"0123456789" * 100)
        yield directory


def checkpoint(step):
    return Checkpoint(
        step=step,
        weights={"w": torch.full((3,), float(step))},
        optimizer={"exp_avg/w": torch.zeros(3)},
        metrics_bytes=10 * step,
        seconds=1.5,
    )


def kept(directory):
    return sorted(path.name for path in (directory.path / "checkpoints").iterdir())


def damage(directory, step, how="truncate"):
    folder = directory.path / "checkpoints" / f"step-{step:08d}"
    file = folder / "weights.safetensors"
    content = file.read_bytes()
    if how == "truncate":
        file.write_bytes(content[:-4])
    elif how == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif how == "remove":
        file.unlink()
    else:
        (folder / "state.json").write_bytes(how)


OTHER_RUN = b'{"format": 1, "identity": "another", "step": 2, "metrics_bytes": 0, "seconds": 0, "sha256": {}}'


def test_the_newest_checkpoint_comes_back_and_two_are_kept(directory):
    for step in (1, 2, 3):
        save(directory, checkpoint(step))
    assert torch.equal(newest_weights(directory)["w"], torch.full((3,), 3.0))
    latest = resume(directory)
    assert (latest.step, latest.metrics_bytes, latest.seconds) == (3, 30, 1.5)
    assert torch.equal(latest.tensors.whole()["w"], torch.full((3,), 3.0))
    assert kept(directory) == ["step-00000002", "step-00000003"]
    assert directory.metrics_path.stat().st_size == 30


@pytest.mark.parametrize(
    "how", ["truncate", "flip", "remove", b"{}", b"null", b"[]", b"\xff\x00", b"", OTHER_RUN], ids=str
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before_with_a_warning(directory, how):
    save(directory, checkpoint(1))
    save(directory, checkpoint(2))
    damage(directory, 2, how)
    with pytest.warns(UserWarning, match=USING):
        assert torch.equal(newest_weights(directory)["w"], torch.ones(3))
    assert kept(directory) == ["step-00000001", "step-00000002"], "reading must not change anything"
    with pytest.warns(UserWarning, match=f"{USING}; kept as damaged-step-00000002-1 and"):
        assert resume(directory).step == 1
    assert kept(directory) == ["damaged-step-00000002-1", "step-00000001"]
    assert (directory.path / "metrics.damaged-1.jsonl").stat().st_size == 1000
    assert directory.metrics_path.stat().st_size == 10


def test_when_no_checkpoint_is_whole_the_user_decides(directory):
    for step in (8, 9):
        save(directory, checkpoint(step))
        damage(directory, step)
    why = "weights.safetensors does not have the hash it was saved with"
    for read in (resume, newest_weights):
        with pytest.raises(
            DamagedError, match=rf"all checkpoints are damaged \(step-00000009: {why}\); restore one, or"
        ):
            read(directory)
    assert kept(directory) == ["step-00000008", "step-00000009"]
    assert directory.metrics_path.stat().st_size == 1000, "nothing may be lost"


def test_after_a_fallback_two_good_checkpoints_are_kept_again(directory):
    for step in (8, 9):
        save(directory, checkpoint(step))
    damage(directory, 9)
    with pytest.warns(UserWarning, match="using the one before"):
        assert resume(directory).step == 8
    with directory.metrics_path.open("ab") as file:
        file.write(b"0" * 100)
    for step in (9, 10, 11):
        save(directory, checkpoint(step))
    assert kept(directory) == ["damaged-step-00000009-1", "step-00000010", "step-00000011"]
    assert resume(directory).step == 11


def test_equal_checkpoints_have_equal_bytes_and_can_be_read_by_others(directory, tmp_path):
    contents = set()
    for _ in range(5):
        save(directory, checkpoint(1))
        file = directory.path / "checkpoints" / "step-00000001" / "optimizer.safetensors"
        contents.add(file.read_bytes())
        assert file.stat().st_mode & 0o777 == (directory.path / "run.json").stat().st_mode & 0o777
        shutil.rmtree(file.parent)
    assert len(contents) == 1


def test_metrics_shorter_than_a_checkpoint_says_make_it_a_damaged_one(directory):
    save(directory, checkpoint(1))
    save(directory, checkpoint(2))
    os.truncate(directory.metrics_path, 15)
    with pytest.warns(UserWarning, match="metrics.jsonl is shorter"):
        assert resume(directory).step == 1
    assert directory.metrics_path.stat().st_size == 10


@pytest.mark.parametrize(
    "point", ["tensor_files.save_file", "tensor_files.sync", "checkpoints.write_durably", "checkpoints.move_into_place"]
)
def test_a_save_that_dies_half_way_leaves_the_last_checkpoint(directory, monkeypatch, point):
    save(directory, checkpoint(1))

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"expertp.training.{point}", die)
        with pytest.raises(KeyboardInterrupt):
            save(directory, checkpoint(2))
    assert resume(directory).step == 1
    save(directory, checkpoint(2))
    assert kept(directory) == ["step-00000001", "step-00000002"]


def test_a_full_disk_is_one_line_and_gives_the_space_back(directory, monkeypatch):
    save(directory, checkpoint(1))

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("expertp.training.tensor_files.sync", full)
    with pytest.raises(RunError, match=r"step 2 cannot be written .*No space left.* run the same command again"):
        save(directory, checkpoint(2))
    assert kept(directory) == ["step-00000001"]


def test_an_error_of_the_system_inside_safetensors_keeps_its_number(directory, monkeypatch):
    """A sweep stops on a full disk, whichever library meets it first."""

    def fail(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("expertp.training.tensor_files.save_file", fail)
    with pytest.raises(RunError, match="step 1 cannot be written") as caught:
        save(directory, checkpoint(1))
    assert not_writable(caught.value) == errno.ENOSPC


def test_a_copied_checkpoint_of_another_run_is_not_used(directory, tmp_path):
    save(directory, checkpoint(1))
    run = tiny_run(tmp_path, train={"seed": 5})
    with open_run(tmp_path / "other", run, dataset(tmp_path), HERE) as other:
        pass
    shutil.copytree(directory.path / "checkpoints", other.path / "checkpoints")
    with pytest.raises(DamagedError, match="belongs to another run"):
        newest_weights(other)


@pytest.mark.parametrize("file", ["state.json", "weights.safetensors", "optimizer.safetensors", "checkpoints"])
def test_a_checkpoint_that_cannot_be_read_stops_the_run_and_nothing_changes(directory, monkeypatch, file):
    """It may be intact: EACCES and EIO say nothing about its content."""
    for step in (1, 2):
        save(directory, checkpoint(step))
    before = content(directory.path)

    def refuse(path, original):
        if path.name == file and "step-00000001" not in path.parts:
            raise OSError(5, "Input/output error", str(path))
        return original

    opened, listed = Path.open, Path.iterdir
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda self, *a, **k: refuse(self, opened)(self, *a, **k))
        patched.setattr(Path, "iterdir", lambda self: refuse(self, listed)(self))
        with pytest.raises(OSError, match="Input/output error"):
            resume(directory)
    assert content(directory.path) == before


@pytest.mark.parametrize("name", ["step-00000002.bak", "step-2", "step-x", "step-00000009", "notes.txt", "step-²"])
def test_other_names_in_the_folder_of_checkpoints_are_left_alone(directory, name):
    """Copies under other names, and plain files under any name."""
    save(directory, checkpoint(2))
    folder = directory.checkpoints_path
    if name in ("step-00000009", "notes.txt"):
        (folder / name).write_text("mine")
    else:
        shutil.copytree(folder / "step-00000002", folder / name)
    mine = content(folder / name) if (folder / name).is_dir() else "mine"
    assert torch.equal(newest_weights(directory)["w"], torch.full((3,), 2.0))
    assert resume(directory).step == 2
    with directory.metrics_path.open("ab") as file:
        file.write(b"0" * 100)
    for step in (8, 9, 10):
        save(directory, checkpoint(step))
    directory.drop_checkpoints()
    (left,) = folder.iterdir()
    assert left.name in (name, f"damaged-{name}-1")
    assert (content(left) if left.is_dir() else left.read_text()) == mine


def test_a_changed_digit_in_the_records_is_noticed(directory):
    save(directory, checkpoint(1))
    change(directory.metrics_path, 3)
    with pytest.raises(
        DamagedError, match=r"metrics.jsonl: changed after the checkpoint at step 1 .* restore the file"
    ):
        resume(directory)
    assert directory.metrics_path.stat().st_size == 1000


def test_records_that_changed_after_an_older_checkpoint_are_trained_again(directory):
    save(directory, checkpoint(1))
    save(directory, checkpoint(2))
    change(directory.metrics_path, 15)
    changed = directory.metrics_path.read_bytes()
    with pytest.warns(UserWarning, match="metrics.jsonl was changed after the checkpoint was saved"):
        assert resume(directory).step == 1
    assert (directory.path / "metrics.damaged-1.jsonl").read_bytes() == changed
    assert directory.metrics_path.read_bytes() == changed[:10]


def test_a_checkpoint_of_an_earlier_version_is_used_if_its_records_can_be_read(directory):
    directory.metrics_path.write_bytes(b"")
    directory.append_metrics([StepMetrics(step=1, loss=3.0)])
    size = directory.metrics_path.stat().st_size
    save(directory, Checkpoint(1, {"w": torch.ones(3)}, {}, size, 1.5))
    state = directory.checkpoints_path / "step-00000001/state.json"
    tree = json.loads(state.read_text())
    state.write_text(json.dumps({key: tree[key] for key in tree if key not in ("metrics_sha256", "hash")}))
    assert resume(directory).step == 1
    content = directory.metrics_path.read_bytes()
    directory.metrics_path.write_bytes(content.replace(b'"loss"', b'"l\xffss"'))
    with pytest.raises(DamagedError, match="changed after the checkpoint at step 1 was saved"):
        resume(directory)


@pytest.mark.parametrize("field", ["seconds", "metrics_bytes", "step", "identity"])
def test_a_state_that_was_edited_is_damage(directory, field):
    save(directory, checkpoint(2))
    state = directory.checkpoints_path / "step-00000002/state.json"
    tree = json.loads(state.read_text())
    state.write_text(json.dumps({**tree, field: "x" if field == "identity" else tree[field] + 1}))
    with pytest.raises(DamagedError, match="all checkpoints are damaged"):
        resume(directory)


def test_a_run_that_has_lost_its_checkpoints_does_not_start_over_silently(directory):
    save(directory, checkpoint(1))
    shutil.rmtree(directory.checkpoints_path)
    with pytest.raises(DamagedError, match=r"its checkpoints are missing; restore .*, or remove .* to start over"):
        resume(directory)
    assert directory.metrics_path.stat().st_size == 1000


def test_a_stopped_run_of_an_earlier_version_that_has_lost_its_checkpoints_is_refused(directory):
    directory.write_summary(RunResult("stopped", 1, 12, 128, 3.0, None, None, None, 1.0))
    with pytest.raises(DamagedError, match="its checkpoints are missing"):
        resume(directory)


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(directory, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("expertp.training.checkpoints.move_into_place", die)
        with pytest.raises(KeyboardInterrupt):
            save(directory, checkpoint(1))
    assert resume(directory) is None
    assert directory.metrics_path.stat().st_size == 0


def test_a_kill_between_the_first_checkpoint_and_its_mark_is_mended_on_resume(directory):
    save(directory, checkpoint(1))
    (directory.path / "saved").unlink()
    assert resume(directory).step == 1
    assert (directory.path / "saved").exists()


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def change(path, place):
    old = path.read_bytes()
    path.write_bytes(old[:place] + bytes([old[place] ^ 1]) + old[place + 1 :])


@pytest.mark.parametrize("drops", [False, True])
def test_a_file_of_the_user_in_a_checkpoint_outlives_it(directory, drops):
    save(directory, checkpoint(1))
    (directory.checkpoints_path / "step-00000001" / "notes.txt").write_text("text", encoding="utf-8")
    for step in (2, 3):
        save(directory, checkpoint(step))
    if drops:
        directory.drop_checkpoints()
    left = directory.checkpoints_path / "left-step-00000001-1"
    assert kept(directory) == [left.name, *([] if drops else ["step-00000002", "step-00000003"])]
    assert [path.name for path in left.iterdir()] == ["notes.txt"]
