import json
import math
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import tiny_run, write_tokens

from expertp.errors import InputError
from expertp.training.records import CLOCK_FIELDS, RunResult, StepMetrics
from expertp.training.store import read_run
from expertp.training.train import train

WHOLE = StepMetrics(
    step=3,
    loss=2.5,
    val_loss=2.25,
    lr_factor=0.5,
    tokens=384,
    max_load_deviation=(0.1, 1 / 3),
    dead_experts=(0, 2),
    bias_range=(1e-9, 0.25),
    seconds=0.125,
    tokens_per_second=1e4,
)
RESULT = RunResult("finished", 12, 12, 1536, 2.5, 1 / 3, 0.1, 0, 1.25)
finite = st.floats(allow_nan=False, allow_infinity=False)


class Recorder:
    """A tracker that keeps the metrics it is given."""

    def __init__(self):
        self.seen = []

    def begin(self, run, steps_done):
        pass

    def log(self, metrics):
        self.seen.append(metrics)

    def end(self):
        pass


@pytest.mark.heavy
@pytest.mark.parametrize("model", [{}, {"ffn": "dense", "n_exp": 1, "n_act": 1}], ids=["moe", "dense"])
def test_what_train_writes_is_read_back_as_equal_values(tmp_path, model):
    recorder, run = Recorder(), tiny_run(write_tokens(tmp_path / "data"), model=model)
    result = train(run, tmp_path / "run", [recorder])
    directory = read_run(tmp_path / "run")
    assert directory.metrics() == recorder.seen
    assert directory.summary() == result
    last = recorder.seen[-1]
    assert (last.step, last.tokens, result.tokens) == (12, 12 * 128, 12 * 128)
    assert (last.loss, last.val_loss, last.load_deviation) == (
        result.train_loss, result.val_loss, result.max_load_deviation
    )  # fmt: skip
    assert [len(last.max_load_deviation), len(last.dead_experts), len(last.bias_range)] == [0 if model else 2] * 3


def test_a_diverged_run_is_read_back_with_nan_where_the_file_has_null(tmp_path):
    recorder = Recorder()
    run = tiny_run(write_tokens(tmp_path / "data"), hps={"lr": 1e30}, train={"steps": 50, "eval_every": 50})
    result = train(run, tmp_path / "run", [recorder])
    assert result.status == "diverged"
    directory = read_run(tmp_path / "run")
    assert directory.summary() == result
    lines = [json.loads(line) for line in directory.metrics_path.read_text().splitlines()]
    assert lines[-1]["loss"] is None
    assert math.isnan(directory.metrics()[-1].loss)
    assert [asdict(record) for record in directory.metrics()[:-1]] == [asdict(record) for record in recorder.seen[:-1]]


@given(loss=finite, load=finite, seconds=finite)
def test_numbers_are_kept_to_the_last_bit(loss, load, seconds):
    record = replace(WHOLE, loss=loss, max_load_deviation=(load, -load), seconds=seconds)
    assert StepMetrics.from_json(record.to_json()) == record
    result = replace(RESULT, train_loss=loss, max_load_deviation=load, seconds=seconds)
    assert RunResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_null_and_read_as_nan(value):
    line = replace(WHOLE, loss=value, tokens_per_second=value).to_json()
    assert (json.loads(line)["loss"], json.loads(line)["tokens_per_second"]) == (None, None)
    found = StepMetrics.from_json(line)
    assert math.isnan(found.loss)
    assert math.isnan(found.tokens_per_second)
    assert replace(found, loss=2.5, tokens_per_second=1e4) == WHOLE


def test_the_file_has_the_fields_in_their_order():
    assert list(json.loads(WHOLE.to_json())) == [field.name for field in fields(StepMetrics)]
    assert list(RESULT.to_dict()) == [field.name for field in fields(RunResult)]
    assert set(CLOCK_FIELDS) < {field.name for field in fields(StepMetrics)}
    assert "\n" not in WHOLE.to_json()


def test_a_validation_that_was_not_made_is_none():
    assert StepMetrics.from_json('{"step": 1, "loss": 3}').val_loss is None
    assert StepMetrics.from_json(replace(WHOLE, val_loss=None).to_json()).val_loss is None


def test_the_load_deviation_is_the_largest_of_all_layers():
    assert WHOLE.load_deviation == 1 / 3
    assert replace(WHOLE, max_load_deviation=()).load_deviation is None


@pytest.mark.parametrize(
    "line", ["", "{", "null", "[]", "{}", '{"step": 1}', '{"step": "x", "loss": 1}', '{"step": 1.5, "loss": 1}', "\xff"]
)
def test_a_line_that_is_no_record_is_a_value_error(line):
    with pytest.raises(ValueError, match="StepMetrics"):
        StepMetrics.from_json(line)


@pytest.mark.parametrize("tree", [None, [], {}, {**RESULT.to_dict(), "status": "lost"}, {"status": "finished"}])
def test_a_tree_that_is_no_result_is_a_value_error(tree):
    with pytest.raises(ValueError, match="RunResult"):
        RunResult.from_dict(tree)


def test_a_run_has_ended_unless_it_was_stopped():
    statuses = ("finished", "diverged", "stopped")
    assert [replace(RESULT, status=status).has_ended for status in statuses] == [True, True, False]


@pytest.fixture
def ended(tmp_path):
    train(tiny_run(write_tokens(tmp_path / "data"), train={"steps": 4}), tmp_path / "run")
    return read_run(tmp_path / "run")


@pytest.mark.parametrize("damage", [b"{}", b"nonsense", b'{"step": 2, "lo', b"\xff\x00"])
def test_a_damaged_line_of_metrics_is_one_line_that_says_where(ended, damage):
    lines = ended.metrics_path.read_bytes().splitlines()
    ended.metrics_path.write_bytes(b"\n".join([lines[0], damage, *lines[2:], b""]))
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2: damaged") as caught:
        ended.metrics()
    assert "\n" not in str(caught.value)


def test_a_last_line_that_was_cut_short_is_left_out(ended):
    whole = ended.metrics()
    with ended.metrics_path.open("ab") as file:
        file.write(b'{"step": 5, "lo')
    assert ended.metrics() == whole
    ended.metrics_path.unlink()
    assert ended.metrics() == []


@pytest.mark.parametrize("text", ["", "{", "null", "{}", '{"status": "finished"}'])
def test_a_damaged_summary_is_one_line_that_says_what_to_do(ended, text):
    (ended.path / "summary.json").write_text(text)
    with pytest.raises(InputError, match=r"summary\.json: damaged \(.*\); restore the file, or remove") as caught:
        ended.summary()
    assert "\n" not in str(caught.value)


def test_a_run_that_was_not_summarized_has_no_summary(ended):
    (ended.path / "summary.json").unlink()
    assert ended.summary() is None
