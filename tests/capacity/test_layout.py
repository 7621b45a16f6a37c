"""Bytes of collectives, against FSDP2 itself: with torch's fake processes, one process sees the collectives of many."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from expertp.capacity.anatomy import anatomy
from expertp.capacity.devices import DEVICES
from expertp.capacity.job import JobSpec, WorkSpec
from expertp.capacity.layout import (
    Group,
    Layout,
    check_layout,
    exchanged_bytes,
    held,
    micro_batch_tokens,
    transfers,
    why_impossible,
)
from expertp.errors import InputError
from expertp.model.transformer import MoETransformer
from expertp.plan import plan
from expertp.spec import BaseHPs, Dtype, ModelSpec, ParallelSpec
from expertp.training.parallel import shard_
from expertp.training.ranks import Ranks

# Nothing is divisible by 4 but the experts and the width: every other tensor is padded.
MODEL = ModelSpec(
    n_embd=36, n_layer=2, d_head=12, n_exp=6, n_act=2, alpha_ffn=0.5, vocab_size=61, context=14, linear_bias=True
)
H100 = DEVICES["h100"]
FORWARD = plan(MODEL, MODEL, BaseHPs(lr=0.01)).forward
KINDS = {"_allgather_base_": "all-gather", "_reduce_scatter_base_": "reduce-scatter", "allreduce_": "all-reduce"}


class Counting(TorchDispatchMode):
    """Count the bytes of the buffers of collectives by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function).split(".")
        if name[0] == "c10d":
            buffer = {"_allgather_base_": args[0], "_reduce_scatter_base_": args[1]}.get(name[1], args[0])
            for tensor in buffer if isinstance(buffer, list) else [buffer]:
                self.bytes[KINDS[name[1]]] += tensor.nbytes
        return function(*args, **(kwargs or {}))


