"""Bytes of collectives, against FSDP2 itself: with torch's fake processes, one process sees the collectives of many."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from capacity.models import reference
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
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
from expertp.model.experts import Experts
from expertp.spec import ModelSpec

# Nothing is divisible by 4 but the experts and the width: every other tensor is padded.
MODEL = ModelSpec(
    n_embd=36, n_layer=2, d_head=12, n_exp=6, n_act=2, alpha_ffn=0.5, vocab_size=61, context=14, linear_bias=True
)
H100 = DEVICES["h100"]
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


def shard(model: nn.Module, layout: Layout, dtype: str) -> None:
    """Shard a reference model as a run does: products rounded before they are gathered, few experts along the width."""
    shape, names = (layout.replicas, layout.shards), ("replicas", "shards")
    mesh = (
        init_device_mesh("cpu", shape, mesh_dim_names=names)
        if layout.replicas > 1
        else init_device_mesh("cpu", shape[1:])
    )

    def dimension(parameter: nn.Parameter) -> Shard | None:
        is_few = parameter.ndim == 3 and parameter.shape[0] < layout.shards and parameter.shape[1] % layout.shards == 0
        return Shard(1) if is_few else None

    rounded = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.blocks:  # type: ignore[union-attr]
        products = [module for module in block.modules() if isinstance(module, nn.Linear | Experts)]
        if dtype == "bfloat16":
            fully_shard(products, mesh=mesh, mp_policy=rounded, shard_placement_fn=dimension)
        fully_shard(block, mesh=mesh, shard_placement_fn=dimension)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


@pytest.mark.parametrize(
    ("processes", "replicas", "dtype", "recompute"),
    [
        (4, 1, "float32", False),
        (4, 1, "bfloat16", True),
        (12, 1, "bfloat16", False),  # more processes than experts
        (8, 2, "float32", True),
        (4, 4, "float32", False),
    ],
    indirect=["processes"],
)
def test_the_bytes_of_a_step_are_those_of_fsdp2(processes: int, replicas: int, dtype: str, recompute: bool) -> None:
    layout = Layout(processes, replicas, recompute=recompute)
    work = WorkSpec(dtype=dtype, batch_tokens=2 * processes * MODEL.context, micro_batch=1)
    job = JobSpec(model=MODEL, train=work)
    model = reference(MODEL, backend="fused", activation_checkpointing=recompute)
    shard(model, layout, dtype)
    counting = Counting()
    tokens = torch.zeros(1, MODEL.context, dtype=torch.int64)
    with counting:
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
                out = model(tokens, tokens)
            out.loss.backward()
    found = transfers(anatomy(job), job, layout, H100)
    expected: Counter[str] = Counter()
    for each in found:
        expected[each.kind] += each.buffer if each.what != "loss and loads" else 0
    assert counting.bytes == +expected
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
