"""Memory-mapped token shards: the format of `expertp prepare`, nanoGPT's and llm.c's.

Shards are read only. Opening a directory checks file sizes, and hashes up to `FULL_HASH_BYTES`.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expertp.data.manifest import MANIFEST_FILE, PROGRESS_FILE, REMEDY, Manifest, Split
from expertp.data.manifest import content_hash as hash_of_content
from expertp.data.tokenizers import TokenizerIdentity, load_tokenizer
from expertp.errors import DamagedError, InputError
from expertp.util.files import file_sha256
from expertp.util.records import read_record

FULL_HASH_BYTES = 2 * 10**9
HEADER_INTS = 256
HEADER_BYTES = HEADER_INTS * 4
# dtype of the ids by (magic, version) of llm.c's data files
HEADER_DTYPES = {(20240520, 1): "uint16", (20240801, 7): "uint32"}

_OPEN_SHARDS = 256
_SAMPLE_BLOCKS = 64
_SAMPLE_BLOCK_BYTES = 2**16


@dataclass(frozen=True)
class ShardFile:
    """Location of the ids of one shard; `modified_ns` tells a rewritten file from a cached one."""

    path: Path
    dtype: str
    offset_bytes: int
    tokens: int
    modified_ns: int


@dataclass(frozen=True, eq=False)
class TokenShards:
    """One split as a list of shards.

    Attributes:
        files: the shards in order.
    """

    files: tuple[ShardFile, ...]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens per shard."""
        return np.array([file.tokens for file in self.files], dtype=np.int64)

    @property
    def tokens(self) -> int:
        """Number of tokens in all shards."""
        return int(self.lengths.sum())

    def ids(self, shard: int) -> NDArray[np.unsignedinteger[Any]]:
        """Return the memory-mapped ids of one shard."""
        return _map_shard(self.files[shard])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A prepared directory.

    Attributes:
        path: the directory.
        tokenizer: identity of the tokenizer; None for foreign formats, which do not store it.
        dtype: `uint16` or `uint32`.
        content_hash: hash of the tokens, part of the identity of a run.
        train: the train split.
        val: the validation split; may be empty.
    """

    path: Path
    tokenizer: TokenizerIdentity | None
    dtype: str
    content_hash: str
    train: TokenShards
    val: TokenShards

    @property
    def vocab_size(self) -> int | None:
        """Number of ids of the tokenizer; None for foreign formats."""
        return self.tokenizer.vocab_size if self.tokenizer else None


def open_dataset(path: str | Path) -> Dataset:
    """Open and check a directory of token shards; docs/data.md describes the formats."""
    path = Path(path)
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise InputError(f"data directory '{path}' {found}; make one: expertp prepare SOURCE --out {path}")
    if (path / MANIFEST_FILE).exists():
        return _open_prepared(path)
    if (path / PROGRESS_FILE).exists():
        raise InputError(
            f"data directory '{path}' is not finished (it has {PROGRESS_FILE} and no {MANIFEST_FILE}); run the same "
            "'expertp prepare' command again to resume"
        )
    return _open_foreign(path)


def check_vocab(dataset: Dataset, vocab_size: int) -> None:
    """Raise `InputError` if the data has ids of `vocab_size` or above.

    Foreign formats do not store the vocabulary size; for these the largest id of a sample is used.
    """
    if dataset.tokenizer is not None:
        needed = dataset.tokenizer.vocab_size
        what = f"the {dataset.tokenizer.name} tokenizer of '{dataset.path}' has {needed} ids"
    else:
        needed = _largest_id(dataset) + 1
        what = f"the data in '{dataset.path}' has ids up to {needed - 1}"
    if needed > vocab_size:
        raise InputError(
            f"vocab_size {vocab_size} is too small: {what}; "
            f"set the model's vocab_size={padded_vocab_size(needed)} (a multiple of 64) or more"
        )


def padded_vocab_size(vocab_size: int) -> int:
    """Round up to a multiple of 64, for efficient matrix multiplication.

    >>> padded_vocab_size(50257)
    50304
    """
    return -(-vocab_size // 64) * 64


def _open_prepared(path: Path) -> Dataset:
    manifest = read_record(path / MANIFEST_FILE, Manifest, REMEDY)
    splits = (manifest.train, manifest.val)
    if hash_of_content(manifest.dtype, manifest.tokenizer, *splits) != manifest.content_hash:
        raise DamagedError(f"{path / MANIFEST_FILE}: damaged (its content_hash is not that of its fields); {REMEDY}")
    width = np.dtype(manifest.dtype).itemsize
    all_bytes = sum(split.tokens for split in splits) * width
    train, val = (open_split(path, split, manifest.dtype, all_bytes <= FULL_HASH_BYTES) for split in splits)
    if manifest.tokenizer.name == "bpe":
        load_tokenizer(manifest.tokenizer, path)
    return Dataset(path, manifest.tokenizer, manifest.dtype, manifest.content_hash, train, val)


def open_split(path: Path, split: Split, dtype: str, is_hashed: bool) -> TokenShards:
    """Open the shards of a split; raise `DamagedError` if one is missing or is not the file that was written."""
    files, width = [], np.dtype(dtype).itemsize
    if split.tokens != sum(shard.tokens for shard in split.shards):
        raise DamagedError(f"{path}: damaged (a split and its shards have different numbers of tokens); {REMEDY}")
    for shard in split.shards:
        file = path / shard.name
        if not file.is_file():
            found = "not a regular file" if file.exists() else "missing"
            raise DamagedError(f"corrupt shard {file}: it is {found}; delete '{path}' and prepare it again")
        size = file.stat().st_size
        if size != shard.tokens * width:
            raise DamagedError(
                f"corrupt shard {file}: it has {size} bytes, the manifest says {shard.tokens * width}; "
                f"delete '{path}' and prepare it again"
            )
        if is_hashed and file_sha256(file) != shard.sha256:
            raise DamagedError(
                f"corrupt shard {file}: its SHA-256 is not the manifest's; delete '{path}' and prepare it again"
            )
        files.append(_shard_file(file, dtype, 0, shard.tokens))
    return TokenShards(tuple(files))


def _open_foreign(path: Path) -> Dataset:
    train, val = (_foreign_files(path, split) for split in ("train", "val"))
    if not train:
        raise InputError(
            f"no token shards in '{path}': no {MANIFEST_FILE}, no train.bin and no *_train_*.bin; "
            f"make them: expertp prepare SOURCE --out {path}"
        )
    if not any(file.tokens for file in train):
        raise DamagedError(f"corrupt shard {train[0].path}: it has no tokens; copy or write it again")
    dtypes = {file.dtype for file in train + val}
    if len(dtypes) > 1:
        raise InputError(f"'{path}' mixes {' and '.join(sorted(dtypes))} shards; keep one dtype per directory")
    return Dataset(path, None, dtypes.pop(), _foreign_hash(train, val), TokenShards(train), TokenShards(val))


def _foreign_files(path: Path, split: str) -> tuple[ShardFile, ...]:
    raw = path / f"{split}.bin"
    if raw.exists():
        return (_read_header(raw) or _raw_file(raw),)
    names = sorted({*path.glob(f"*_{split}_*.bin"), *path.glob(f"*_{split}.bin")})
    files = [(name, _read_header(name)) for name in names]
    for name, file in files:
        if file is None:
            raise InputError(
                f"{name} has no llm.c header (256 int32, first two {' or '.join(map(str, HEADER_DTYPES))}); "
                f"rename it to {split}.bin if it has raw uint16 ids (nanoGPT)"
            )
    return tuple(file for _, file in files if file is not None)


def _raw_file(path: Path) -> ShardFile:
    size = path.stat().st_size
    if size % 2:
        raise DamagedError(f"corrupt shard {path}: {size} bytes are not whole uint16 ids; copy or write it again")
    return _shard_file(path, "uint16", 0, size // 2)


def _read_header(path: Path) -> ShardFile | None:
    if not path.is_file():  # opening a pipe would block
        found = "not a regular file" if path.exists() else "a broken link"
        raise DamagedError(f"corrupt shard {path}: it is {found}; copy or write it again")
    with path.open("rb") as file:
        start = file.read(HEADER_BYTES)
    if len(start) < HEADER_BYTES:
        return None
    magic, version, tokens = (int(value) for value in np.frombuffer(start, dtype="<i4", count=3))
    dtype = HEADER_DTYPES.get((magic, version))
    if dtype is None:
        return None
    size, expected = path.stat().st_size, HEADER_BYTES + tokens * np.dtype(dtype).itemsize
    if size != expected:
        raise DamagedError(
            f"corrupt shard {path}: its header says {tokens} tokens ({expected} bytes), it has {size} bytes; "
            "download it again"
        )
    return _shard_file(path, dtype, HEADER_BYTES, tokens)


def _shard_file(path: Path, dtype: str, offset_bytes: int, tokens: int) -> ShardFile:
    return ShardFile(path, dtype, offset_bytes, tokens, path.stat().st_mtime_ns)


# Bounded, because every mapped file uses a file descriptor and a process may have at most 1024.
@lru_cache(maxsize=_OPEN_SHARDS)
def _map_shard(file: ShardFile) -> NDArray[np.unsignedinteger[Any]]:
    dtype = np.dtype(file.dtype).newbyteorder("<")
    if file.tokens == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype=dtype)
    mapped = np.memmap(file.path, dtype=dtype, mode="r", offset=file.offset_bytes, shape=(file.tokens,))
    return np.asarray(mapped)  # slicing a plain array is several times faster than slicing a memmap


def _sample(file: ShardFile) -> list[NDArray[np.unsignedinteger[Any]]]:
    """Return at most `_SAMPLE_BLOCKS` blocks spread over a shard, including its first and last ids."""
    ids, block = _map_shard(file), _SAMPLE_BLOCK_BYTES // np.dtype(file.dtype).itemsize
    if file.tokens <= block * _SAMPLE_BLOCKS:
        return [ids]
    starts = np.linspace(0, file.tokens - block, _SAMPLE_BLOCKS).astype(np.int64)
    return [ids[start : start + block] for start in starts]


def _largest_id(dataset: Dataset) -> int:
    files = dataset.train.files + dataset.val.files
    return max((int(block.max()) for file in files for block in _sample(file) if block.size), default=0)


def _foreign_hash(train: tuple[ShardFile, ...], val: tuple[ShardFile, ...]) -> str:
    is_small = sum(file.path.stat().st_size for file in train + val) <= FULL_HASH_BYTES
    parts = [[(file.dtype, file.tokens, _ids_hash(file, is_small)) for file in files] for files in (train, val)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _ids_hash(file: ShardFile, is_small: bool) -> str:
    digest = hashlib.sha256()
    for block in [_map_shard(file)] if is_small else _sample(file):
        digest.update(block.data)
    return digest.hexdigest()