@pytest.fixture
def processes(request: pytest.FixtureRequest) -> Iterator[int]:
    """Pretend to be the first of several processes, whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=request.param, store=FakeStore())
    yield request.param
    dist.destroy_process_group()


def exchange_as_if_alike(monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], list[tuple[int, int]]]:
    """Let every process of a group send what this one sends; count the bytes of inputs, and the visits of layers."""
    found: Counter[str] = Counter()
    visits = []

    def exchange(out: Tensor, rows: Tensor, *counts: object, group: object) -> None:
        found["all-to-all"] += rows.nbytes
        if counts:
            out.normal_()
        else:  # the numbers of visits, by process and expert
            out.copy_(rows[:1].expand_as(out))
            visits.append((int(rows.sum()), int(out.sum())))

    monkeypatch.setattr(dist, "all_to_all_single", exchange)
    return found, visits


@pytest.mark.parametrize(
    ("processes", "replicas", "experts", "dtype", "recompute"),
    [
        (4, 1, 1, "float32", False),
        (4, 1, 1, "bfloat16", True),
        (12, 1, 1, "bfloat16", False),  # more processes than experts
        (8, 2, 1, "float32", True),
        (4, 4, 1, "float32", False),
        (6, 1, 3, "bfloat16", True),
        (12, 2, 3, "float32", False),
        (6, 1, 6, "bfloat16", False),  # every process has its experts for itself
    ],
    indirect=["processes"],
)
def test_the_bytes_of_a_step_are_those_of_a_run(
    processes: int, replicas: int, experts: int, dtype: Dtype, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(processes, replicas, experts, recompute)
    work = WorkSpec(dtype=dtype, batch_tokens=processes * MODEL.context, micro_batch=1)
    job = JobSpec(model=MODEL, train=work)
    with torch.device("meta"):
        model = MoETransformer(MODEL, FORWARD, backend="fused", activation_checkpointing=recompute)
    shard_(model, ParallelSpec(replicas=replicas, experts=experts), Ranks(rank=0, size=processes), "cpu", dtype)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter.to_local(), std=0.02)  # type: ignore[attr-defined]
    for router in model.routers():
        router.bias.zero_()
    exchanged, visits = exchange_as_if_alike(monkeypatch)
    counting = Counting()
    tokens = torch.arange(MODEL.context)[None]
    with counting:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            out = model(tokens, tokens)
        out.loss.backward()
    expected: Counter[str] = Counter()
    for each in transfers(anatomy(job), job, layout, H100):
        expected[each.kind] += each.buffer if each.what not in ("loss and loads", "visits of experts") else 0
    expected["all-to-all"] = sum(exchanged_bytes(job, layout, *rows) for rows in visits[: MODEL.n_layer])
    assert counting.bytes + exchanged == +expected
    local = sum(parameter.to_local().numel() for parameter in model.parameters())  # type: ignore[attr-defined]
    assert local == sum(times * held(weight, layout) for weight, times in anatomy(job).weights())


def test_spread_experts_are_gathered_among_fewer_devices_and_visits_are_exchanged() -> None:
    job = JobSpec(model=MODEL, train=WorkSpec(batch_tokens=6 * MODEL.context, dtype="float32"))

    def by_name(layout: Layout) -> dict[tuple[str, str], Any]:
        check_layout(layout, job)
        return {(each.kind, each.what): each for each in transfers(anatomy(job), job, layout, H100)}

    together, spread, apart = (by_name(Layout(6, experts=experts)) for experts in (1, 3, 6))
    assert together["all-gather", "weights"] == spread["all-gather", "weights"]
    one_layer = 4 * 2 * 36 * 18 * 6  # bytes of all experts of a layer
    assert together["all-gather", "experts"].buffer == 2 * 2 * one_layer
    assert spread["all-gather", "experts"].buffer == 2 * 2 * one_layer // 3
    assert ("all-to-all", "visits of experts") not in together
    assert ("all-gather", "experts") not in apart  # a device has its experts for itself
    visits = MODEL.context * MODEL.n_act
    rows = 2 * 2 * visits * 36 * 4 + 2 * visits * 4 + 8 * 6  # forward and backward, there and back; gates; counts
    assert spread["all-to-all", "visits of experts"].buffer == MODEL.n_layer * rows
    assert spread["all-to-all", "visits of experts"].sent == round(MODEL.n_layer * rows * 2 / 3)


def test_visits_are_exchanged_as_the_loads_say() -> None:
    job = JobSpec(model=MODEL, train=WorkSpec(dtype="bfloat16"))
    there, back = 28, 40
    bytes_of_row = 2 * MODEL.n_embd
    assert exchanged_bytes(job, Layout(2, experts=2), there, back) == 2 * bytes_of_row * 68 + 4 * 68 + 8 * 6
    again = Layout(2, experts=2, recompute=True)
    assert exchanged_bytes(job, again, there, back) == 3 * bytes_of_row * 68 + 4 * (2 * there + back) + 2 * 8 * 6


@pytest.mark.parametrize(
    ("size", "stride", "gigabytes"),
    [(8, 1, 450), (4, 2, 450), (64, 1, 400), (16, 4, 100), (16, 8, 50), (2, 64, 50)],
)
def test_a_ring_is_as_fast_as_its_slowest_link(size: int, stride: int, gigabytes: float) -> None:
    assert Group.of(size, stride, H100).bytes_per_second(H100) == gigabytes * 1e9


@pytest.mark.parametrize(
    ("layout", "work", "message"),
    [
        (Layout(8, replicas=3), {}, "8 devices cannot be divided into parallel.replicas=3"),
        (Layout(8, experts=3), {}, "a replica of 8 devices cannot be divided by parallel.experts=3"),
        (Layout(8, experts=4), {}, "6 experts cannot be divided by parallel.experts=4"),
        (Layout(3), {}, "a step of 512 sequences in micro-batches of 1 cannot be shared by 3 devices; change"),
        (Layout(8), {"micro_batch": 128}, "a step of 512 sequences in micro-batches of 128 cannot be shared by 8"),
    ],
)
def test_layouts_that_are_impossible(layout: Layout, work: dict[str, Any], message: str) -> None:
    job = JobSpec(model=MODEL, train=WorkSpec(**work))
    with pytest.raises(InputError) as error:
        check_layout(layout, job)
    assert str(error.value).startswith(message)


def test_a_dense_model_has_no_experts_to_spread() -> None:
    dense = JobSpec(model=MODEL.dense_twin())
    assert why_impossible(Layout(8, experts=2), dense) == "parallel.experts=2, but the model has no experts; set 1"
    assert why_impossible(Layout(8), dense) is None


def test_without_a_micro_batch_a_device_takes_its_whole_share() -> None:
    job = JobSpec(model=MODEL, train=WorkSpec(batch_tokens=32 * MODEL.context, micro_batch=None))
    assert micro_batch_tokens(Layout(8), job) == 4 * MODEL.context
