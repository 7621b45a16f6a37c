import pytest
from runs import tiny_run, tiny_study, write_tokens

from expertp.data import open_dataset
from expertp.errors import InputError
from expertp.study import forecast as module
from expertp.study.cells import expand, unique_runs
from expertp.study.forecast import forecast


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def test_a_study_takes_as_long_as_its_runs_together(data):
    runs = unique_runs(expand(tiny_study(data)))
    found = forecast(runs, open_dataset(data), workers=2)
    assert [(each.model.n_embd, each.runs) for each in found.models] == [(32, 6), (64, 6)]
    assert found.seconds == pytest.approx(sum(each.seconds * each.runs for each in found.models) / 2)
    assert all(each.is_timed for each in found.models)
    assert found.basis == "from 3 timed steps of each model"


def test_a_run_that_validates_costs_more(data, monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))  # every step takes a second
    plain, validated = (
        forecast([tiny_run(data, train={"steps": 12, "eval_every": every})], open_dataset(data)).seconds
        for every in (0, 6)
    )
    assert plain == 12
    # Two validations of 512 tokens: four batches of 128 each, a third of a step per batch.
    assert validated == pytest.approx(12 + 2 * 4 / 3)


def test_a_model_that_is_not_timed_goes_by_the_flops_of_one_that_is(data, monkeypatch):
    runs = unique_runs(expand(tiny_study(data)))
    clock = iter([0.0, 0.0, 9.0, 9.0])  # the limit is over after the first model
    monkeypatch.setattr("expertp.training.speed.product_speed", lambda _: 1e9)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    found = forecast(runs, open_dataset(data))
    small, large = found.models
    ratio = large.model.flops_per_token() / small.model.flops_per_token()
    assert large.seconds == pytest.approx(small.seconds * ratio)
    assert (small.is_timed, large.is_timed) == (True, False)
    assert found.basis == "from timed steps of 1 of 2 models, the others estimated from FLOPs"


def test_a_model_whose_steps_would_not_fit_is_not_started(data, monkeypatch):
    def start(*_):
        raise AssertionError("a step was timed")

    monkeypatch.setattr(module, "_step_seconds", start)
    monkeypatch.setattr("expertp.training.speed.product_speed", lambda _: 1e6)
    (found,) = forecast([run := tiny_run(data, train={"steps": 12, "eval_every": 0})], open_dataset(data)).models
    assert not found.is_timed
    assert found.seconds == pytest.approx(run.flops / (module.PRODUCT_SHARE * 1e6))


def test_a_forecast_leaves_threads_as_they_were(data):
    import torch

    before = torch.get_num_threads()
    forecast(unique_runs(expand(tiny_study(data)))[:1], open_dataset(data))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("model", "said"),
    [({"vocab_size": 8}, "vocab_size"), ({"n_embd": 4096, "n_exp": 4096, "n_act": 2048}, "GiB, but this machine has")],
)
def test_what_cannot_be_trained_is_not_timed_either(data, model, said):
    with pytest.raises(InputError, match=said):
        forecast([tiny_run(data, model=model)], open_dataset(data))
