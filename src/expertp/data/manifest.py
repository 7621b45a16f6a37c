"""Metadata of a prepared directory: `manifest.json` when it is complete, `progress.json` before."""

import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from expertp.data.tokenizers import Kind, TokenizerIdentity
from expertp.util.records import Count

FORMAT_VERSION: Literal[1] = 1
MANIFEST_FILE = "manifest.json"
PROGRESS_FILE = "progress.json"
DEFAULT_BPE_VOCABULARY = 4096
# What to do about a damaged directory.
REMEDY = "delete the directory and prepare it again"
# Names of shards. No other name is read, so a manifest cannot point outside its directory.
SHARD_PATTERN = r"(train|val)_[0-9]{5,9}\.bin"


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
    vocab_size: Count | None = None
    val_fraction: float = 0.01
    shard_tokens: Count = 2**24
    text_key: str = "text"


@dataclass(frozen=True)
class Shard:
    """One file of raw little-endian ids."""

    name: Annotated[str, Field(pattern=f"^{SHARD_PATTERN}$")]
    tokens: Count
    sha256: str


@dataclass(frozen=True)
class Split:
    """The train or validation split; `tokens` includes one end-of-text id per document or part of a document."""

    documents: Count = 0
    tokens: Count = 0
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
    empty_documents: Count
    source: str
    source_fingerprint: str
    options: PrepareOptions
    cut_documents: Count = 0


@dataclass(frozen=True)
class Progress:
    """Contents of `progress.json`: the state after the last closed shards.

    `tokenizer` is None until BPE is trained. `cuts` says whether the ends of long documents go to val.
    """

    format_version: Literal[1]
    source: str
    source_fingerprint: str
    options: PrepareOptions
    tokenizer: TokenizerIdentity | None = None
    documents_consumed: Count = 0
    train: Split = Split()
    val: Split = Split()
    cuts: bool = False
    cut_documents: Count = 0


def content_hash(dtype: str, tokenizer: TokenizerIdentity, train: Split, val: Split) -> str:
    """Return a hash of the tokenizer and all tokens in their order and shards."""
    shards = [[shard.sha256 for shard in split.shards] for split in (train, val)]
    identity = [tokenizer.name, tokenizer.vocab_size, tokenizer.eot, tokenizer.sha256]
    return hashlib.sha256(json.dumps([dtype, identity, *shards]).encode()).hexdigest()
