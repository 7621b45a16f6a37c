import os
import shutil

import pytest
import torch
from runs import tiny_run, write_tokens

from expertp.data import open_dataset
from expertp.errors import InputError, RunError
from expertp.training.records import StepMetrics
from expertp.training.store import Checkpoint, open_run, read_run

HERE = {"python": "3"}


@pytest.fixture
def directory(tmp_path):
    with open_run(tmp_path / "run", tiny_run(tmp_path), dataset(tmp_path), HERE) as directory:
        directory.metrics_path.write_bytes(b"0123456789" * 100)
        yield directory


def dataset(tmp_path, **changes):
    return open_dataset(write_tokens(tmp_path / "data", **changes))


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


def test_a_run_reads_back_as_it_was_written(directory):
    again = read_run(directory.path)
    assert again == directory


def test_the_newest_checkpoint_comes_back_and_two_are_kept(directory):
    for step in (1, 2, 3):
        directory.save_checkpoint(checkpoint(step))
    assert torch.equal(directory.newest_weights()["w"], torch.full((3,), 3.0))
    latest = directory.resume()
    assert (latest.step, latest.metrics_bytes, latest.seconds) == (3, 30, 1.5)
    assert torch.equal(latest.weights["w"], torch.full((3,), 3.0))
    assert kept(directory) == ["step-00000002", "step-00000003"]
    assert directory.metrics_path.stat().st_size == 30


OTHER_RUN = b'{"format": 1, "identity": "another", "step": 2, "metrics_bytes": 0, "seconds": 0, "sha256": {}}'


@pytest.mark.parametrize(
    "how", ["truncate", "flip", "remove", b"{}", b"null", b"[]", b"\xff\x00", b"", OTHER_RUN], ids=str
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before_with_a_warning(directory, how):
    directory.save_checkpoint(checkpoint(1))
    directory.save_checkpoint(checkpoint(2))
    damage(directory, 2, how)
    with pytest.warns(UserWarning, match="damaged checkpoint .* using the one before"):
        assert torch.equal(directory.newest_weights()["w"], torch.ones(3))
    with pytest.warns(UserWarning, match="damaged checkpoint .* using the one before"):
        assert directory.resume().step == 1
    assert kept(directory) == ["step-00000001"], "the damaged one must not count as the newest later"


def test_when_no_checkpoint_is_whole_the_user_decides(directory):
    for step in (8, 9):
        directory.save_checkpoint(checkpoint(step))
        damage(directory, step)
    with (
        pytest.warns(UserWarning, match="using the one before"),
        pytest.warns(UserWarning, match="there is no earlier one"),
        pytest.raises(InputError, match="all checkpoints are damaged; restore one, or remove the directory"),
    ):
        directory.resume()
    assert kept(directory) == ["step-00000008", "step-00000009"]
    assert directory.metrics_path.stat().st_size == 1000, "nothing may be lost"


def test_after_a_fallback_two_good_checkpoints_are_kept_again(directory):
    for step in (8, 9):
        directory.save_checkpoint(checkpoint(step))
    damage(directory, 9)
    with pytest.warns(UserWarning, match="using the one before"):
        assert directory.resume().step == 8
    with directory.metrics_path.open("ab") as file:
        file.write(b"0" * 100)
    for step in (9, 10, 11):
        directory.save_checkpoint(checkpoint(step))
    assert kept(directory) == ["step-00000010", "step-00000011"]
    assert directory.resume().step == 11


def test_equal_checkpoints_have_equal_bytes_and_can_be_read_by_others(directory, tmp_path):
    contents = set()
    for _ in range(5):
        directory.save_checkpoint(checkpoint(1))
        file = directory.path / "checkpoints" / "step-00000001" / "optimizer.safetensors"
        contents.add(file.read_bytes())
        assert file.stat().st_mode & 0o777 == (directory.path / "run.json").stat().st_mode & 0o777
        shutil.rmtree(file.parent)
    assert len(contents) == 1


def test_metrics_shorter_than_a_checkpoint_says_make_it_a_damaged_one(directory):
    directory.save_checkpoint(checkpoint(1))
    directory.save_checkpoint(checkpoint(2))
    os.truncate(directory.metrics_path, 15)
    with pytest.warns(UserWarning, match="metrics.jsonl is shorter"):
        assert directory.resume().step == 1
    assert directory.metrics_path.stat().st_size == 10


@pytest.mark.parametrize("point", ["save_file", "sync", "write_durably", "move_into_place"])
def test_a_save_that_dies_half_way_leaves_the_last_checkpoint(directory, monkeypatch, point):
    directory.save_checkpoint(checkpoint(1))

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"expertp.training.store.{point}", die)
        with pytest.raises(KeyboardInterrupt):
            directory.save_checkpoint(checkpoint(2))
    assert directory.resume().step == 1
    directory.save_checkpoint(checkpoint(2))
    assert kept(directory) == ["step-00000001", "step-00000002"]


