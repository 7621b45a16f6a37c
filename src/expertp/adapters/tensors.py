"""Tensors that may be sharded: their whole values, and writing into them."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the whole value of a tensor; all ranks must call this for a sharded tensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def write_(tensor: Tensor, value: Tensor) -> None:
    """Copy a whole value, which is equal on all ranks, into a tensor or into its shards."""
    if isinstance(tensor, DTensor):
        value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.copy_(value)
