import math

import pytest
from runs import study_tree, write_tokens

from expertp.spec import TrainSpec
from expertp.study.cells import expand
from expertp.study.early_stopping import CHECKS, Check, Comparison, Watch, find_stop, zero_shot_runs
from expertp.study.load import build_study
from expertp.study.spec import ChoiceSpec
from expertp.study.store import open_study, read_study
from expertp.study.sweep import InProcess, sweep
from expertp.training.records import StepMetrics

STEPS = 100
TRAIN = TrainSpec(data="tokens", steps=STEPS, batch_tokens=1024)
ZERO_SHOT = dict.fromkeys(range(1, STEPS + 1), 3.0)
# Zero-shot value of the tiny study, and a learning rate that learns next to nothing.
ZERO, HOPELESS = -6, -14


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def study_of(data, values=(HOPELESS, -7, -6), seeds=(0, 1), arms=None, **train):
    """Return a tiny study whose chosen cells are all values of the grid."""
    tree = study_tree(data, grid=values, seeds=seeds, **{"steps": 24, "eval_every": 24, **train})
    tree["hps"] = {**tree["hps"], "lr": 2.0**ZERO}
    chosen = ChoiceSpec(axis="width", hp="log2_lr", values=values, seeds=seeds)
    return build_study({**tree, "arms": arms or {}, "chosen": [chosen.to_dict()]}, "study:")


def without_clock(result):
    return result.identity, result.status, result.step, result.train_loss, str(result.val_loss)


def stopped_at(behind, steps_done=STEPS, train=TRAIN):
    """Return the step at which a run that is behind by so much is stopped."""
    losses = dict.fromkeys(range(1, steps_done + 1), 3.0 + behind)
    found = find_stop(train, steps_done, losses, ZERO_SHOT)
    return found and found.step


def test_a_run_is_stopped_at_the_first_check_at_which_it_is_too_far_behind():
    assert [check.margin for check in CHECKS] == sorted((check.margin for check in CHECKS), reverse=True)
    assert stopped_at(CHECKS[-1].margin - 0.01) is None
    for check in CHECKS:
        assert stopped_at(check.margin + 0.01) == check.step(TRAIN)
    assert stopped_at(9.0, steps_done=CHECKS[0].step(TRAIN) - 1) is None


def test_checks_lie_after_warm_up():
    assert Check(0.5, 0.2).step(TRAIN.replace(warmup_steps=40)) == 70
    assert Check(0.5, 0.2).step(TRAIN.replace(warmup_steps=STEPS)) == STEPS, "no check before the end of the run"


def test_only_the_last_tenth_of_the_steps_counts():
    last = CHECKS[0].step(TRAIN)
    window = [step for step in range(1, last + 1) if step > 0.9 * last]
    early = {step: 3.0 if step in window else 9.0 for step in range(1, last + 1)}
    assert find_stop(TRAIN, last, early, ZERO_SHOT) is None
    late = {step: 4.0 if step in window else 3.0 for step in range(1, last + 1)}
    assert find_stop(TRAIN, last, late, ZERO_SHOT) == Comparison(last, 4.0, 3.0)


def test_a_check_without_losses_of_both_runs_stops_nothing():
    losses = dict.fromkeys(range(1, STEPS + 1), 9.0)
    assert find_stop(TRAIN, STEPS, losses, {}) is None
    logged = {step: loss for step, loss in ZERO_SHOT.items() if step % 5 == 0}
    assert find_stop(TRAIN, STEPS, losses, logged).step == CHECKS[0].step(TRAIN)
    gaps = {step: loss for step, loss in losses.items() if step % 5}
    assert find_stop(TRAIN, STEPS, gaps, logged) is None


def test_an_interrupted_run_is_stopped_at_the_same_check():
    run = next(iter(expand(study_of("tokens")))).run.replace(train=TRAIN)
    records = [StepMetrics(step=step, loss=3.0 + 0.25 * (step > 40)) for step in range(1, STEPS + 1)]
    zero_shot = [StepMetrics(step=step, loss=loss) for step, loss in ZERO_SHOT.items()]
    found = []
    for done in (0, 30, 49, 50, 60):
        watch = Watch(zero_shot, lambda: records)
        watch.begin(run, done)
        for record in records[done:]:
            if watch.stop:
                break
            watch.log(record)
        found.append(watch.stop)
    assert found == [Comparison(50, 3.25, 3.0)] * 5


