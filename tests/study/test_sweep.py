import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest
from ranks import do_jobs
from runs import study_tree, tiny_study, write_tokens

from expertp.errors import InputError, RunError
from expertp.study import sweep as module
from expertp.study.executors import local
from expertp.study.executors.local import EXIT_NOT_WRITABLE, EXIT_PARTED, EXIT_TOLD, LocalExecutor
from expertp.study.executors.processes import WorkerProcesses, start_worker
from expertp.study.load import build_study
from expertp.study.store import StudyDirectory, open_study, preview_study, read_study
from expertp.study.sweep import InProcess, run_study, sweep, work
from expertp.util.files import exclusive
from expertp.util.machine import usable_cores

CLOCK = {"seconds"}
SCRIPT = """
import sys
from expertp.study.executors.local import EXIT_NOT_WRITABLE, LocalExecutor
from expertp.study.store import read_study
from expertp.study.sweep import sweep
sweep(read_study(sys.argv[1]), LocalExecutor(int((sys.argv[2:] or [2])[0])))
"""
SWEEP = (sys.executable, "-c", SCRIPT)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def rows(path):
    with (path / "results.csv").open(newline="") as file:
        return [{key: value for key, value in row.items() if key not in CLOCK} for row in csv.DictReader(file)]


def test_runs_of_axes_with_a_verdict_come_first(data, tmp_path, monkeypatch):
    spec = tiny_study(data)
    zero_shot_only = {"sizes": [spec.base.n_layer, 2 * spec.base.n_layer], "sweep": ["log2_lr"], "sweep_at": []}
    directory = open_study(tmp_path, spec.replace(axes={"depth": zero_shot_only, **spec.axes}))
    tried = []
    monkeypatch.setattr(
        module, "_try_one", lambda _, identity, *__: tried.append(directory.runs[identity].model) or True
    )
    work(directory, should_stop=lambda: len(tried) >= len(directory.runs))
    is_deep = [model.n_layer > spec.base.n_layer for model in tried]
    assert is_deep == sorted(is_deep)
    assert any(is_deep)


@pytest.mark.heavy
def test_a_study_is_trained_once_and_a_larger_grid_reuses_its_runs(data, tmp_path, monkeypatch):
    results = sweep(open_study(tmp_path, tiny_study(data)), InProcess()).results
    # 2 sizes x (2 learning rates + the centre) x 2 seeds
    assert [result.status for result in results] == ["finished"] * 12
    assert len(rows(tmp_path)) == 12
    assert not list(tmp_path.glob("runs/*/checkpoints"))
    trained = []
    original = module.train
    monkeypatch.setattr(module, "train", lambda run, *a, **k: trained.append(run) or original(run, *a, **k))
    assert run_study(tiny_study(data), tmp_path, InProcess()).results == results
    assert trained == []
    sweep(open_study(tmp_path, tiny_study(data, grid=(-8, -6, -5))), InProcess())
    assert len(trained) == 4
    assert {run.hps.lr for run in trained} == {2.0**-5}


@pytest.mark.heavy
def test_by_default_there_is_a_worker_per_core(data, tmp_path, monkeypatch):
    seen = []

    def run_workers(executor, directory, should_stop, tick):
        seen.append(executor)
        work(directory, should_stop)

    monkeypatch.setattr(LocalExecutor, "run_workers", run_workers)
    table = run_study(tiny_study(data, grid=(-8,)), tmp_path)
    assert seen == [LocalExecutor(usable_cores())]
    assert {result.status for result in table.results} == {"finished"}
    assert table.rows == read_study(tmp_path).table().rows


@pytest.mark.heavy
def test_a_study_is_not_trained_by_each_of_several_ranks(data, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InputError, match="a launcher has started 2 processes, but a sweep is one process; start it wi"):
        run_study(tiny_study(data), tmp_path, InProcess())


def test_a_worker_is_not_a_rank_of_the_launcher_that_started_the_sweep(tmp_path, monkeypatch):
    launcher = {"RANK": "3", "WORLD_SIZE": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "SLURM_PROCID": "3"}
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    started = []
    monkeypatch.setattr("subprocess.Popen", lambda command, **options: started.append((command, options["env"])))
    start_worker(tmp_path, tmp_path / "log", threads=1, processes=1)
    assert not launcher.keys() & started[0][1].keys()
    start_worker(tmp_path, tmp_path / "log", threads=1, processes=2)
    assert [(each["RANK"], each["WORLD_SIZE"]) for _, each in started[1:]] == [("0", "2"), ("1", "2")]
    assert "TORCHELASTIC_USE_AGENT_STORE" not in started[2][1]


