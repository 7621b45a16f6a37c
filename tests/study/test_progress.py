import json
import os
from dataclasses import asdict

import pytest
from runs import tiny_study, write_tokens

from expertp.study.progress import ProgressWatch
from expertp.study.store import open_study
from expertp.training.train import train
from expertp.util.leases import Holder
from expertp.util.machine import host, process_space


@pytest.fixture
def directory(tmp_path):
    return open_study(tmp_path / "study", tiny_study(write_tokens(tmp_path / "tokens")))


def train_runs(directory, identities):
    for identity in identities:
        train(directory.runs[identity], directory.place(identity))


def test_nothing_is_known_before_a_run_has_ended(directory):
    progress = ProgressWatch(directory).look()
    assert progress.counts == {
        "finished": 0, "diverged": 0, "stopped": 0, "failed": 0, "damaged": 0, "running": 0, "unfinished": 0,
        "missing": 12,
    }  # fmt: skip
    assert (progress.ended, progress.total, progress.share_done) == (0, 12, 0)
    assert progress.seconds_left is None
    assert all(each.best_log2_lr is None for each in progress.models)


def test_what_runs_took_says_how_long_the_rest_will(directory):
    large, *_, small = directory.runs
    train_runs(directory, [large, small])
    progress = ProgressWatch(directory).look()
    seconds = {each: directory.result(each).seconds for each in (large, small)}
    assert progress.seconds_left == pytest.approx(5 * seconds[large] + 5 * seconds[small])
    assert progress.share_done == pytest.approx(1 / 6)


def test_a_forecast_counts_until_runs_tell(directory):
    models = {run.model for run in directory.runs.values()}
    watch = ProgressWatch(directory, dict.fromkeys(models, 10.0))
    assert watch.look().seconds_left == pytest.approx(120)
    train_runs(directory, list(directory.runs)[:1])
    assert watch.look().seconds_left < 111 - 5 * 9  # the other five large runs go by the one that has ended


def test_a_worker_that_lives_is_shown_and_one_that_does_not_is_not(directory):
    first, second = list(directory.runs)[:2]
    dead = Holder(host(), 999_999_999, process_space())
    with directory.at_work(first):
        (directory.leases.folder / second).mkdir()
        (directory.leases.folder / second / "1.json").write_text(json.dumps(asdict(dead)))
        progress = ProgressWatch(directory).look()
    (active,) = progress.running
    assert (active.identity, active.holder.host, active.holder.pid, active.step) == (first, host(), os.getpid(), 0)
    assert (progress.counts["running"], progress.counts["missing"]) == (1, 11)
    assert ProgressWatch(directory).look().running == ()


@pytest.mark.heavy
def test_the_best_learning_rate_is_one_whose_seeds_have_all_finished(directory):
    small = [each for each, run in directory.runs.items() if run.model.n_embd == 32]
    of_lr = {lr: [each for each in small if directory.runs[each].hps.lr == lr] for lr in (2.0**-8, 2.0**-6, 0.01)}
    train_runs(directory, [*of_lr[2.0**-8], of_lr[2.0**-6][0]])
    best = ProgressWatch(directory).look().models[0]
    assert (best.model.n_embd, best.counts["finished"], best.best_log2_lr) == (32, 3, -8)
    train_runs(directory, [of_lr[2.0**-6][1]])
    assert ProgressWatch(directory).look().models[0].best_log2_lr == -6  # a larger rate learns more in three steps


def test_failures_are_listed_with_their_errors(directory):
    first = next(iter(directory.runs))
    for _ in range(2):  # once is forgiven
        directory.note_failure(first, "OSError: the disk is full")
    progress = ProgressWatch(directory).look()
    assert [(each.identity, each.error) for each in progress.failed] == [(first, "OSError: the disk is full")]
    assert progress.ended == 1
