"""Tensors that may be sharded: their whole values, the parts of this rank, and writing into them."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the whole value of a tensor; all ranks must call this for a sharded tensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds, which shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
    """Return the part of a tensor that this rank holds, which shares its memory, and the place of the part."""
    if not isinstance(tensor, DTensor):
        return tensor, tuple(slice(0, size) for size in tensor.shape)
    (chunk,) = tensor.__create_chunk_list__()
    place = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
    return own(tensor), place


@torch.no_grad()
def fill_(tensor: Tensor, value: float) -> None:
    """Fill a tensor, or its shards, with a value."""
    own(tensor).fill_(value)


@torch.no_grad()
def write_(tensor: Tensor, value: Tensor) -> None:
    """Copy a whole value, which is equal on all ranks, into a tensor or into its shards."""
    if isinstance(tensor, DTensor):
        value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.copy_(value)
