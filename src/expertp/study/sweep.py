"""Train the missing runs of a study.

A worker is a process that walks through the study's runs and trains each run that has not ended and that no other
worker holds. A worker holds the lease of its run, so any number of workers of any number of `sweep` commands, on any
machine that sees the directory, share the work without a queue. An executor only has to start workers and replace those
that die.

An adaptive sweep stops runs that are far behind zero-shot. Runs that may be stopped begin when the zero-shot run of
their size and seed has ended, so that the decision does not depend on the order in which workers take runs.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from expertp.errors import BusyError, InputError, RunError, one_line
from expertp.study.early_stopping import Watch
from expertp.study.executors.local import LocalExecutor
from expertp.study.spec import StudySpec
from expertp.study.store import StudyDirectory, open_study
from expertp.study.table import DONE, ENDED, StudyTable
from expertp.training.ranks import ALONE, Ranks, naming_lost_ranks
from expertp.training.trackers import Labels, make_tracker
from expertp.training.train import Tracker, train
from expertp.util.files import not_writable, stopping_on_full_disk
from expertp.util.leases import LostError
from expertp.util.machine import is_out_of_memory, refuse_other_ranks, release_memory, usable_cores

# How long a worker waits when other workers hold all runs that are left.
WAIT_SECONDS = 1.0
# What rank 0 of a worker tells the others meanwhile: a process that hears nothing for half an hour gives up.
NOTHING_YET = ""
OUT_OF_MEMORY = "out of memory; use a smaller model, a smaller train.micro_batch or fewer workers"


@runtime_checkable
class Executor(Protocol):
    """Starts workers: on this machine, or through a cluster's scheduler."""

    @property
    def workers(self) -> int:
        """Number of runs that are trained at a time."""

    @property
    def trains_here(self) -> bool:
        """Whether the workers run on this machine, with its devices and at its speed."""

    def describe(self, directory: StudyDirectory) -> str:
        """Return what `run_workers` would start, as text."""

    def run_workers(self, directory: StudyDirectory, should_stop: Callable[[], bool], tick: Callable[[], None]) -> None:
        """Return when all workers have finished, or have stopped because they should; call `tick` often."""


class InProcess:
    """Trains one run after another in this process, for small studies, notebooks and debuggers."""

    workers, trains_here = 1, True

    def describe(self, directory: StudyDirectory) -> str:
        """See `Executor`."""
        return f"no worker; this process trains the runs of {directory.path}"

    def run_workers(self, directory: StudyDirectory, should_stop: Callable[[], bool], tick: Callable[[], None]) -> None:
        """See `Executor`."""

        def is_over() -> bool:
            tick()
            return should_stop()

        work(directory, is_over)


def run_study(study: StudySpec, out: str | Path, executor: Executor | None = None) -> StudyTable:
    """Train what is missing of a study in a directory and return its table.

    Args:
        study: the study; `load_study` reads one from a file.
        out: the study's directory; created, or resumed if it holds the same study.
        executor: starts the workers; by default one process per core of this machine.

    Returns:
        All cells with their results.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from expertp import BaseHPs, ModelSpec, TrainSpec
    >>> from expertp.data import PrepareOptions, prepare
    >>> from expertp.study.spec import AxisSpec, GridSpec, StudySpec
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "text.jsonl").write_text('{"text": "to be or not to be, that is the question"}\\n' * 99)
    ...     _ = prepare(f"{folder}/text.jsonl", f"{folder}/tokens", PrepareOptions("bytes"))
    ...     study = StudySpec(
    ...         name="tiny", seeds=(0, 1), verdict=None,
    ...         base=ModelSpec(n_embd=16, n_layer=1, d_head=16, n_exp=2, vocab_size=384, context=8),
    ...         hps=BaseHPs(lr=0.01), axes={"width": AxisSpec(sizes=(16, 32))}, grids=GridSpec(log2_lr=(-7, -6)),
    ...         train=TrainSpec(data=f"{folder}/tokens", steps=1, batch_tokens=16, eval_every=0))
    ...     table = run_study(study, f"{folder}/study", InProcess())
    >>> [len(table.where(axis="width", hp="log2_lr", size=size)) for size in table.sizes("width")]
    [4, 4]
    """
    executor = executor or LocalExecutor(usable_cores())
    return sweep(open_study(out, study, trains_here=executor.trains_here), executor)


def sweep(
    directory: StudyDirectory,
    executor: Executor,
    should_stop: Callable[[], bool] = lambda: False,
    tick: Callable[[], None] = lambda: None,
) -> StudyTable:
    """Train what is missing of a study, write results.csv, and return the study's table.

    Args:
        directory: the study.
        executor: starts workers.
        should_stop: called often; when it returns True, runs are saved and continue at the next call.
        tick: called often, to show progress.
    """
    refuse_other_ranks("a sweep")
    with stopping_on_full_disk(directory.path):
        if not directory.running():  # a sweep that joins others must not let them try a failed run for ever
            directory.forget_failures()
        directory.forget_leftovers()
        if not directory.has_ended():
            executor.run_workers(directory, should_stop, tick)
            directory = directory.settled()
        for result in directory.write_results():  # a worker that was killed at its last moment leaves checkpoints
            if result.status in DONE:
                directory.tidy(result.identity)
    return directory.table()


