"""estimate(job, layout, device) -> Estimate: memory by part, transfers, FLOPs, time and device-hours."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from expertp.capacity.anatomy import Anatomy, anatomy
from expertp.capacity.devices import EFFICIENCY, Device
from expertp.capacity.job import JobSpec
from expertp.capacity.layout import (
    Layout,
    Transfer,
    check_layout,
    held,
    micro_batch_tokens,
    padded,
    transfers,
)
from expertp.errors import InputError


@dataclass(frozen=True)
class Memory:
    """Bytes on the device that holds most.

    Args:
        weights: its share of the weights.
        gradients: its share of the gradients.
        optimizer: its share of Adam's two moments.
        gathered: weights that are gathered at a time: the root, and two blocks.
        reduced: gradients of one block and the root before they are scattered.
        activations: what the forward pass keeps, all of it.
        recomputed: the same if blocks are recomputed: the inputs of blocks, and one block in full.
        loss: logits of the tokens that are processed at a time.
    """

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    reduced: int
    activations: int
    recomputed: int
    loss: int

    def total(self, recompute: bool) -> int:
        """Return the sum of all parts, with or without recomputation."""
        return self.state + self.gathered + self.reduced + self.loss + self._kept(recompute)

    @property
    def state(self) -> int:
        """Weights, gradients and optimizer."""
        return self.weights + self.gradients + self.optimizer

    def _kept(self, recompute: bool) -> int:
        return self.recomputed if recompute else self.activations


@dataclass(frozen=True)
class Estimate:
    """What a job needs in a layout.

    Args:
        job: the job.
        layout: its layout.
        device: its devices.
        efficiency: share of the peak that matrix products reach.
        parameters: total number of parameters.
        memory: bytes per device.
        transfers: bytes per device and step between devices, and the time at the speed of the links.
        flops: FLOPs of a step on all devices, without recomputation.
        recomputed_flops: FLOPs of a step that recomputation adds.
        tokens: token budget of the whole job; None: not decided.
        is_exact: whether kept activations are exact; those of models of transformers are estimates.
    """

    job: JobSpec
    layout: Layout
    device: Device
    efficiency: float
    parameters: int
    memory: Memory
    transfers: tuple[Transfer, ...]
    flops: int
    recomputed_flops: int
    tokens: int | None
    is_exact: bool

    @property
    def bytes_per_device(self) -> int:
        """Bytes on the device that holds most."""
        return self.memory.total(self.layout.recompute)

    @property
    def fits(self) -> bool:
        """Whether the job fits into the memory of the devices."""
        return self.bytes_per_device <= self.device.usable_bytes

    @cached_property
    def compute_seconds(self) -> float:
        """Seconds of matrix products in a step."""
        speed = self.layout.devices * self.device.peak(self.job.dtype) * self.efficiency
        return (self.flops + self.recomputed_flops) / speed

    @property
    def overlapped_seconds(self) -> float:
        """Seconds of a step if weights and gradients move while matrix products run; visits never do."""
        exchange = sum(each.seconds for each in self.transfers if each.kind == "all-to-all")
        rest = sum(each.seconds for each in self.transfers) - exchange
        return max(self.compute_seconds + exchange, rest)

    @property
    def serial_seconds(self) -> float:
        """Seconds of a step if nothing overlaps."""
        return self.compute_seconds + sum(each.seconds for each in self.transfers)

    def device_hours(self, step_seconds: float) -> float | None:
        """Return the device-hours of the token budget."""
        if self.tokens is None:
            return None
        return self.tokens / self.job.step_tokens * step_seconds * self.layout.devices / 3600

    def implied(self, device_hours: float) -> "Implied":
        """Return the share of the peak at which the token budget takes some device-hours; recomputation is not work."""
        if self.tokens is None:
            raise InputError("device-hours need a token budget; give --tokens or train.steps")
        per_token = self.tokens / (3600 * device_hours * self.device.peak(self.job.dtype))
        model = self.job.model
        return Implied(per_token * model.flops_per_token(), per_token * model.replace(context=1).flops_per_token())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are valid JSON."""
        counts = self.job.model.counts()
        return {
            "job": self.job.to_dict(),
            "layout": asdict(self.layout),
            "device": self.device.to_dict(),
            "parameters": {"total": counts.total, "active": counts.active},
            "memory": {
                **asdict(self.memory),
                "state": self.memory.state,
                "total": self.bytes_per_device,
                "total_without_recomputation": self.memory.total(recompute=False),
                "total_with_recomputation": self.memory.total(recompute=True),
                "usable": round(self.device.usable_bytes),
                "activations_are_exact": self.is_exact,
            },
            "fits": self.fits,
            "transfers": [asdict(each) for each in self.transfers],
            "flops_per_step": self.flops,
            "recomputed_flops_per_step": self.recomputed_flops,
            "efficiency": self.efficiency,
            "seconds_per_step": {
                "compute": self.compute_seconds,
                "overlapped": self.overlapped_seconds,
                "serial": self.serial_seconds,
            },
            "tokens": self.tokens,
            "device_hours": {
                "overlapped": self.device_hours(self.overlapped_seconds),
                "serial": self.device_hours(self.serial_seconds),
            },
        }


