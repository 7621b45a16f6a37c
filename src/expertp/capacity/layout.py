"""Layouts: how a model is divided among devices, and the bytes that its collectives move in a step.

Dense weights are sharded by FSDP2 over the devices of a replica, every tensor along its first dimension, which is
padded to a multiple of the devices. The experts of a layer may first be spread over `experts` devices; each share is
then sharded over the rest of the replica. Blocks are gathered for the forward and for the backward pass of every
micro-batch, the root once; gradients are scattered after every backward pass. Replicas sum their gradients.
"""

from dataclasses import dataclass
from typing import Literal

from expertp.capacity.anatomy import Anatomy, Weight
from expertp.capacity.devices import Device
from expertp.capacity.job import JobSpec
from expertp.errors import InputError

Collective = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]
# Bytes of the number of visits of one expert, which devices exchange before the visits.
COUNT_BYTES = 8
# What all devices sum at every step: the loads, the losses of all micro-batches and requests (to stop, to save), as
# float64.
NUMBER_BYTES, REQUESTS = 8, 2


@dataclass(frozen=True)
class Layout:
    """Devices, and how a job is divided among them.

    Args:
        devices: number of devices.
        replicas: copies of the model.
        experts: devices over which the experts of a layer are spread.
        recompute: recompute blocks in the backward pass.
    """

    devices: int
    replicas: int = 1
    experts: int = 1
    recompute: bool = False

    @property
    def shards(self) -> int:
        """Devices of one replica."""
        return self.devices // self.replicas

    @property
    def expert_shards(self) -> int:
        """Devices of one replica that share one part of the experts."""
        return self.shards // self.experts

    def settings(self) -> str:
        """Return the layout as overrides of a run.

        >>> Layout(64, experts=8).settings()
        'parallel.replicas=1 parallel.experts=8 train.activation_checkpointing=false'
        """
        return (
            f"parallel.replicas={self.replicas} parallel.experts={self.experts} "
            f"train.activation_checkpointing={str(self.recompute).lower()}"
        )


def why_impossible(layout: Layout, job: JobSpec) -> str | None:
    """Return why a job cannot have a layout; None if it can."""
    if layout.devices % layout.replicas:
        return f"{layout.devices} devices cannot be divided into parallel.replicas={layout.replicas}"
    if layout.experts > 1 and not job.model.is_moe:
        return f"parallel.experts={layout.experts}, but the model has no experts; set 1"
    if layout.shards % layout.experts:
        return f"a replica of {layout.shards} devices cannot be divided by parallel.experts={layout.experts}"
    if job.model.n_exp % layout.experts:
        return f"{job.model.n_exp} experts cannot be divided by parallel.experts={layout.experts}"
    pieces = job.sequences if job.train.micro_batch is None else job.sequences // job.train.micro_batch
    if (job.train.micro_batch and job.sequences % job.train.micro_batch) or pieces % layout.devices:
        return (
            f"a step of {job.sequences} sequences in micro-batches of {job.train.micro_batch or 'any size'} cannot be "
            f"shared by {layout.devices} devices; change train.batch_tokens or train.micro_batch"
        )
    return None


def check_layout(layout: Layout, job: JobSpec) -> None:
    """Raise an error for a layout that a job cannot have."""
    if reason := why_impossible(layout, job):
        raise InputError(reason)


def micro_batches(layout: Layout, job: JobSpec) -> int:
    """Return the micro-batches of one device in a step."""
    return 1 if job.train.micro_batch is None else job.sequences // job.train.micro_batch // layout.devices


def micro_batch_tokens(layout: Layout, job: JobSpec) -> int:
    """Return the tokens of one micro-batch of one device."""
    return job.step_tokens // layout.devices // micro_batches(layout, job)


