"""Text to token shards (`prepare`), token shards to batches (`open_dataset`, `train_batch`, `eval_batches`)."""

from expertp.data.batches import count_windows, eval_batches, train_batch
from expertp.data.manifest import Manifest, PrepareOptions
from expertp.data.prepare import PrepareProgress, prepare
from expertp.data.shards import Dataset, TokenShards, check_vocab, open_dataset
from expertp.data.tokenizers import (
    TextStream,
    Tokenizer,
    TokenizerIdentity,
    load_tokenizer,
    save_tokenizer,
)

__all__ = [
    "Dataset",
    "Manifest",
    "PrepareOptions",
    "PrepareProgress",
    "TextStream",
    "TokenShards",
    "Tokenizer",
    "TokenizerIdentity",
    "check_vocab",
    "count_windows",
    "eval_batches",
    "load_tokenizer",
    "open_dataset",
    "prepare",
    "save_tokenizer",
    "train_batch",
]