def test_an_executor_in_this_process_ticks_and_stops(data, tmp_path):
    ticks, study = [], tiny_study(data)
    table = sweep(open_study(tmp_path, study), InProcess(), lambda: len(ticks) > 7, lambda: ticks.append(None))
    assert {result.status for result in table.results} == {"finished", "unfinished", "missing"}
    assert {result.status for result in run_study(study, tmp_path, InProcess()).results} == {"finished"}


def test_results_name_the_arms_that_need_a_run(data, tmp_path):
    arms = {"sp": {"axes": ["width"]}, "low lr": {"axes": ["width"], "hps": {"lr": 2.0**-8}}}
    directory = open_study(tmp_path, build_study({**study_tree(data), "arms": arms}, "study:"))
    directory.write_results()
    found = rows(tmp_path)
    assert list(found[0])[:4] == ["identity", "arm", "rules", "n_embd"]
    assert Counter((row["arm"], row["rules"]) for row in found) == {
        ("expertp", "expertp"): 8, ("expertp;low lr", "expertp"): 4, ("sp", "sp"): 4
    }  # fmt: skip


@pytest.mark.heavy
def test_studies_of_one_place_share_the_runs_that_they_have_in_common(data, tmp_path):
    one = open_study(tmp_path / "studies" / "one", tiny_study(data), "../../shared")
    other = open_study(tmp_path / "studies" / "other", tiny_study(data, grid=(-8, -6, -4)), "../../shared")
    work(one, should_stop=lambda: False)
    assert len(list((tmp_path / "shared").glob("*/summary.json"))) == len(one.runs)
    assert not (tmp_path / "studies" / "one" / "runs").exists()
    there = [result.status for result in read_study(other.path).results()]
    assert (there.count("finished"), there.count("missing")) == (len(one.runs), 2 * 2)
    work(read_study(other.path), should_stop=lambda: False)
    assert other.has_ended()


def test_a_study_stays_with_its_runs_wherever_they_are(data, tmp_path):
    begun = open_study(tmp_path / "studies" / "one", tiny_study(data), "../../shared")
    assert open_study(begun.path, tiny_study(data)).runs_folder == "../../shared"
    assert preview_study(begun.path, tiny_study(data)).runs_folder == "../../shared"
    with pytest.raises(InputError, match="not in elsewhere; choose another --out"):
        open_study(begun.path, tiny_study(data), "elsewhere")


@pytest.mark.heavy
def test_a_run_that_fails_is_tried_once_more_and_then_listed(data, tmp_path, monkeypatch):
    tries = []
    original = module.train

    def train(run, *arguments, **options):
        if run.train.seed == 1 and run.hps.lr == 2.0**-8:
            tries.append(run.model.n_embd)
            if run.model.n_embd == 64 or tries.count(32) == 1:
                raise OSError("the disk is full")
        return original(run, *arguments, **options)

    monkeypatch.setattr(module, "train", train)
    results = sweep(open_study(tmp_path, tiny_study(data)), InProcess()).results
    failed = [result for result in results if result.status == "failed"]
    assert sorted(tries) == [32, 32, 64, 64]
    assert [(result.run.model.n_embd, result.error) for result in failed] == [(64, "OSError: the disk is full")]
    assert [row["error"] for row in rows(tmp_path) if row["status"] == "failed"] == ["OSError: the disk is full"]
    monkeypatch.setattr(module, "train", original)
    assert {result.status for result in run_study(tiny_study(data), tmp_path, InProcess()).results} == {"finished"}


@pytest.mark.heavy
def test_a_run_that_another_worker_holds_is_skipped_and_looked_at_again(data, tmp_path, monkeypatch):
    directory = open_study(tmp_path, tiny_study(data))
    first = next(iter(directory.runs))
    with ExitStack() as held:
        held.enter_context(exclusive(directory.place(first), "busy"))

        def give_up(seconds):
            assert {result.status for result in directory.results()} == {"missing", "finished"}
            held.close()

        monkeypatch.setattr(module.time, "sleep", give_up)
        work(directory, should_stop=lambda: False)
    assert {result.status for result in directory.results()} == {"finished"}