def padded(weight: Weight, layout: Layout) -> int:
    """Return the entries of the gathered weight on one device, with padding.

    Experts are sharded along their second dimension where more devices than experts share them and it divides evenly.

    >>> padded(Weight("norm", (6,), "wide"), Layout(4))
    8
    >>> padded(Weight("up", (4, 16, 8), "expert"), Layout(8, experts=2))
    256
    """
    shards = layout.shards
    first, *rest = weight.shape
    if weight.kind == "expert":
        shards, first = layout.expert_shards, first // layout.experts
        if first < shards and rest[0] % shards == 0:
            return first * weight.numel // weight.shape[0]
    return -(-first // shards) * shards * (weight.numel // weight.shape[0])


def held(weight: Weight, layout: Layout) -> int:
    """Return the entries of a weight that one device holds, with padding."""
    return padded(weight, layout) // (layout.expert_shards if weight.kind == "expert" else layout.shards)


@dataclass(frozen=True)
class Group:
    """Devices that take part in a collective: how many, and how many of them are in one node."""

    size: int
    in_node: int

    @classmethod
    def of(cls, size: int, stride: int, device: Device) -> "Group":
        """Return the group of every `stride`-th device."""
        return cls(size, min(size, max(1, device.node // stride)))

    def bytes_per_second(self, device: Device) -> float:
        """Return how fast a ring moves bytes past one device; all adapters of a node serve the group's rings."""
        if self.size == self.in_node:
            return 1e9 * device.link
        across = 1e9 * device.network * self.in_node
        return across if self.in_node == 1 else min(1e9 * device.link, across)


@dataclass(frozen=True)
class Transfer:
    """The bytes that one kind of collective moves in a step.

    Args:
        kind: kind of collective.
        what: what it moves.
        group: the devices that take part.
        buffer: bytes of the whole buffers, on one device: gathered outputs, inputs that are reduced or exchanged.
        sent: bytes that one device sends to others.
        seconds: time at the speed of the links.
    """

    kind: Collective
    what: str
    group: Group
    buffer: int
    sent: int
    seconds: float


def transfers(model: Anatomy, job: JobSpec, layout: Layout, device: Device) -> tuple[Transfer, ...]:
    """Return all transfers of a step in which experts get equally many visits; those of one device are left out."""
    dense = Group.of(layout.shards, 1, device)
    experts = Group.of(layout.expert_shards, layout.experts, device)
    replicas = Group.of(layout.replicas, layout.shards, device)
    everyone = Group.of(layout.devices, 1, device)
    steps, wide = micro_batches(layout, job), job.weight_bytes
    found = []
    for what, group, is_expert in (("weights", dense, False), ("experts", experts, True)):
        chosen = [(each, times) for each, times in model.weights() if (each.kind == "expert") == is_expert]
        gathered = 2 * sum(times * padded(each, layout) * _gathered_bytes(each, job) for each, times in chosen)
        reduced = wide * sum(times * padded(each, layout) for each, times in chosen)
        if not is_expert:  # the root is gathered once
            gathered -= wide * sum(padded(each, layout) for each in model.root)
        found.append(_ring("all-gather", what, group, steps * gathered, device))
        found.append(_ring("reduce-scatter", f"gradients of {what}", group, steps * reduced, device))
    summed = steps * wide * sum(times * held(each, layout) for each, times in model.weights())
    found.append(_ring("all-reduce", "gradients of replicas", replicas, summed, device))
    numbers = job.model.n_exp * _expert_layers(model) + steps * layout.devices + REQUESTS
    found.append(_ring("all-reduce", "loss and loads", everyone, NUMBER_BYTES * numbers, device))
    if job.model.is_moe:
        found.append(_exchange(model, job, layout, device))
    return tuple(each for each in found if each.group.size > 1 and each.buffer)


def exchanged_bytes(job: JobSpec, layout: Layout, sent_rows: int, received_rows: int) -> int:
    """Return the bytes of the inputs of all exchanges of one layer and micro-batch on one device.

    Rows of visits go to their experts and back, in the forward pass, in the backward pass and in a recomputed forward
    pass; gates go to the experts, and the numbers of visits before them.

    Args:
        job: the job.
        layout: its layout.
        sent_rows: visits of the device's tokens: n_act per token.
        received_rows: visits to the experts of the device, from its whole group; with even loads, equally many.
    """
    forward_passes = 2 if layout.recompute else 1
    rows = (forward_passes + 1) * job.compute_bytes * job.model.n_embd * (sent_rows + received_rows)
    gates = job.weight_bytes * (forward_passes * sent_rows + received_rows)  # their gradients return
    return rows + gates + forward_passes * COUNT_BYTES * job.model.n_exp


def _exchange(model: Anatomy, job: JobSpec, layout: Layout, device: Device) -> Transfer:
    group = Group.of(layout.experts, 1, device)
    rows = micro_batch_tokens(layout, job) * job.model.n_act
    whole = micro_batches(layout, job) * _expert_layers(model) * exchanged_bytes(job, layout, rows, rows)
    away = whole * (group.size - group.in_node) / group.size
    near = whole * (group.in_node - 1) / group.size
    seconds = max(near / (1e9 * device.link), away / (1e9 * device.network))
    return Transfer("all-to-all", "visits of experts", group, whole, round(near + away), seconds)


def _expert_layers(model: Anatomy) -> int:
    return sum(block.count for block in model.blocks if any(each.kind == "expert" for each in block.weights))


def _gathered_bytes(weight: Weight, job: JobSpec) -> int:
    return job.weight_bytes if weight.kind == "wide" else job.compute_bytes


def _ring(kind: Collective, what: str, group: Group, buffer: int, device: Device) -> Transfer:
    """Return a collective that sends its buffer once around a ring; an all-reduce sends it twice."""
    sent = buffer * (group.size - 1) // group.size * (2 if kind == "all-reduce" else 1)
    return Transfer(kind, what, group, buffer, sent, sent / group.bytes_per_second(device))