@dataclass(frozen=True)
class Implied:
    """The share of the peak that measured device-hours imply.

    Args:
        efficiency: with attention scores and values, as if there were no causal mask.
        without_scores: counting weights only, which is how most reports count.
    """

    efficiency: float
    without_scores: float


def estimate(
    job: JobSpec,
    layout: Layout,
    device: Device,
    *,
    efficiency: float = EFFICIENCY,
    tokens: int | None = None,
    model: Anatomy | None = None,
) -> Estimate:
    """Estimate what a job needs in a layout.

    Args:
        job: the job.
        layout: how it is divided among devices.
        device: the kind of devices.
        efficiency: share of the peak that matrix products reach.
        tokens: token budget; None: that of the job.
        model: anatomy of the job's model, where it is known already.
    """
    check_layout(layout, job)
    device.peak(job.dtype)  # an error for a dtype that the table does not have
    model = model or anatomy(job)
    flops = job.step_tokens * model.flops
    return Estimate(
        job=job,
        layout=layout,
        device=device,
        efficiency=efficiency,
        parameters=model.numel,
        memory=memory(model, job, layout),
        transfers=transfers(model, job, layout, device),
        flops=flops,
        recomputed_flops=_recomputed_flops(job, flops) if layout.recompute else 0,
        tokens=tokens or job.tokens,
        is_exact=model.is_exact,
    )


def memory(model: Anatomy, job: JobSpec, layout: Layout) -> Memory:
    """Return the bytes on the device that holds most, by part."""
    wide, compute, tokens = job.weight_bytes, job.compute_bytes, micro_batch_tokens(layout, job)
    root = wide * sum(padded(each, layout) for each in model.root)
    share = wide * sum(times * held(each, layout) for each, times in model.weights())
    is_sharded = layout.devices > 1  # one device alone keeps the rounded copies of all weights, which autocast makes
    entries = [[(padded(w, layout), w.kind == "wide") for w in block.weights] for block in model.blocks]
    whole = [sum(numel * (wide if is_wide else compute) for numel, is_wide in block) for block in entries]
    numel = [sum(each for each, _ in block) for block in entries]
    visits = compute * job.model.n_act * job.model.n_embd if layout.experts > 1 else 0
    kept = [tokens * (block.kept + visits) for block in model.blocks]
    counts = [block.count for block in model.blocks]
    inputs = tokens * wide * job.model.n_embd * sum(counts)
    logit_tokens = min(tokens, model.logit_tokens or tokens)
    return Memory(
        weights=share,
        gradients=share,
        optimizer=2 * share,
        gathered=root + 2 * max(whole) if is_sharded else _sum(whole, counts) if compute < wide else 0,
        reduced=root + (max(w + wide * n for w, n in zip(whole, numel, strict=True)) if is_sharded else 0),
        activations=_sum(kept, counts) + tokens * model.kept,
        recomputed=inputs + max(kept) + tokens * model.kept,
        loss=logit_tokens * model.logits,
    )


def _sum(sizes: Sequence[int], counts: Sequence[int]) -> int:
    return sum(size * times for size, times in zip(sizes, counts, strict=True))


def _recomputed_flops(job: JobSpec, flops: int) -> int:
    """Return the FLOPs of one more forward pass through the blocks: all but the unembedding."""
    unembedding = 6 * job.model.n_embd * job.model.vocab_size * job.step_tokens
    return (flops - unembedding) // 3