def test_two_workers_that_see_one_run_fail_try_it_twice_in_all(data, tmp_path, monkeypatch):
    tries = []

    def fail(run, *_, **__):
        tries.append(run)
        raise OSError("the disk is full")

    directory = open_study(tmp_path, tiny_study(data))
    monkeypatch.setattr(module, "train", fail)
    for identity in directory.runs:
        directory.note_failure(identity, "MemoryError")  # what another worker has seen
    work(directory, should_stop=lambda: False)
    assert len(tries) == len(directory.runs)


class NoWorkers:
    """An executor that trains nothing."""

    workers, trains_here = 1, True

    def run_workers(self, *_):
        pass


def test_a_sweep_that_joins_others_leaves_the_failures_that_they_have_seen(data, tmp_path):
    """Pods of a cluster start one after the other, and the same sweep again in the place of one that was killed."""
    directory = open_study(tmp_path, tiny_study(data))
    held, failed = list(directory.runs)[:2]
    for _ in range(2):
        directory.note_failure(failed, "a bug")
    with directory.at_work(held):
        sweep(directory, NoWorkers())
    assert directory.failure(failed) == "a bug"
    sweep(directory, NoWorkers())
    assert not directory.failure(failed)


def test_a_failure_is_not_taken_from_under_another_sweep(data, tmp_path):
    directory = open_study(tmp_path, tiny_study(data))
    half_written = tmp_path / "failures/.0123.json.tmp"
    half_written.write_text("")
    directory.forget_failures()
    assert half_written.exists()


@pytest.mark.heavy
def test_worker_processes_end_as_one_process_does(data, tmp_path):
    """A worker that is killed is replaced, and the results are those of an undisturbed sweep."""
    study = tiny_study(data, steps=15, eval_every=15)
    sweep(open_study(tmp_path / "quiet", study), InProcess())
    directory = open_study(tmp_path / "killed", study)
    victims = []

    def kill_first_worker():
        for holder in directory.running().values():
            if not victims:
                victims.append(holder.pid)
                os.kill(holder.pid, signal.SIGKILL)

    results = sweep(directory, LocalExecutor(workers=2), tick=kill_first_worker).results
    assert victims
    assert {result.status for result in results} == {"finished"}
    assert rows(tmp_path / "killed") == rows(tmp_path / "quiet")


@pytest.mark.heavy
def test_two_processes_train_a_run_as_one_does_and_the_loss_of_one_is_noticed(data, tmp_path, monkeypatch):
    """Rank 1 of a worker is killed in the middle of a run: the worker is replaced, and the results are the same."""
    tree = study_tree(data, grid=(-6,), seeds=(0,), steps=30, eval_every=30, micro_batch=4, checkpoint_steps=5)
    study = build_study({**tree, "verdict": None}, "study:")
    sweep(open_study(tmp_path / "one", study), InProcess())
    directory = open_study(tmp_path / "two", study.replace(processes=2))
    workers, lost = [], []
    monkeypatch.setattr(local, "start_worker", lambda *each: workers.append(start_worker(*each)) or workers[-1])

    def kill_rank_1():
        if not lost and list(directory.path.glob("runs/*/checkpoints/step-*")):
            lost.append(workers[0].ranks[1].pid)
            workers[0].ranks[1].kill()

    results = sweep(directory, LocalExecutor(workers=1), tick=kill_rank_1).results
    assert {result.status for result in results} == {"finished"}
    assert rows(tmp_path / "two") == rows(tmp_path / "one")
    assert lost
    assert [[rank.returncode for rank in worker.ranks] for worker in workers] == [
        [EXIT_PARTED, -signal.SIGKILL],
        [0, 0],
    ]
    assert {directory.directory(identity).summary().world_size for identity in directory.runs} == {2}


