"""Memory, time and the search among layouts."""

from pathlib import Path

import pytest

from expertp.capacity.anatomy import anatomy
from expertp.capacity.devices import DEVICES, EFFICIENCY, Device, find_device
from expertp.capacity.estimate import estimate
from expertp.capacity.job import JobSpec, WorkSpec
from expertp.capacity.layout import Layout
from expertp.capacity.search import Question, fitting, layouts, smallest
from expertp.errors import InputError
from expertp.spec import ModelSpec

# About as large as Mixtral 8x7B.
LARGE = ModelSpec(n_embd=4096, n_layer=32, n_exp=8, n_act=2, alpha_ffn=5.25, context=4096)
H100 = DEVICES["h100"]


def job(**work: object) -> JobSpec:
    return JobSpec(model=LARGE, train=WorkSpec(**{"batch_tokens": 1024 * 4096, **work}))


def test_the_state_of_all_devices_is_16_bytes_per_parameter() -> None:
    for layout in (Layout(8), Layout(64, experts=8), Layout(64, experts=4), Layout(256)):
        found = estimate(job(), layout, H100)
        assert found.parameters == LARGE.counts().total
        assert found.memory.state * layout.devices == pytest.approx(16 * found.parameters, rel=1e-3)
        assert found.memory.optimizer == 2 * found.memory.weights == 2 * found.memory.gradients
    twice = estimate(job(), Layout(16, replicas=2), H100).memory
    assert twice.state == estimate(job(), Layout(8), H100).memory.state


def test_recomputation_trades_memory_for_flops() -> None:
    kept, recomputed = (estimate(job(), Layout(64, recompute=again), H100) for again in (False, True))
    assert kept.memory == recomputed.memory
    tokens = 4096
    inputs = 4 * LARGE.n_embd * LARGE.n_layer * tokens
    one_block = tokens * anatomy(job()).blocks[0].kept
    root = tokens * anatomy(job()).kept
    assert kept.memory.activations == LARGE.n_layer * one_block + root
    assert kept.memory.recomputed == inputs + one_block + root
    assert kept.bytes_per_device - recomputed.bytes_per_device == kept.memory.activations - kept.memory.recomputed
    assert kept.recomputed_flops == 0
    assert recomputed.flops == kept.flops == 1024 * 4096 * LARGE.flops_per_token()
    assert 0.3 < recomputed.recomputed_flops / kept.flops < 1 / 3


def test_time_is_between_perfect_overlap_and_none() -> None:
    found = estimate(job(steps=10), Layout(64, experts=8), H100, efficiency=0.5)
    compute = found.flops / (64 * 989e12 * 0.5)
    exchange = sum(each.seconds for each in found.transfers if each.kind == "all-to-all")
    others = sum(each.seconds for each in found.transfers if each.kind != "all-to-all")
    assert found.compute_seconds == pytest.approx(compute)
    assert exchange > 0
    assert found.overlapped_seconds == pytest.approx(max(compute + exchange, others))
    assert found.serial_seconds == pytest.approx(compute + exchange + others)
    assert found.tokens == 10 * 1024 * 4096
    assert found.device_hours(7.2) == pytest.approx(10 * 7.2 * 64 / 3600)
    assert estimate(job(), Layout(64), H100).device_hours(1.0) is None


def test_what_took_the_estimated_hours_had_the_stated_efficiency() -> None:
    found = estimate(job(steps=10), Layout(64), H100, efficiency=0.4)
    hours = found.device_hours(found.compute_seconds)
    assert hours is not None
    assert found.implied(hours).efficiency == pytest.approx(0.4)
    assert found.implied(hours).without_scores < 0.4
    with pytest.raises(InputError, match="need a token budget"):
        estimate(job(), Layout(64), H100).implied(1.0)


def test_a_large_model_does_not_fit_one_node_and_the_smallest_layout_is_found() -> None:
    question = Question(job(), H100, EFFICIENCY)
    assert not estimate(job(), Layout(8), H100).fits
    assert fitting(question, 8) == []
    least = smallest(question)
    assert least is not None
    assert least.fits
    assert least.layout.devices > 8
    assert fitting(question, least.layout.devices // 2) == []
    assert all(each.serial_seconds >= least.serial_seconds for each in fitting(question, least.layout.devices))


def test_nothing_fits_where_the_batch_cannot_be_shared() -> None:
    assert smallest(Question(job(batch_tokens=8 * 4096), H100, EFFICIENCY)) is None


def test_layouts_are_those_that_a_job_can_have() -> None:
    found = set(layouts(job(), 4))
    assert Layout(4) in found
    assert {(each.replicas, each.experts) for each in found} == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)}
    assert all(each.experts <= 8 for each in layouts(job(), 64))


def test_one_device_gathers_and_sends_nothing() -> None:
    small = JobSpec(model=LARGE.replace(n_embd=256, n_layer=2), train=WorkSpec(batch_tokens=4096, dtype="float32"))
    found = estimate(small, Layout(1), H100)
    assert found.transfers == ()
    assert found.memory.gathered == 0
    assert found.serial_seconds == found.compute_seconds


def test_devices_come_from_the_table_or_a_file(tmp_path: Path) -> None:
    assert find_device("h100").peak("float32") == 67e12
    file = tmp_path / "own.yaml"
    file.write_text("bfloat16: 100\nfloat32: 50\nmemory: 16\nlink: 10\nnetwork: 1\n")
    assert find_device(str(file)) == Device(bfloat16=100, float32=50, memory=16, link=10, network=1)
    with pytest.raises(InputError, match="unknown device 'h10'; did you mean 'h100'"):
        find_device("h10")
    with pytest.raises(InputError, match="no speed in float64"):
        H100.peak("float64")
