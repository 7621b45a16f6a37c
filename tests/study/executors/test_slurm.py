"""Studies on a real SLURM with two nodes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from clusters import Slurm, parent_of, rows, watching_trainers
from runs import study_tree, tiny_study

from expertp.cli.main import main
from expertp.errors import InputError, RunError
from expertp.study.executors import slurm as module
from expertp.study.executors import slurm_jobs
from expertp.study.executors.slurm import SlurmExecutor, sbatch_options
from expertp.study.executors.slurm_jobs import jobs_of
from expertp.study.load import build_study
from expertp.study.spec import StudySpec
from expertp.study.store import StudyDirectory, open_study
from expertp.study.sweep import sweep
from expertp.util.files import exclusive

Quiet = Callable[[StudySpec], list[dict[str, str]]]
LONG = {"steps": 100, "eval_every": 100, "checkpoint_seconds": 0.2}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_SECONDS", 1.0)


def four_runs(data: Path, **train: object) -> StudySpec:
    tree = study_tree(data, grid=(-6,), seeds=(0,), **(LONG | train))
    return build_study({**tree, "verdict": None}, "study:")


def open_elsewhere(path: Path, study: StudySpec) -> StudyDirectory:
    return open_study(path, study, trains_here=False)


class Once:
    """A tick that does something once, as soon as it can: when a run has a checkpoint. It hastens requeued jobs."""

    def __init__(self, slurm: Slurm, directory: StudyDirectory, act: Callable[[], object]) -> None:
        self.slurm, self.directory, self.act, self.has_acted = slurm, directory, act, False

    def __call__(self) -> None:
        if self.has_acted:
            self.slurm.hasten()
        if not self.has_acted and list(self.directory.path.glob("runs/*/checkpoints/step-*")):
            self.has_acted = True
            self.act()


def test_the_watch_of_trainers_sees_two_at_once(tmp_path: Path) -> None:
    lock = tmp_path / "runs/a/.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file, subprocess.Popen(["sleep", "60"], pass_fds=[file.fileno()]) as other:
        with watching_trainers(tmp_path, every=0.01) as trainers:
            until = time.monotonic() + 20
            while not trainers.at_once and time.monotonic() < until:
                time.sleep(0.01)
        other.kill()
    assert trainers.at_once == {"a": 2}
    assert trainers.seen == {"a": {os.getpid(), other.pid}}


@pytest.mark.heavy
def test_an_array_over_two_nodes_trains_what_one_process_does(
    slurm: Slurm, data: Path, tmp_path: Path, quiet: Quiet,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    study = tiny_study(data, device="auto")
    directory = open_elsewhere(tmp_path / "a study", study)
    nodes, shown = set[str](), dict[str, object]()

    def look() -> None:
        nodes.update(slurm.ask("squeue", "-h", "-t", "R", "-o", "%N").split())
        if len(nodes) == 2 and not shown:
            main(["status", str(directory.path), "--json"])
            shown.update(json.loads(capsys.readouterr().out)["jobs"])

    with watching_trainers(directory.path) as trainers:
        results = sweep(directory, SlurmExecutor(2, ("--partition=low",)), tick=look).results
    assert set(trainers.at_once.values()) == {1}, "one worker at a time trains a run"
    assert len(set().union(*trainers.seen.values())) == 2
    assert {result.status for result in results} == {"finished"}
    assert nodes == {"n1", "n2"}
    jobs = jobs_of(directory)
    assert jobs is not None
    assert shown == {"slurm": jobs.job, "states": {"RUNNING": 2}}
    assert rows(directory.path) == quiet(study)
    assert not (directory.path / "runs/.leases").exists()
    sweep(directory, SlurmExecutor(2))
    assert jobs_of(directory).job == jobs.job, "nothing is left to submit"


@pytest.mark.heavy
def test_a_job_that_is_told_to_stop_saves_and_goes_on_when_it_is_requeued(
    slurm: Slurm, data: Path, tmp_path: Path, quiet: Quiet
) -> None:
    """Two processes train each run."""
    study = four_runs(data, micro_batch=4, steps=50, eval_every=50)
    directory = open_elsewhere(tmp_path, study.replace(processes=2))
    # What a preemption with a grace time does: the worker is told, and the job itself is not requeued.
    tell = Once(slurm, directory, lambda: slurm.ask("scancel", "--signal=TERM", jobs_of(directory).job))
    sweep(directory, SlurmExecutor(1, ("--cpus-per-task=1",)), tick=tell)  # all that a node of the test has
    assert tell.has_acted
    assert rows(tmp_path) == quiet(study)
    assert {directory.directory(identity).summary().world_size for identity in directory.runs} == {2}
    (log,) = (tmp_path / "slurm").glob("*.log")
    assert "Exited with exit code 75" in log.read_text()


@pytest.mark.slow
def test_a_study_survives_preemption_a_restart_of_the_controller_and_dead_workers(
    slurm: Slurm, data: Path, tmp_path: Path, quiet: Quiet
) -> None:
    """12 runs on two nodes; a job of higher priority takes both nodes, the controller restarts, a job is killed -9."""
    study = tiny_study(data, **(LONG | {"steps": 300, "eval_every": 300}))
    directory = open_elsewhere(tmp_path, study)
    done = list[str]()

    def preempt() -> None:
        slurm.ask("sbatch", "--partition=high", "--array=0-1", "--output=/dev/null", "--wrap=sleep 3")
        done.append("preempted")

    def restart() -> None:
        slurm.stop_controller()
        time.sleep(3)
        slurm.start_controller()
        done.append("restarted")

    def kill() -> None:
        holder = next(iter(directory.settled().running().values()), None)
        if holder is not None:
            os.kill(parent_of(holder.pid), signal.SIGKILL)  # first, so that it cannot start another worker
            os.kill(holder.pid, signal.SIGKILL)
            done.append("killed")

    def disturb() -> None:
        if done:
            slurm.hasten()
        if len(done) == 3 or not list(tmp_path.glob("runs/*/checkpoints/step-*")):
            return
        ended, act = ((0, preempt), (3, restart), (6, kill))[len(done)]
        if len(list(tmp_path.glob("runs/*/summary.json"))) >= ended:
            act()

    with watching_trainers(tmp_path) as trainers:
        sweep(directory, SlurmExecutor(2), tick=disturb)
    assert done == ["preempted", "restarted", "killed"]
    logs = [log.read_text() for log in (tmp_path / "slurm").glob("*.log")]
    assert any("Exited with exit code 75" in log for log in logs), "the preemption has stopped a worker, which saved"
    assert len(trainers.at_once) == len(directory.runs)
    assert set(trainers.at_once.values()) == {1}, "one worker at a time trains a run"
    assert max(len(processes) for processes in trainers.seen.values()) > 1, "a run went on in another process"
    assert rows(tmp_path) == quiet(study)


@pytest.mark.slow
def test_a_study_goes_through_a_time_limit(slurm: Slurm, data: Path, tmp_path: Path, quiet: Quiet) -> None:
    """12 runs on two nodes take longer than the minute that a job has."""
    study = tiny_study(data, **(LONG | {"steps": 1000, "eval_every": 1000}))
    directory = open_elsewhere(tmp_path, study)
    hasten = Once(slurm, directory, lambda: None)
    with watching_trainers(tmp_path) as trainers:
        sweep(directory, SlurmExecutor(2, sbatch_options("--time=1 --signal=TERM@20")), tick=hasten)
    logs = [log.read_text() for log in (tmp_path / "slurm").glob("*.log")]
    assert sum("Exited with exit code 75" in log for log in logs) == 2, "both workers were told, and have saved"
    assert len(trainers.at_once) == len(directory.runs) == 12
    assert set(trainers.at_once.values()) == {1}, "one worker at a time trains a run"
    assert max(len(processes) for processes in trainers.seen.values()) > 1, "a run went on in another process"
    assert rows(tmp_path) == quiet(study)


@pytest.mark.slow
def test_a_sweep_that_is_stopped_cancels_its_jobs_and_the_same_command_continues(
    slurm: Slurm, data: Path, tmp_path: Path, quiet: Quiet
) -> None:
    study = four_runs(data)
    directory = open_elsewhere(tmp_path, study)
    stop = Once(slurm, directory, lambda: None)
    sweep(directory, SlurmExecutor(2), should_stop=lambda: stop.has_acted, tick=stop)
    assert slurm_jobs.states_of(jobs_of(directory).job) == {}
    assert "unfinished" in {result.status for result in directory.settled().results()}
    time.sleep(3)
    assert not slurm.ask("squeue", "-h"), "a cancelled job does not requeue itself"
    sweep(directory, SlurmExecutor(2))
    assert rows(tmp_path) == quiet(study)


@pytest.mark.heavy
def test_a_study_that_grew_while_its_last_tasks_end_is_trained(
    slurm: Slurm, data: Path, tmp_path: Path, quiet: Quiet
) -> None:
    sweep(open_elsewhere(tmp_path, four_runs(data, steps=4, eval_every=4)), SlurmExecutor(1))
    grown = tiny_study(data, steps=4, eval_every=4, checkpoint_seconds=LONG["checkpoint_seconds"])
    sweep(open_elsewhere(tmp_path, grown), SlurmExecutor(2))
    assert rows(tmp_path) == quiet(grown)


@pytest.mark.heavy
def test_jobs_that_end_too_early_are_an_error_that_names_their_logs(slurm: Slurm, data: Path, tmp_path: Path) -> None:
    directory = open_elsewhere(tmp_path, tiny_study(data, device="cuda"))
    with pytest.raises(RunError, match=r"job \d+ has ended, but runs are left; its logs in .*slurm say why"):
        sweep(directory, SlurmExecutor(1))
    (log,) = (tmp_path / "slurm").glob("*.log")
    assert "expertp: train.device=cuda, but torch finds no CUDA device" in log.read_text()


def test_what_sbatch_refuses_is_one_line(slurm: Slurm, data: Path, tmp_path: Path) -> None:
    directory = open_elsewhere(tmp_path, tiny_study(data))
    with pytest.raises(InputError, match=r"sbatch refuses the job: .*invalid partition specified: nowhere"):
        sweep(directory, SlurmExecutor(1, ("--partition=nowhere",)))


def test_options_reach_sbatch_as_a_list_that_no_shell_reads(data: Path, tmp_path: Path) -> None:
    directory = open_elsewhere(tmp_path / "50% of it; rm -rf $HOME", tiny_study(data))
    options = sbatch_options("--comment='$(touch x)' --time 1")
    command = SlurmExecutor(99, options).command(directory)
    assert command[-4:-1] == ["--comment=$(touch x)", "--time", "1"]
    assert "--array=0-11" in command, "no more tasks than runs"
    assert any("/50%% of it; rm -rf $HOME/slurm/%A_%a.log" in each for each in command)
    script = SlurmExecutor.script(directory)
    assert f"{sys.executable} -m expertp.study.executors.task '{directory.path}' \"slurm-$task\"" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--comment='x", "no closing quotation"),
        ("partition=a100", "give options, such as"),
        ("--array=0-99", "'--array=0-99' is set by expertp; leave it out"),
        ("--time=1 --wrap 'rm -rf /'", "'--wrap' is set by expertp"),
        ("-a0-9", "'-a0-9' is set by expertp"),
        ("-p low -oFILE", "'-oFILE' is set by expertp"),
        ("-QW", "'-QW' is set by expertp"),
        ("--arr=0-9", "'--arr=0-9' is set by expertp"),
    ],
)
def test_options_that_would_break_the_array_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sbatch_options(text)


def test_without_slurm_the_command_says_so(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = open_elsewhere(tmp_path, tiny_study(data))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="sbatch is not installed here"):
        sweep(directory, SlurmExecutor(1))
    assert jobs_of(directory) is None
    slurm_jobs.note_job(directory, "17")
    assert jobs_of(directory) == slurm_jobs.Jobs("17", None, slurm_jobs.hash_of_runs(directory))


@dataclass
class FakeSlurm:
    """Answers of SLURM: the states of arrays, and the commands that were run."""

    states: dict[str, list[str]]
    commands: list[str] = field(default_factory=list)
    refusals: int = 0  # of scancel
    after_submission: Callable[[], object] = lambda: None

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        self.commands.append(command[0])
        text = ""
        if command[0] == "squeue":
            (job,) = (each.partition("=")[2] for each in command if each.startswith("--jobs="))
            states = self.states.get(job, [])
            text = states.pop(0) if states else ""
        if command[0] == "scancel":
            if self.refusals:
                self.refusals -= 1
                return subprocess.CompletedProcess(command, 1, "", "scancel: error:\n Unable to contact controller")
            self.states[command[1]] = []
        if command[0] == "sbatch":
            text = "18"
            self.after_submission()
        return subprocess.CompletedProcess(command, 0, text, "")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm({"17": ["COMPLETING"] * 2})
    for place in (module, slurm_jobs):
        monkeypatch.setattr(place, "run", fake.run)
    monkeypatch.setattr(module, "ASK_SECONDS", 0.0)
    return fake


def note_earlier_job(directory: StudyDirectory) -> None:
    (directory.path / "slurm").mkdir()
    slurm_jobs.note_job(directory, "17")


def fail_all(directory: StudyDirectory) -> None:
    """End every run, as workers would."""
    for identity in directory.runs:
        for _ in range(2):
            directory.note_failure(identity, "no memory")


def test_an_array_that_does_not_know_all_runs_is_replaced(data: Path, tmp_path: Path, fake: FakeSlurm) -> None:
    """A study that grew, as between two rounds of `--until decided`, while the last tasks were still ending."""
    note_earlier_job(open_elsewhere(tmp_path, four_runs(data)))
    grown = open_elsewhere(tmp_path, tiny_study(data, **LONG))
    fake.after_submission = lambda: fail_all(grown)
    SlurmExecutor(2).run_workers(grown, lambda: False, lambda: None)
    assert [each for each in fake.commands if each != "squeue"] == ["scancel", "sbatch"]
    assert jobs_of(grown) == slurm_jobs.Jobs("18", {}, slurm_jobs.hash_of_runs(grown))


def test_an_array_that_was_just_ending_is_submitted_again_once(data: Path, tmp_path: Path, fake: FakeSlurm) -> None:
    directory = open_elsewhere(tmp_path, four_runs(data))
    note_earlier_job(directory)
    with pytest.raises(RunError, match="job 18 has ended, but runs are left"):
        SlurmExecutor(2).run_workers(directory, lambda: False, lambda: None)
    assert fake.commands.count("sbatch") == 1
    assert "scancel" not in fake.commands


def test_of_two_sweeps_one_submits(data: Path, tmp_path: Path, fake: FakeSlurm) -> None:
    """The other sweep submits its array while this one is about to, which waits for it."""
    directory, fake.states["17"] = open_elsewhere(tmp_path, four_runs(data)), ["RUNNING"] * 9
    has_begun = threading.Event()

    def submit() -> None:
        with exclusive(tmp_path / "slurm", "busy"):
            has_begun.set()
            time.sleep(0.5)
            slurm_jobs.note_job(directory, "17")

    threading.Thread(target=submit).start()
    assert has_begun.wait(10)
    ticks = iter(range(9))
    SlurmExecutor(2).run_workers(directory, lambda: False, lambda: next(ticks) == 3 and fail_all(directory))
    assert "sbatch" not in fake.commands
    assert jobs_of(directory).job == "17"


def test_a_cancellation_that_slurm_refuses_is_tried_again_and_then_an_error(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_jobs, "LOOK_SECONDS", 0.01)
    fake.states["17"], fake.refusals = ["RUNNING"] * 9, 2
    slurm_jobs.cancel("17")
    assert fake.commands.count("scancel") == 3
    fake.states["17"], fake.refusals = ["RUNNING"] * 9, 9
    monkeypatch.setattr(slurm_jobs, "REFUSED_SECONDS", 0.0)
    with pytest.raises(RunError, match="does not cancel job 17: scancel: error: Unable to contact controller; run sca"):
        slurm_jobs.cancel("17")
