import pytest
from runs import tiny_run, write_tokens

from expertp.data import open_dataset
from expertp.errors import InputError
from expertp.training.records import StepMetrics
from expertp.training.store import open_run, read_run

HERE = {"python": "3"}


@pytest.fixture
def directory(tmp_path):
    with open_run(tmp_path / "run", tiny_run(tmp_path), dataset(tmp_path), HERE) as directory:
        directory.metrics_path.write_bytes(b"0123456789" * 100)
        yield directory


def dataset(tmp_path, **changes):
    return open_dataset(write_tokens(tmp_path / "data", **changes))


def test_a_run_reads_back_as_it_was_written(directory):
    again = read_run(directory.path)
    assert again == directory


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