class PartedError(Exception):
    """A run has ended with an error on some ranks while others wait for them: the worker must be started again."""


def work(directory: StudyDirectory, should_stop: Callable[[], bool], ranks: Ranks = ALONE) -> None:
    """Train missing runs until all have ended or `should_stop` returns True.

    A run that another worker holds is skipped and looked at again later: that worker may be killed. A full disk stops
    the worker with a `FullDiskError`: it is not the failure of a run.

    Args:
        directory: the study.
        should_stop: called often, on every rank.
        ranks: the processes of this worker. Rank 0 takes the runs, and the others train them with it.
    """
    if ranks.is_first:
        _take_runs(directory, should_stop, ranks)
        ranks.first(lambda: None)
        return
    while (identity := ranks.first(lambda: None)) is not None:
        if identity != NOTHING_YET:
            with suppress(BusyError):  # all ranks of the worker have raised it
                train(directory.runs[identity], directory.place(identity), (), should_stop, ranks)


def _take_runs(directory: StudyDirectory, should_stop: Callable[[], bool], ranks: Ranks) -> None:
    left = list(directory.training_order)
    with stopping_on_full_disk(directory.path):
        while left and not should_stop():
            left = [identity for identity in left if directory.result(identity).status not in ENDED]
            has_worked = [_try_one(directory, identity, should_stop, ranks) for identity in left if not should_stop()]
            if left and not any(has_worked):
                ranks.first(lambda: NOTHING_YET)
                time.sleep(WAIT_SECONDS)


def _try_one(directory: StudyDirectory, identity: str, should_stop: Callable[[], bool], ranks: Ranks) -> bool:
    """Train a run unless it has ended, another worker holds it or its zero-shot run has not ended.

    Returns:
        Whether it was trained.
    """
    zero_shot = directory.zero_shot_of.get(identity)
    if directory.result(identity).status in ENDED:
        return False
    if zero_shot is not None and directory.result(zero_shot).status not in ENDED:
        return False
    try:
        with directory.at_work(identity) as lease, naming_lost_ranks():
            watch = _watch(directory, identity, zero_shot)

            def is_over() -> bool:
                lease.check()
                return should_stop() or (watch is not None and watch.stop is not None)

            trackers = (*([] if watch is None else [watch]), *_trackers(directory, identity))
            ranks.first(lambda: identity)
            result = train(directory.runs[identity], directory.place(identity), trackers, is_over, ranks)
            if watch is not None and watch.stop is not None and not result.has_ended:
                directory.note_stop(identity, watch.stop)
            if result.has_ended and not directory.study.keep_checkpoints:
                directory.drop_checkpoints(identity)
    except BusyError as error:
        if isinstance(error, LostError) and not ranks.is_alone:
            raise PartedError from None
        return False
    except Exception as error:  # a run that fails must not stop the others
        if not_writable(error) is not None:
            raise
        directory.note_failure(identity, OUT_OF_MEMORY if is_out_of_memory(error) else _described(error))
        if not ranks.is_alone:
            raise PartedError from error
    release_memory()
    return True


def _trackers(directory: StudyDirectory, identity: str) -> list[Tracker]:
    """Return the trackers of a run, which know it by study, axis, size and arm; one that is missing is left out."""
    cells, trackers = directory.cells_of[identity], list[Tracker]()
    run, place = directory.runs[identity], directory.place(identity)
    study, arm = directory.study.name, ";".join(dict.fromkeys(cell.arm.name for cell in cells))
    config = {
        "study": study,
        "axis": ";".join(dict.fromkeys(cell.axis for cell in cells)),
        "size": run.model.label,
        "arm": arm,
        "log2_lr": math.log2(run.hps.lr),
        "log2_init_std": math.log2(run.hps.init_std),
        "seed": run.train.seed,
    }
    for name in directory.study.trackers:
        try:
            trackers.append(make_tracker(name, place, Labels(place.name, study, arm, config)))
        except InputError as error:
            warnings.warn(str(error), stacklevel=2)
    return trackers


def _watch(directory: StudyDirectory, identity: str, zero_shot: str | None) -> Watch | None:
    """Return what may stop a run early; None where there is no finished zero-shot run to compare it with."""
    if zero_shot is None or directory.result(zero_shot).status != "finished":
        return None
    return Watch(directory.records(zero_shot), lambda: directory.records(identity))


def _described(error: Exception) -> str:
    """Return an error as one line; the messages of expertp's own errors need no name."""
    return one_line(str(error) if isinstance(error, InputError | RunError) else f"{type(error).__name__}: {error}")
