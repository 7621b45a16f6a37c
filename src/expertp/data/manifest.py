"""What a prepared directory says about itself: `manifest.json` when finished, `progress.json` until then."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from expertp.data.tokenizers import Kind, TokenizerIdentity
from expertp.errors import InputError
from expertp.files import write_atomically

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMAT_VERSION: Literal[1] = 1
MANIFEST_FILE = "manifest.json"
PROGRESS_FILE = "progress.json"
DEFAULT_BPE_VOCABULARY = 4096

_Record = TypeVar("_Record", bound="DataclassInstance")


@dataclass(frozen=True)
class PrepareOptions:
    """How text becomes shards; a directory holds the result of one set of options.

    Attributes:
        tokenizer: `gpt2`, `bytes` or `bpe`.
        vocab_size: ids of a `bpe` tokenizer (default 4096), None for the others.
        val_fraction: share of the tokens that goes to the validation split, 0 to 0.5.
        shard_tokens: train tokens after which both splits' shards are closed; also how much a crash can cost.
        text_key: the field of JSONL, Parquet and Hub rows that holds the text.
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
    """The train or the val part; `tokens` counts the end-of-text ids, one a document."""

    documents: int = 0
    tokens: int = 0
    shards: tuple[Shard, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """Everything about a finished directory; docs/data.md explains each field."""

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
    """Everything needed to go on after the last closed shards; `tokenizer` is None until BPE is trained."""

    format_version: Literal[1]
    source: str
    source_fingerprint: str
    options: PrepareOptions
    tokenizer: TokenizerIdentity | None = None
    documents_consumed: int = 0
    train: Split = Split()
    val: Split = Split()


def content_hash(dtype: str, tokenizer: TokenizerIdentity, train: Split, val: Split) -> str:
    """Return the hash that is equal exactly when the tokens, their order, shards and meaning are equal."""
    shards = [[shard.sha256 for shard in split.shards] for split in (train, val)]
    identity = [tokenizer.name, tokenizer.vocab_size, tokenizer.eot, tokenizer.sha256]
    return hashlib.sha256(json.dumps([dtype, identity, *shards]).encode()).hexdigest()


def write_record(path: Path, record: "DataclassInstance") -> None:
    """Write a manifest or progress atomically as JSON that people can read."""
    write_atomically(path, (json.dumps(asdict(record), indent=2) + "\n").encode())


def read_record(path: Path, kind: type[_Record]) -> _Record:
    """Read and check a manifest or progress; a file that is not one is the user's to replace."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(
            f"{path} is damaged or of another version ({where}: {first['msg']}); "
            "delete the directory and prepare it again"
        ) from None
