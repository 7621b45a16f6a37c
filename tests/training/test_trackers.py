"""Trackers beside the run directory: what they get, and that a run does not care whether they work."""

import json
import os
import signal
import sqlite3
import struct
import sys
import time
import warnings
from contextlib import closing, suppress
from pathlib import Path

import pytest
from runs import tiny_run, tiny_study, write_tokens

from expertp.analysis.transfer import judge
from expertp.errors import InputError
from expertp.report.tracking import track_verdicts
from expertp.study.store import open_study
from expertp.study.sweep import InProcess, sweep
from expertp.training import trackers
from expertp.training.records import StepMetrics
from expertp.training.trackers import Guarded, Labels, ProcessTracker, make_tracker
from expertp.training.train import train

# A package of the same name that writes what it gets to a file, or does what DOES says.
FAKE_WANDB = """
import json, os, select, sys, time
def Settings(**_): pass
class Run:
    summary = {}
    def __init__(self, **options):
        self.lines = [options | {"settings": None}]
    def log(self, scalars, step):
        if os.environ.get("DOES") == "full disk":
            raise OSError(28, "No space left on device")
        self.lines.append({"step": step, **scalars})
    def finish(self, exit_code):
        self.lines.append({"exit_code": exit_code, "summary": self.summary})
        place = os.path.join(self.lines[0]["dir"], "fake.json")
        with open(place + ".part", "w") as file:
            json.dump(self.lines, file)
        os.rename(place + ".part", place)
def init(**options):
    if os.environ.get("DOES") == "start slowly":
        time.sleep(3)
    if os.environ.get("DOES") == "hang":
        poll = select.poll()
        poll.register(0, 0)
        poll.poll()  # until the pipe is closed; nothing is read
        sys.exit()
    return Run(**options)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "wandb.py").write_text(FAKE_WANDB, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
    return folder


def wait_for(path, seconds=60.0):
    ends_at = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < ends_at, f"{path} is missing"
        time.sleep(0.05)
    return path


@pytest.mark.heavy
def test_a_tracker_gets_every_step_and_the_labels_of_a_study(fake, data, tmp_path):
    study = tiny_study(data, grid=(-7,), steps=3).replace(trackers=("wandb-offline",))
    directory = open_study(tmp_path / "study", study)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = sweep(directory, InProcess())
    for identity, run in directory.runs.items():
        place = directory.place(identity)
        head, *steps, end = json.loads(wait_for(place / "fake.json").read_text(encoding="utf-8"))
        assert (head["group"], head["name"], head["mode"], head["job_type"]) == (
            "test",
            place.name,
            "offline",
            "expertp",
        )
        labels = {"study": "test", "axis": "width", "size": run.model.label, "arm": "expertp", "seed": run.train.seed}
        assert {name: head["config"][name] for name in labels} == labels
        assert head["config"]["hps"] == run.hps.to_dict()
        assert [each["step"] for each in steps] == [1, 2, 3]
        assert steps[-1]["loss/train"] == directory.result(identity).train_loss
        assert end["exit_code"] == 0
    track_verdicts(directory, judge(table))
    head, end = json.loads(wait_for(directory.path / "fake.json").read_text(encoding="utf-8"))
    assert (head["job_type"], head["group"]) == ("verdicts", "test")
    assert end["summary"].keys() == {"verdict/width/log2_lr"}


@pytest.mark.heavy
@pytest.mark.parametrize("does", ["hang", "full disk"])
def test_a_run_ends_well_and_in_time_with_a_tracker_that_does_not(fake, data, tmp_path, monkeypatch, does):
    monkeypatch.setenv("DOES", does)
    monkeypatch.setattr(trackers, "END_SECONDS", 0.3)
    tracker = make_tracker("wandb", tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train(tiny_run(data, train={"steps": 3}), tmp_path / "run", [tracker]).status == "finished"


@pytest.mark.heavy
def test_a_run_that_ends_before_its_tracker_has_started_is_tracked_whole(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("DOES", "start slowly")
    monkeypatch.setattr(trackers, "END_SECONDS", 2.0)
    tracker = ProcessTracker("wandb", tmp_path, Labels("run"))
    tracker.begin(None)
    for step in range(1, 2001):
        tracker.log(StepMetrics(step=step, loss=1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracker.end()
    _, *steps, end = json.loads(wait_for(tmp_path / "fake.json").read_text(encoding="utf-8"))
    assert [each["step"] for each in steps] == list(range(1, 2001))
    assert end["exit_code"] == 0


@pytest.mark.heavy
def test_a_tracker_that_takes_nothing_costs_nothing_and_says_what_it_lost(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "END_SECONDS", 0.3)
    tracker = ProcessTracker("wandb", tmp_path, Labels("run"))
    tracker.begin(None)
    process = tracker._process
    os.kill(process.pid, signal.SIGSTOP)
    try:
        began = time.process_time()
        for step in range(12_000):
            tracker.log(StepMetrics(step=step, loss=1.0))
        assert (time.process_time() - began) / 12_000 < 1e-3
        with pytest.warns(
            UserWarning, match=r"the tracker wandb has failed: it did not take [\d,]+ records; .* has all"
        ):
            tracker.end()
    finally:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.heavy
def test_a_tracker_that_is_killed_while_a_run_trains_is_left_out(fake, data, tmp_path):
    class Killed(ProcessTracker):
        def log(self, metrics):
            if metrics.step == 2:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            super().log(metrics)

    tracker = Killed("wandb", tmp_path / "run", Labels("run"))
    failed = r"the tracker wandb has failed: it has ended; see .*wandb\.log; .*run has all records"
    with pytest.warns(UserWarning, match=failed) as warned:
        result = train(tiny_run(data, train={"steps": 5}), tmp_path / "run", [tracker])
    assert (result.status, result.step, len(warned)) == ("finished", 5, 1)


@pytest.mark.heavy
def test_a_tracker_that_has_failed_is_silent(fake, tmp_path):
    tracker = ProcessTracker("wandb", tmp_path, Labels("run"))
    tracker.begin(None)
    os.killpg(tracker._process.pid, signal.SIGKILL)
    tracker._process.wait()
    with pytest.warns(UserWarning, match="the tracker wandb has failed: it has ended"):
        tracker.log(StepMetrics(step=12_001, loss=1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracker.log(StepMetrics(step=12_002, loss=1.0))
        tracker.end()


@pytest.mark.heavy
def test_a_run_that_is_killed_is_marked_as_failed(fake, tmp_path):
    tracker = ProcessTracker("wandb", tmp_path, Labels("run"))
    tracker.begin(None)
    tracker.log(StepMetrics(step=1, loss=1.0))
    tracker._process.stdin.close()
    tracker._process.wait()
    tracker._process = None
    assert json.loads((tmp_path / "fake.json").read_text(encoding="utf-8"))[-1]["exit_code"] == 1


def test_a_tracker_that_cannot_start_or_raises_is_left_out_with_one_warning(tmp_path):
    tracker = ProcessTracker("wandb", tmp_path / "missing", Labels("run"))
    with pytest.warns(UserWarning, match="the tracker wandb has failed: .*No such file"):
        tracker.begin(None)
    tracker.log(StepMetrics(step=1, loss=1.0))
    tracker.end()

    class Broken:
        def begin(self, *_):
            raise OSError(28, "No space left on device")

        log = end = begin

    guarded = Guarded(Broken())
    with pytest.warns(UserWarning, match="Broken has failed .*No space left on device.* the run goes on without it"):
        guarded.end()
    guarded.log(StepMetrics(step=1, loss=1.0))


def test_a_tracker_that_is_not_installed_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"^the tracker wandb-offline is not installed; pip install -e '\.\[wandb\]'"):
        make_tracker("wandb-offline", tmp_path)


def wandb_records(path):
    """Return the records of a .wandb file: a log in LevelDB's format, with a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (room := 2**15 - at % 2**15) < 7:
            at += room
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield Record.FromString(whole)
            whole = b""


