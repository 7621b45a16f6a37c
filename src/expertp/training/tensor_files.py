"""Tensors in safetensors files: whole, as one process writes them, or in parts, as ranks write them.

Ranks write by torch's distributed checkpoint, one file per rank and kind of tensor; the header of a file says where its
parts belong. Reading does not depend on who has written: every rank reads what overlaps with its own parts.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from expertp.errors import DamagedError, one_line
from expertp.model.sharded import own_part
from expertp.training.checkpoint_names import WHOLE_FILES
from expertp.training.ranks import Ranks
from expertp.util.files import sync
from expertp.util.machine import is_out_of_memory

# With square experts (alpha_ffn = 1) a transposed layout cannot be detected, so the layout is stored with the weights.
# One entry only: safetensors writes several in any order, and equal checkpoints would have unequal bytes.
LAYOUT = "experts.up is [expert, in, hidden], experts.down [expert, hidden, out]"
# Where torch's distributed checkpoint says in the header of a file at which offsets its parts begin.
PARTS_KEY, OFFSETS_KEY = "DCP_SHARDING_INFO", "saved_offsets"


def write_tensors(
    folder: Path, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], ranks: Ranks
) -> list[Path]:
    """Write tensors to disk, every rank its own parts; return the files of this rank. If one rank fails, all do."""
    if not ranks.is_alone:
        _write_parts(folder, weights, optimizer)
        return sorted(folder.glob(f"shard-{ranks.rank + 1:05d}-*"))
    for name, values in zip(WHOLE_FILES, (weights, optimizer), strict=True):
        save_file(dict(values), folder / name, metadata={"layout": LAYOUT})
        # safetensors creates files that only the owner can read
        (folder / name).chmod(folder.stat().st_mode & 0o666)
        sync(folder / name)
    return [folder / name for name in WHOLE_FILES]


def _write_parts(folder: Path, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    kinds = {**dict.fromkeys(weights, 1), **dict.fromkeys(optimizer, 2)}
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=kinds, save_distributed=True)
    try:
        save({**weights, **optimizer}, storage_writer=writer)
    except CheckpointException as error:  # all ranks get the errors of all ranks
        first: BaseException = next(iter(error.failures.values()))[0]
        raise first if isinstance(first, OSError | SafetensorError) else RuntimeError(str(first)) from None


@dataclass(frozen=True)
class TensorFiles:
    """Files that together hold some tensors."""

    paths: tuple[Path, ...]

    def shapes(self) -> dict[str, torch.Size]:
        """Return the shapes of all tensors, by name."""
        shapes: dict[str, list[int]] = {}
        for name, place, _ in self._parts():
            sizes = shapes.setdefault(name, [0] * len(place))
            shapes[name] = [max(size, part.stop) for size, part in zip(sizes, place, strict=True)]
        return {name: torch.Size(sizes) for name, sizes in shapes.items()}

    def read_into(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill tensors, or the parts of them that this rank holds; a tensor that the files do not have is damage."""
        with torch.no_grad():
            own = {name: own_part(tensor) for name, tensor in tensors.items()}
            missing = {name: part.numel() for name, (part, _) in own.items()}
            for name, there, stored in self._parts(tensors.keys()):
                part, here = own[name]
                common = [slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(here, there, strict=True)]
                if any(each.start >= each.stop for each in common):
                    continue
                values = stored[_inside(common, there)]
                part[_inside(common, here)] = values.to(part.device)
                missing[name] -= values.numel()
        if incomplete := [name for name, count in missing.items() if count]:
            raise DamagedError(f"{incomplete[0]} is incomplete")

    def whole(self, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Return whole tensors on the CPU (default: all)."""
        shapes = self.shapes()
        wanted = shapes.keys() if names is None else set(names)
        tensors: dict[str, Tensor] = {}
        for name, _, stored in self._parts(wanted):
            if name not in tensors:
                tensors[name] = torch.empty(shapes[name], dtype=stored[_nothing(shapes[name])].dtype)
        self.read_into(tensors)
        return tensors

    def _parts(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, tuple[slice, ...], Any]]:
        """Yield the name, the place and the values of every part; values are read when they are indexed."""
        wanted = None if names is None else set(names)
        for path in self.paths:
            with _damage_of(path), safe_open(path, framework="pt") as file:
                starts = json.loads((file.metadata() or {}).get(PARTS_KEY, "{}"))
                for name in sorted(file.keys()):
                    if wanted is None or name in wanted:
                        stored = file.get_slice(name)
                        shape = stored.get_shape()
                        start = starts[name][OFFSETS_KEY] if name in starts else [0] * len(shape)
                        place = tuple(slice(at, at + size) for at, size in zip(start, shape, strict=True))
                        yield name, place, stored if shape else _Scalar(file.get_tensor(name))


class _Scalar:
    """A tensor without dimensions, which safetensors does not slice."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __getitem__(self, place: tuple[slice, ...]) -> Tensor:
        return self.value[place]


def _inside(common: list[slice], place: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return a place relative to the beginning of another one."""
    return tuple(
        slice(each.start - whole.start, each.stop - whole.start) for each, whole in zip(common, place, strict=True)
    )


def _nothing(shape: torch.Size) -> tuple[slice, ...]:
    return tuple(slice(0, min(1, size)) for size in shape)


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    """Raise `DamagedError` for a file that is not safetensors, and `OSError` for one that cannot be read."""
    try:
        yield
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise DamagedError(f"{path.name}: {error}") from None
    except RuntimeError as error:  # torch opens the file, and has the system's error in its text only
        if is_out_of_memory(error):
            raise
        raise OSError(errno.EIO, one_line(str(error)), str(path)) from None
