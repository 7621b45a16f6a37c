"""Metadata of a prepared directory: `manifest.json` when it is complete, `progress.json` before."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

from expertp.data.tokenizers import Kind, TokenizerIdentity
from expertp.errors import InputError
from expertp.util.files import write_atomically

FORMAT_VERSION: Literal[1] = 1
MANIFEST_FILE = "manifest.json"
PROGRESS_FILE = "progress.json"
DEFAULT_BPE_VOCABULARY = 4096


@dataclass(frozen=True)
class PrepareOptions:
    """Options of `prepare`; a directory has the result of one set of options.

    Attributes:
        tokenizer: `gpt2`, `bytes` or `bpe`.
        vocab_size: number of ids of a `bpe` tokenizer (default 4096); None for the others.
        val_fraction: fraction of the tokens in the validation split, 0 to 0.5.
        shard_tokens: train tokens after which the open shards are closed; a crash loses at most as much work.
        text_key: field of JSONL, Parquet and Hub rows that contains the text.
    """

    tokenizer: Kind = "gpt2"
    vocab_size: int | None = None
    val_fraction: float = 0.01
    shard_tokens: int = 2**24
    text_key: str = "text"


@dataclass(frozen=True)
class Shard:
    """One file of raw little-endian ids."""

    name: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """The train or validation split; `tokens` includes one end-of-text id per document."""

    documents: int = 0
    tokens: int = 0
    shards: tuple[Shard, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """Contents of `manifest.json`; docs/data.md explains the fields."""

    format_version: Literal[1]
    content_hash: str
    tokenizer: TokenizerIdentity
    dtype: Literal["uint16", "uint32"]
    train: Split
    val: Split
    empty_documents: int
    source: str
    source_fingerprint: str
    options: PrepareOptions


@dataclass(frozen=True)
class Progress:
    """Contents of `progress.json`: the state after the last closed shards; `tokenizer` is None until BPE is trained."""

    format_version: Literal[1]
    source: str
    source_fingerprint: str
    options: PrepareOptions
    tokenizer: TokenizerIdentity | None = None
    documents_consumed: int = 0
    train: Split = Split()
    val: Split = Split()


_Record = TypeVar("_Record", Manifest, Progress)


def content_hash(dtype: str, tokenizer: TokenizerIdentity, train: Split, val: Split) -> str:
    """Return a hash of the tokenizer and all tokens in their order and shards."""
    shards = [[shard.sha256 for shard in split.shards] for split in (train, val)]
    identity = [tokenizer.name, tokenizer.vocab_size, tokenizer.eot, tokenizer.sha256]
    return hashlib.sha256(json.dumps([dtype, identity, *shards]).encode()).hexdigest()


def write_record(path: Path, record: Manifest | Progress) -> None:
    """Write a manifest or progress atomically as indented JSON."""
    write_atomically(path, (json.dumps(asdict(record), indent=2) + "\n").encode())


def read_record(path: Path, kind: type[_Record]) -> _Record:
    """Read and validate a manifest or progress."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(
            f"{path} is damaged or has another format version ({where}: {first['msg']}); "
            "delete the directory and prepare it again"
        ) from None