def test_a_full_disk_is_one_line_and_gives_the_space_back(directory, monkeypatch):
    directory.save_checkpoint(checkpoint(1))

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("expertp.training.store.sync", full)
    with pytest.raises(RunError, match=r"step 2 cannot be written .*No space left.* run the same command again"):
        directory.save_checkpoint(checkpoint(2))
    assert kept(directory) == ["step-00000001"]


def open_again(path, run, data, environment=None):
    with open_run(path, run, data, environment or HERE) as directory:
        return directory


def test_a_directory_of_another_run_is_refused_with_the_field_that_differs(tmp_path):
    run, path = tiny_run(tmp_path), tmp_path / "run"
    open_again(path, run, dataset(tmp_path))
    with pytest.raises(InputError, match=r"holds another run \(hps.lr=0.01 there, 0.5 here\)"):
        open_again(path, tiny_run(tmp_path, hps={"lr": 0.5}), dataset(tmp_path))
    often = tiny_run(tmp_path, train={"checkpoint_seconds": 1.0})
    assert open_again(path, often, dataset(tmp_path)).run == run, "how often to save is not what a run is"
    with pytest.raises(InputError, match="other data"):
        open_again(path, often, dataset(tmp_path, train=30_000))


def test_another_machine_is_a_warning(tmp_path):
    open_again(tmp_path / "run", tiny_run(tmp_path), dataset(tmp_path))
    with pytest.warns(UserWarning, match="python 3, now 4; .* last bits"):
        open_again(tmp_path / "run", tiny_run(tmp_path), dataset(tmp_path), {"python": "4"})


def test_a_directory_with_other_things_is_refused_and_left_alone(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a run of expertp"):
        open_again(folder, tiny_run(tmp_path), dataset(tmp_path))
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_start_that_died_before_run_json_can_be_started_again(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".run.json.tmp", "tokenizer.json", ".tokenizer.json.tmp"):
        (folder / name).write_text("half")
    assert open_again(folder, tiny_run(tmp_path), dataset(tmp_path)) == read_run(folder)


def test_a_run_that_is_not_there_or_damaged_says_so(tmp_path):
    with pytest.raises(InputError, match="no run here"):
        read_run(tmp_path)
    for text in ('{"run"', "null", "[]", "{}"):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(InputError, match="damaged"):
            read_run(tmp_path)


def test_two_processes_cannot_train_one_run(directory, tmp_path):
    with pytest.raises(InputError, match="another process"):
        open_again(directory.path, tiny_run(tmp_path), dataset(tmp_path))


def test_a_half_line_of_metrics_is_left_out(directory):
    whole = [StepMetrics(step=step, loss=3.0) for step in (1, 2)]
    directory.metrics_path.write_bytes(b"")
    directory.append_metrics(whole)
    with directory.metrics_path.open("ab") as file:
        file.write(b'{"st')
    assert directory.metrics() == whole


def test_a_copied_checkpoint_of_another_run_is_not_used(directory, tmp_path):
    directory.save_checkpoint(checkpoint(1))
    other = open_again(tmp_path / "other", tiny_run(tmp_path, train={"seed": 5}), dataset(tmp_path))
    shutil.copytree(directory.path / "checkpoints", other.path / "checkpoints")
    with pytest.warns(UserWarning, match="belongs to another run"):
        assert other.newest_weights() is None
