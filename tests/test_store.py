import pytest
import torch
from runs import tiny_run, write_tokens

from expertp.data import open_dataset
from expertp.errors import InputError
from expertp.store import Checkpoint, open_run, read_run


@pytest.fixture
def directory(tmp_path):
    return open_run(tmp_path / "run", tiny_run(tmp_path), dataset(tmp_path), {"python": "3"})


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


def test_a_run_reads_back_as_it_was_written(directory):
    again = read_run(directory.path)
    assert (again.run, again.identity, again.data_hash, again.tokenizer) == (
        directory.run,
        directory.identity,
        directory.data_hash,
        None,
    )


def test_the_newest_checkpoint_comes_back_and_two_are_kept(directory):
    for step in (1, 2, 3):
        directory.save_checkpoint(checkpoint(step))
    latest = directory.latest_checkpoint()
    assert (latest.step, latest.metrics_bytes, latest.seconds) == (3, 30, 1.5)
    assert torch.equal(latest.weights["w"], torch.full((3,), 3.0))
    assert sorted(p.name for p in (directory.path / "checkpoints").iterdir()) == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "state", "garbage state"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_with_a_warning(directory, damage):
    directory.save_checkpoint(checkpoint(1))
    directory.save_checkpoint(checkpoint(2))
    folder = directory.path / "checkpoints" / "step-00000002"
    file = folder / "weights.safetensors"
    content = file.read_bytes()
    if damage == "truncate":
        file.write_bytes(content[:-4])
    elif damage == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "remove":
        file.unlink()
    elif damage == "state":
        (folder / "state.json").write_text("{}")
    else:
        (folder / "state.json").write_bytes(b"\xff\x00")
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        assert directory.latest_checkpoint().step == 1


def test_a_save_that_dies_half_way_leaves_the_last_checkpoint(directory, monkeypatch):
    directory.save_checkpoint(checkpoint(1))

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    for point in ("save_file", "sync", "write_durably", "move_into_place"):
        with monkeypatch.context() as patched:
            patched.setattr(f"expertp.store.{point}", die)
            with pytest.raises(KeyboardInterrupt):
                directory.save_checkpoint(checkpoint(2))
        assert directory.latest_checkpoint().step == 1
    directory.save_checkpoint(checkpoint(2))
    assert directory.latest_checkpoint().step == 2
    assert not list((directory.path / "checkpoints").glob(".partial*"))


def test_a_directory_of_another_run_is_refused_with_the_field_that_differs(directory, tmp_path):
    other = tiny_run(tmp_path, hps={"lr": 0.5})
    with pytest.raises(InputError, match=r"holds another run \(hps.lr=0.01 there, 0.5 here\)"):
        open_run(directory.path, other, dataset(tmp_path), {})
    with pytest.raises(InputError, match="other data"):
        open_run(directory.path, directory.run, dataset(tmp_path, train=30_000), {})


def test_a_directory_with_other_things_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a run"):
        open_run(tmp_path, tiny_run(tmp_path), dataset(tmp_path), {})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_that_is_not_there_or_damaged_says_so(tmp_path):
    with pytest.raises(InputError, match="no run here"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text('{"run"')
    with pytest.raises(InputError, match="damaged"):
        read_run(tmp_path)


def test_two_processes_cannot_train_one_run(directory):
    with directory.locked(), pytest.raises(InputError, match="another process"), directory.locked():
        pass


def test_metrics_are_cut_back_and_a_half_line_is_left_out(directory):
    directory.append_metrics('{"step": 1}\n{"step": 2}\n{"st')
    assert directory.metrics() == [{"step": 1}, {"step": 2}]
    directory.cut_metrics(len('{"step": 1}\n'))
    assert directory.metrics() == [{"step": 1}]
