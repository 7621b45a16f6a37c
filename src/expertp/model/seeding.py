"""Random values of parameters, which depend on a seed and the name only."""

import hashlib
import math

import torch
from torch import Tensor

from expertp.model.sharded import own_part

# Random numbers that are drawn at once: 16 MiB.
DRAWN_AT_ONCE = 2**22


def generator_of(seed: int, name: str) -> torch.Generator:
    """Return a generator whose numbers depend on the seed and the name only, not on other parameters.

    >>> torch.rand(1, generator=generator_of(0, "a")) == torch.rand(1, generator=generator_of(0, "a"))
    tensor([True])
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


@torch.no_grad()
def draw_normal_(tensor: Tensor, std: float, seed: int, name: str) -> None:
    """Fill a tensor, or this rank's part of it, with N(0, std^2), drawn in float32 for a seed and a name."""
    part, place = own_part(tensor)
    fill_part_(part, place, tensor.shape, std, generator_of(seed, name))


def fill_part_(
    part: Tensor, place: tuple[slice, ...], shape: torch.Size, std: float, generator: torch.Generator
) -> None:
    """Fill the part of a tensor that is at `place` with the numbers that the whole tensor would have there.

    Where a row has a multiple of 16 numbers, torch draws the same numbers row by row as at once, so that no rank needs
    memory for the whole tensor.
    """
    row = math.prod(shape[1:])
    rows = shape[0] if row % 16 else max(1, DRAWN_AT_ONCE // row)
    own_rows, *inner = place
    done = 0
    for start in range(0, own_rows.stop, rows):
        drawn = torch.randn(min(rows, shape[0] - start), *shape[1:], generator=generator)
        own = drawn[slice(max(own_rows.start - start, 0), own_rows.stop - start), *inner]
        part[done : done + len(own)] = std * own
        done += len(own)