def test_only_far_values_of_an_adaptive_sweep_may_be_stopped():
    study = study_of("tokens", values=(-9, -7, -6.5, -6, -4, -3.5))
    found = zero_shot_runs(study, expand(study))
    assert {math.log2(run.hps.lr) for run in found} == {-9, -3.5}, "-4 is the next value above, -7 is near"
    assert {math.log2(run.hps.lr) for run in found.values()} == {ZERO}
    assert all((run.model, run.train) == (zero.model, zero.train) for run, zero in found.items())
    whole = study.replace(chosen=None)
    assert zero_shot_runs(whole, expand(whole)) == {}


def test_other_schedules_than_those_that_were_measured_are_left_alone():
    study = study_of("tokens", schedule="wsd", decay_steps=10)
    assert zero_shot_runs(study, expand(study)) == {}


def test_zero_shot_runs_of_other_arms_are_not_stopped():
    """The run of a value of the grid is the zero-shot run of another arm."""
    study = study_of("tokens", arms={"slow": {"axes": ["width"], "hps": {"lr": 2.0**HOPELESS}}})
    assert zero_shot_runs(study, expand(study)) == {}


@pytest.mark.heavy
def test_a_hopeless_run_is_a_result_of_its_own_and_a_sweep_of_all_cells_continues_it(data, tmp_path):
    study = study_of(data)
    table = sweep(open_study(tmp_path / "adaptive", study), InProcess())
    ended = {(math.log2(each.run.hps.lr), each.run.model.n_embd): each for each in table.results}
    assert {value for (value, _), each in ended.items() if each.status == "stopped"} == {HOPELESS}
    stopped = ended[HOPELESS, 64]
    assert stopped.step in {check.step(study.train) for check in CHECKS}
    assert (stopped.loss, stopped.val_loss) == (math.inf, None)
    assert stopped.train_loss > ended[ZERO, 64].train_loss + CHECKS[-1].margin
    assert "stopped" in (tmp_path / "adaptive/results.csv").read_text()

    # Again: nothing is trained.
    assert sweep(read_study(tmp_path / "adaptive"), InProcess()).results == table.results

    whole = study.replace(chosen=None)
    continued = sweep(open_study(tmp_path / "adaptive", whole), InProcess()).results
    fresh = sweep(open_study(tmp_path / "fresh", whole), InProcess()).results
    assert {each.status for each in continued} == {"finished"}
    assert [each.val_loss for each in continued] == [each.val_loss for each in fresh], "it continues to the bit"


@pytest.mark.heavy
def test_stops_do_not_depend_on_interruptions(data, tmp_path):
    study, calls = study_of(data, checkpoint_steps=7), iter(range(10**9))
    whole = sweep(open_study(tmp_path / "whole", study), InProcess()).results
    directory = open_study(tmp_path / "parts", study)
    while not directory.has_ended():
        sweep(directory, InProcess(), should_stop=lambda: next(calls) % 23 == 22)
    assert sorted(map(without_clock, directory.results())) == sorted(map(without_clock, whole))
    assert {each.status for each in whole} == {"finished", "stopped"}


@pytest.mark.heavy
def test_a_run_waits_for_its_zero_shot_run(data, tmp_path, monkeypatch):
    from expertp.study import sweep as module

    began, original = [], module.train
    monkeypatch.setattr(module, "train", lambda run, *a, **k: began.append(run) or original(run, *a, **k))
    directory = open_study(tmp_path, study_of(data, steps=4, eval_every=4))
    sweep(directory, InProcess())
    for run, zero_shot in zero_shot_runs(directory.study, directory.cells).items():
        assert began.index(zero_shot) < began.index(run)


@pytest.mark.heavy
def test_a_damaged_record_of_a_stop_is_the_status_of_its_run(data, tmp_path):
    directory = open_study(tmp_path, study_of(data))
    sweep(directory, InProcess())
    path = next((tmp_path / "stops").iterdir())
    path.write_text("{}")
    result = directory.result(path.stem)
    assert result.status == "damaged"
    assert f"remove {path} to let the run continue" in result.error
