"""Records that are read while they are written."""

import json

import pytest

from expertp.errors import DamagedError
from expertp.training import tail as module
from expertp.training.tail import RecordsTail


def line(step, loss=2.0):
    return json.dumps({"step": step, "loss": loss}) + "\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def steps(tail):
    return [each.step for each in tail.look()]


def test_each_record_is_read_once_and_a_line_that_is_not_complete_later(path, monkeypatch):
    parsed = []
    original = module.parse_record
    monkeypatch.setattr(module, "parse_record", lambda text, *rest: parsed.append(text) or original(text, *rest))
    tail = RecordsTail(path)
    assert steps(tail) == []
    with path.open("a", encoding="utf-8") as file:
        for text, expected in ((line(1) + line(2), [1, 2]), (line(3)[:7], [1, 2]), (line(3)[7:], [1, 2, 3])):
            file.write(text)
            file.flush()
            assert steps(tail) == expected
    assert len(parsed) == 3
    assert tail.step() == 3


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_records_that_a_resumed_run_cuts_back_are_forgotten(path, kept):
    before = [line(step) for step in (1, 2, 3, 4)]
    path.write_text("".join(before), encoding="utf-8")
    tail = RecordsTail(path)
    assert steps(tail) == [1, 2, 3, 4]
    # The new lines are longer, so that the file is as long as before or longer.
    path.write_text("".join(before[:kept]) + "".join(line(9, 2.123456789) for _ in range(5)), encoding="utf-8")
    assert steps(tail) == [1, 2, 3, 4][:kept] + [9] * 5
    path.unlink()
    assert steps(tail) == []


def test_a_damaged_line_is_an_error_that_names_it_and_has_no_step(path):
    path.write_text(line(1) + "{}\n", encoding="utf-8")
    with pytest.raises(DamagedError, match=r"metrics\.jsonl, line 2: damaged"):
        RecordsTail(path).look()
    assert RecordsTail(path).step() == 0