@pytest.mark.heavy
def test_processes_of_a_worker_wait_for_runs_that_others_hold(data, tmp_path):
    """The directory of a run is locked as by `expertp train` there, or another worker has its lease."""
    tree = study_tree(data, grid=(-6,), seeds=(0,), steps=1, eval_every=1) | {"verdict": None, "processes": 2}
    held = ("directory", "lease")
    for name in held:
        open_study(tmp_path / name, build_study(tree, "study:"))
    jobs = [{"do": "work", "study": str(tmp_path / name), "held": name} for name in held]
    for outcomes in do_jobs(2, tmp_path, jobs):
        assert outcomes == [["finished"] * 4] * 2


def test_runs_that_processes_cannot_share_are_refused_before_anything_is_written(data, tmp_path):
    study = tiny_study(data)
    for changed, message in (
        (study.replace(processes=3), "3 processes cannot share a batch of 8 sequences evenly"),
        (study.replace(processes=2, parallel={"experts": 4}), "parallel.experts=4 does not divide the 2 processes"),
    ):
        with pytest.raises(InputError, match=message):
            open_study(tmp_path / "study", changed)
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_a_sweep_that_is_killed_again_and_again_ends_as_one_that_was_left_alone(data, tmp_path):
    """Sweep and workers are killed together three times, then the same command runs to its end."""
    study = tiny_study(data, steps=400, eval_every=400, checkpoint_seconds=0.5)
    sweep(open_study(tmp_path / "quiet", study), LocalExecutor(workers=2))
    open_study(tmp_path / "killed", study)
    random = np.random.default_rng(0)
    for _ in range(3):
        process = subprocess.Popen([*SWEEP, str(tmp_path / "killed")], start_new_session=True)
        time.sleep(random.uniform(4, 10))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        unfinished = [path for path in tmp_path.glob("killed/runs/*") if not (path / "summary.json").exists()]
        assert unfinished, "it was killed too late to show anything"
    subprocess.run([*SWEEP, str(tmp_path / "killed")], check=True)
    assert rows(tmp_path / "killed") == rows(tmp_path / "quiet")