@pytest.mark.heavy
def test_files_of_weights_and_biases_hold_the_run(data, tmp_path):
    pytest.importorskip("wandb")
    tracker = make_tracker(
        "wandb-offline", tmp_path / "run", Labels("first", "a <b>study</b>", "sp", {"axis": "width"})
    )
    train(tiny_run(data, train={"steps": 3}), tmp_path / "run", [tracker])
    wait_for_text(tmp_path / "run/wandb-offline.log", "wandb sync")
    (path,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    records = list(wandb_records(path))
    (run,) = [each.run for each in records if each.HasField("run")]
    assert (run.project, run.run_group, run.job_type, run.display_name) == ("expertp", "a <b>study</b>", "sp", "first")
    config = {each.key: json.loads(each.value_json) for each in run.config.update}
    assert config["axis"] == "width"
    assert config["hps"]["lr"] == 0.01
    steps = [
        {(each.key or "/".join(each.nested_key)): json.loads(each.value_json) for each in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [each["_step"] for each in steps] == [1, 2, 3]
    assert steps[-1]["loss/train"] == losses[-1]


def track_in_two_parts(name: str, out: Path, parts: tuple[range, ...]) -> None:
    for steps in parts:
        tracker = ProcessTracker(name, out, Labels("first", summary={"verdict": f"up to {steps.stop}"}))
        tracker.begin(None)
        process = tracker._process
        for step in steps:
            tracker.log(StepMetrics(step=step, loss=float(step)))
        tracker.end()
        assert process.wait(120) == 0, tracker.log_path.read_text()


@pytest.mark.heavy
def test_a_resumed_run_is_one_run_of_weights_and_biases(tmp_path):
    """The second part repeats steps after the last checkpoint; verdicts, without steps, are one run as well."""
    pytest.importorskip("wandb")
    track_in_two_parts("wandb-offline", tmp_path, (range(1, 5), range(3, 7), range(0)))
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 3
    records = [each for path in files for each in wandb_records(path)]
    assert len({each.run.run_id for each in records if each.HasField("run")}) == 1
    steps = [
        json.loads(next(each.value_json for each in record.history.item if "_step" in (each.key, *each.nested_key)))
        for record in records
        if record.HasField("history")
    ]
    assert steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.heavy
def test_a_resumed_run_is_in_the_database_of_trackio_once(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    track_in_two_parts("trackio", tmp_path, (range(1, 3), range(2, 4)))
    rows, _ = wait_for_rows(tmp_path / "trackio/expertp.db")
    assert [step for step, _ in rows] == [1, 2, 3]


@pytest.mark.heavy
def test_the_database_of_trackio_holds_the_run(data, tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    tracker = make_tracker("trackio", tmp_path / "run", Labels("first", "a study", "sp", {"axis": "width"}))
    train(tiny_run(data, train={"steps": 3}), tmp_path / "run", [tracker])
    wait_for_text(tmp_path / "run/trackio.log", "Run finished")
    wait_for(tmp_path / "trackio/expertp.db")
    rows, configs = wait_for_rows(tmp_path / "trackio/expertp.db")
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in rows] == [1, 2, 3]
    assert json.loads(rows[-1][1])["loss/train"] == losses[-1]
    assert len(configs) == 1
    config = json.loads(configs[0][0])
    assert (config["axis"], config["kind"], config["hps"]["lr"]) == ("width", "sp", 0.01)


def wait_for_rows(path: Path) -> tuple[list, list]:
    """Return the steps and the configurations in a database of trackio once it has three steps."""
    ends_at = time.monotonic() + 60
    while True:
        with closing(sqlite3.connect(path)) as database, suppress(sqlite3.OperationalError):  # no tables yet
            rows = database.execute("select step, metrics from metrics order by step").fetchall()
            if len(rows) == 3:
                return rows, database.execute("select config from configs").fetchall()
        assert time.monotonic() < ends_at
        time.sleep(0.1)


def wait_for_text(path: Path, text: str) -> None:
    ends_at = time.monotonic() + 90
    while text not in path.read_text(encoding="utf-8", errors="replace"):
        assert time.monotonic() < ends_at, path.read_text(encoding="utf-8", errors="replace")
        time.sleep(0.1)