@pytest.mark.heavy
def test_workers_stop_when_the_sweep_is_killed(data, tmp_path):
    study = tiny_study(data, steps=5000, eval_every=5000)
    directory = open_study(tmp_path, study)
    process = subprocess.Popen([*SWEEP, str(tmp_path), "1"])
    deadline = time.monotonic() + 60
    while not list(directory.path.glob("runs/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(directory.running()) == 1
    process.kill()
    process.wait()
    while directory.running() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not directory.running()
    assert list(tmp_path.glob("runs/*/checkpoints/step-*"))  # saved before it went


@pytest.mark.heavy
def test_a_worker_whose_sweep_is_killed_while_it_starts_does_not_go_on(data, tmp_path):
    open_study(tmp_path, tiny_study(data, steps=100_000, eval_every=100_000))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    worker = [sys.executable, "-m", "expertp.study.executors.worker", str(tmp_path), str(gone.pid)]
    assert subprocess.run(worker, timeout=60, check=False).returncode == EXIT_TOLD
    assert not list(tmp_path.glob("runs/*"))


def test_a_directory_that_a_crash_left_without_its_study_is_taken_up_again(data, tmp_path):
    directory = open_study(tmp_path, tiny_study(data))
    (tmp_path / "study.json").unlink()
    assert open_study(tmp_path, tiny_study(data)) == directory


def test_bookkeeping_may_change_and_a_smaller_grid_is_said(data, tmp_path):
    open_study(tmp_path, tiny_study(data))
    open_study(tmp_path, tiny_study(data, checkpoint_seconds=5))
    with pytest.warns(UserWarning, match="4 of its runs do not belong to this study; they stay on disk"):
        open_study(tmp_path, tiny_study(data, grid=(-8,)))


def test_data_that_does_not_fit_is_refused_before_anything_is_written(data, tmp_path):
    study = tiny_study(data)
    with pytest.raises(InputError, match="vocab"):
        open_study(tmp_path / "study", study.replace(base=study.base.replace(vocab_size=8)))
    assert not (tmp_path / "study").exists()


def test_a_directory_of_another_study_is_refused(data, tmp_path):
    open_study(tmp_path / "study", tiny_study(data))
    with pytest.raises(InputError, match=r"holds another study \(train\.steps=3 there, 4 here\)"):
        open_study(tmp_path / "study", tiny_study(data, steps=4))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").write_text("")
    with pytest.raises(InputError, match="has files and is not a study of expertp"):
        open_study(tmp_path / "other", tiny_study(data))
    with pytest.raises(InputError, match="no study here"):
        read_study(tmp_path / "nowhere")
    (tmp_path / "study/study.json").write_text("{")
    with pytest.raises(
        InputError, match=r"damaged \(invalid JSON: .*\); restore it, or remove it and run `expertp sweep`"
    ):
        read_study(tmp_path / "study")


def test_a_study_reads_back_as_it_was(data, tmp_path):
    study = tiny_study(data)
    directory = open_study(tmp_path, study)
    assert read_study(tmp_path) == directory
    assert json.loads((tmp_path / "study.json").read_text())["study"]["name"] == "test"


def test_a_study_reads_the_same_on_a_machine_without_its_device(data, tmp_path):
    study = tiny_study(data, dtype="auto")
    opened = open_study(tmp_path / "study", study)
    float32 = open_study(tmp_path / "float32", tiny_study(data, dtype="float32"))
    bfloat16 = open_study(tmp_path / "bfloat16", tiny_study(data, dtype="bfloat16"))
    assert opened.runs.keys() == float32.runs.keys()
    record = json.loads((opened.path / "study.json").read_text())
    (opened.path / "study.json").write_text(json.dumps({**record, "device": "cuda"}))
    elsewhere = read_study(opened.path)
    assert elsewhere.runs.keys() == bfloat16.runs.keys()
    assert not elsewhere.runs.keys() & opened.runs.keys()
    with pytest.raises(InputError, match=r"started on cuda and cannot continue on cpu; set train\.device=cuda"):
        open_study(opened.path, study)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("raised_by", ["records", "checkpoint", "note"])
def test_a_full_disk_stops_the_sweep_and_is_no_failure_of_a_run(data, tmp_path, monkeypatch, number, raised_by):
    directory, tries = open_study(tmp_path, tiny_study(data)), []

    def train(run, *_, **__):
        tries.append(run)
        if raised_by == "note":
            raise ValueError("a failure that cannot be noted")
        cause = OSError(number, os.strerror(number))
        if raised_by == "records":
            raise cause
        raise RunError("the checkpoint at step 3 cannot be written") from cause

    def no_space(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, "train", train)
    if raised_by == "note":
        monkeypatch.setattr(StudyDirectory, "note_failure", no_space)
    with pytest.raises(RunError, match=rf"{os.strerror(number)}; .* run the same command again; it continues"):
        sweep(directory, InProcess())
    assert len(tries) == 1
    assert {result.status for result in directory.results()} == {"missing"}
    assert not list((tmp_path / "failures").iterdir())


@pytest.mark.heavy
def test_a_worker_that_cannot_write_stops_the_sweep(data, tmp_path):
    """A worker ends with the code of the error, and the sweep says what the error was."""
    directory = open_study(tmp_path, tiny_study(data))
    script = tmp_path / "worker.py"
    script.write_text(f"import sys; sys.exit({EXIT_NOT_WRITABLE[errno.EDQUOT]})")
    started = []

    def start(self, directory, number):
        started.append(number)
        return WorkerProcesses([subprocess.Popen([sys.executable, str(script)])])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalExecutor, "_start", start)
        with pytest.raises(RunError, match=os.strerror(errno.EDQUOT)):
            sweep(directory, LocalExecutor(workers=2))
    assert started == [0, 1], "no worker is replaced"


def test_a_worker_returns_the_code_of_a_full_disk(data, tmp_path, monkeypatch):
    from expertp.study.executors import worker

    open_study(tmp_path, tiny_study(data))

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "train", fail)
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    assert worker.main(str(tmp_path), os.getppid()) == EXIT_NOT_WRITABLE[errno.ENOSPC]


def test_a_run_that_needs_too_much_memory_is_a_failure_that_says_so(data, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: \n...")

    monkeypatch.setattr(module, "train", fail)
    results = sweep(open_study(tmp_path, tiny_study(data)), InProcess()).results
    assert {(each.status, each.error) for each in results} == {("failed", module.OUT_OF_MEMORY)}
    assert module.OUT_OF_MEMORY.startswith("out of memory; ")
