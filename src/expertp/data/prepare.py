"""Text to token shards: streaming and resumable, with the same bytes after any number of interruptions."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from expertp.data.manifest import (
    DEFAULT_BPE_VOCABULARY,
    FORMAT_VERSION,
    MANIFEST_FILE,
    PROGRESS_FILE,
    Manifest,
    PrepareOptions,
    Progress,
    Split,
    content_hash,
    read_record,
    write_record,
)
from expertp.data.shards import open_dataset
from expertp.data.sources import Corpus, Document, find_corpus, read_documents
from expertp.data.tokenizers import (
    BPE_FILE,
    KINDS,
    Ids,
    Tokenizer,
    TokenizerIdentity,
    check_bpe_vocabulary,
    id_dtype,
    load_bytes,
    load_gpt2,
    load_tokenizer,
    train_bpe,
)
from expertp.data.writing import SHARD_NAME, SplitWriter
from expertp.errors import InputError
from expertp.util.files import exclusive

LARGEST_VAL_FRACTION = 0.5

_BATCH_CHARACTERS = 2**22
_BATCH_DOCUMENTS = 2**14
_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class PrepareProgress:
    """Progress of `prepare`; `bytes_total` is None if unknown."""

    documents: int
    tokens: int
    bytes_read: int
    bytes_total: int | None


def prepare(
    source: str,
    out: str | Path,
    options: PrepareOptions | None = None,
    on_progress: Callable[[PrepareProgress], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Manifest:
    """Convert SOURCE to token shards in the directory `out`, resuming an interrupted call.

    Args:
        source: `builtin`, a file or folder, or `hf:NAME[:CONFIG]`.
        out: directory of the shards and `manifest.json`, which is written last.
        options: tokenizer, split and shard size (default: `PrepareOptions()`).
        on_progress: called at the start, after every batch of documents and at the end.
        on_note: called with one-line messages for the user.

    Returns:
        The manifest, also if the directory was already complete.
    """
    options, out = _checked(options or PrepareOptions()), Path(out)
    corpus = find_corpus(source, options.text_key)
    with exclusive(out, f"another prepare is writing to {out}; wait until it ends or choose another --out"):
        manifest = _finished(out, corpus, options)
        if manifest is not None:
            on_note(f"nothing to do: {out} is complete")
            return manifest
        progress = _saved_progress(out, corpus, options)
        if progress is None:
            _check_enough_documents(corpus, options)
            progress = _start(out, corpus, options)
        else:
            on_note(f"resuming after {progress.documents_consumed:,} documents")
        if corpus.left_out:
            listed = ", ".join(f"{count} {ending}" for ending, count in corpus.left_out)
            on_note(f"skipped files: {listed}")
        tokenizer = _tokenizer(out, corpus, progress, on_note)
        progress = replace(progress, tokenizer=tokenizer.identity)
        progress = _write_shards(out, corpus, tokenizer, progress, on_progress)
        return _finish(out, tokenizer.identity, progress)


def goes_to_val(tokens: int, train: Split, val: Split, val_fraction: float) -> bool:
    """Return whether the next document, of `tokens` tokens, goes to val.

    With V of T tokens in val so far, a document of the mean size m goes to val if it brings val's share closer to the
    fraction f: |V + m - f (T + m)| < |V - f (T + m)|. The test uses the mean size because the document's own size
    would favour short documents. A document of n tokens that would give val more than 2 f (T + n) goes to train.

    >>> goes_to_val(10, Split(documents=49, tokens=490), Split(), val_fraction=0.01)
    False
    >>> goes_to_val(10, Split(documents=50, tokens=500), Split(), val_fraction=0.01)
    True
    """
    documents, all_tokens = train.documents + val.documents, train.tokens + val.tokens
    if documents == 0:
        return False
    mean = all_tokens / documents
    is_due = 2 * val.tokens + mean < 2 * val_fraction * (all_tokens + mean)
    return is_due and val.tokens + tokens <= 2 * val_fraction * (all_tokens + tokens)


def _checked(options: PrepareOptions) -> PrepareOptions:
    if options.tokenizer not in KINDS:
        raise InputError(f"unknown tokenizer '{options.tokenizer}'; choose one of {', '.join(KINDS)}")
    if options.vocab_size is not None and options.tokenizer != "bpe":
        raise InputError(
            f"vocabulary size {options.vocab_size} given for the {options.tokenizer} tokenizer, whose size is fixed; "
            "leave out --vocab-size or use --tokenizer bpe"
        )
    if not 0 <= options.val_fraction <= LARGEST_VAL_FRACTION:
        raise InputError(
            f"val fraction {options.val_fraction:g} is not in 0 to {LARGEST_VAL_FRACTION}; "
            "give for example --val-fraction 0.01"
        )
    if options.shard_tokens < 1:
        raise InputError(f"shard tokens {options.shard_tokens} is not positive; leave out --shard-tokens for 2**24")
    if options.tokenizer == "bpe":
        vocab_size = DEFAULT_BPE_VOCABULARY if options.vocab_size is None else options.vocab_size
        check_bpe_vocabulary(vocab_size)
        return replace(options, vocab_size=vocab_size)
    return options


def _finished(out: Path, corpus: Corpus, options: PrepareOptions) -> Manifest | None:
    if not (out / MANIFEST_FILE).is_file():
        return None
    manifest = read_record(out / MANIFEST_FILE, Manifest)
    _check_same(out, manifest, corpus, options)
    open_dataset(out)  # raises if a shard is missing or damaged
    (out / PROGRESS_FILE).unlink(missing_ok=True)
    return manifest


def _saved_progress(out: Path, corpus: Corpus, options: PrepareOptions) -> Progress | None:
    """Return the progress of an interrupted call; None if there is nothing to resume."""
    if not (out / PROGRESS_FILE).is_file():
        foreign = sorted(path.name for path in out.iterdir() if path.suffix == ".bin" or path.name == BPE_FILE)
        if foreign:
            raise InputError(
                f"{out} already has {foreign[0]}, which expertp prepare did not write; choose an empty --out"
            )
        return None
    progress = read_record(out / PROGRESS_FILE, Progress)
    if progress.documents_consumed == 0:
        return None
    _check_same(out, progress, corpus, options)
    return progress


def _check_same(out: Path, saved: Manifest | Progress, corpus: Corpus, options: PrepareOptions) -> None:
    fix = "choose another --out, or delete that directory"
    if saved.source_fingerprint != corpus.fingerprint:
        raise InputError(
            f"{out} was prepared from '{saved.source}' with other file names or sizes than '{corpus.source}' has now; "
            f"{fix}"
        )
    for name, before in vars(saved.options).items():
        now = getattr(options, name)
        if now != before:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{out} was prepared with {flag} {before}, not {now}; {fix}")


def _check_enough_documents(corpus: Corpus, options: PrepareOptions) -> None:
    with closing(read_documents(corpus)) as documents:
        found = len(list(islice((None for document in documents if document.text), 2)))
    if found == 0:
        raise InputError(f"source '{corpus.source}' has no text; give a source with text")
    if found == 1 and options.val_fraction > 0:
        raise InputError(
            f"source '{corpus.source}' has only one document, which cannot be split with --val-fraction "
            f"{options.val_fraction:g}; give more files, or --val-fraction 0 for no val split"
        )


def _start(out: Path, corpus: Corpus, options: PrepareOptions) -> Progress:
    """Delete shards of an unfinished earlier call and write the first `progress.json`."""
    for path in out.iterdir():
        if SHARD_NAME.fullmatch(path.name):
            path.unlink()
    progress = Progress(FORMAT_VERSION, corpus.source, corpus.fingerprint, options)
    write_record(out / PROGRESS_FILE, progress)
    return progress


def _tokenizer(out: Path, corpus: Corpus, progress: Progress, on_note: Callable[[str], None]) -> Tokenizer:
    options = progress.options
    if options.tokenizer == "bytes":
        return load_bytes()
    if options.tokenizer == "gpt2":
        return load_gpt2()
    if progress.tokenizer is not None:
        return load_tokenizer(progress.tokenizer, out)
    assert options.vocab_size is not None  # filled in by _checked
    on_note(f"training a bpe tokenizer of {options.vocab_size} ids")
    with closing(read_documents(corpus)) as documents:
        identity = train_bpe((document.text for document in documents), options.vocab_size, out / BPE_FILE)
    return load_tokenizer(identity, out)


def _write_shards(
    out: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    progress: Progress,
    on_progress: Callable[[PrepareProgress], None],
) -> Progress:
    """Encode the rest of the corpus and write it to shards; return the progress after the last document."""
    options, consumed, held = progress.options, progress.documents_consumed, None
    train, val = SplitWriter(out, "train", progress.train), SplitWriter(out, "val", progress.val)

    def state(documents_consumed: int) -> Progress:
        return replace(progress, documents_consumed=documents_consumed, train=train.split, val=val.split)

    def place(document: _Encoded, is_last: bool) -> None:
        is_val = goes_to_val(len(document.ids), train.split, val.split, options.val_fraction)
        is_needed = is_last and options.val_fraction > 0 and val.split.documents == 0
        (val if is_val or is_needed else train).add(document.ids)
        if train.open_tokens >= options.shard_tokens:
            train.close_shard()
            val.close_shard()
            write_record(out / PROGRESS_FILE, state(document.number))

    def report(bytes_read: int) -> None:
        tokens = train.split.tokens + val.split.tokens
        on_progress(PrepareProgress(consumed, tokens, bytes_read, corpus.bytes_total))

    try:
        report(0)
        for batch in _encode_ahead(_unread(corpus, consumed), tokenizer):
            for document in batch:
                consumed = document.number
                if not document.is_empty:
                    if held is not None:
                        place(held, is_last=False)
                    held = document
            report(batch[-1].bytes_read)
        if held is not None:
            place(held, is_last=True)
        train.close_shard()
        val.close_shard()
        report(corpus.bytes_total or 0)
    finally:
        train.discard_open_shard()
        val.discard_open_shard()
    return state(consumed)


@dataclass(frozen=True)
class _Encoded:
    """An encoded document with its end-of-text id; `number` counts the documents of the corpus from 1."""

    number: int
    ids: Ids
    is_empty: bool
    bytes_read: int


def _unread(corpus: Corpus, consumed: int) -> Iterator[tuple[int, Document]]:
    with closing(read_documents(corpus)) as documents:
        yield from islice(enumerate(documents, start=1), consumed, None)


def _encode_ahead(documents: Iterable[tuple[int, Document]], tokenizer: Tokenizer) -> Iterator[list[_Encoded]]:
    """Yield encoded batches in order; the next batches are encoded in the background."""

    def encode(batch: list[tuple[int, Document]]) -> list[_Encoded]:
        all_ids = tokenizer.encode_batch([document.text for _, document in batch])
        return [
            _Encoded(number, np.append(ids, end), not document.text, document.bytes_read)
            for (number, document), ids in zip(batch, all_ids, strict=True)
        ]

    end = np.array([tokenizer.eot], dtype=tokenizer.dtype)
    # Two batches share the tokenizer's threads, so that no thread waits for the last piece of a batch.
    with ThreadPoolExecutor(_BATCHES_AHEAD) as pool:
        waiting: deque[Future[list[_Encoded]]] = deque()
        for batch in _batches(documents):
            waiting.append(pool.submit(encode, batch))
            if len(waiting) > _BATCHES_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _batches(documents: Iterable[tuple[int, Document]]) -> Iterator[list[tuple[int, Document]]]:
    batch: list[tuple[int, Document]] = []
    characters = 0
    for number, document in documents:
        batch.append((number, document))
        characters += len(document.text)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _finish(out: Path, identity: TokenizerIdentity, progress: Progress) -> Manifest:
    dtype: Literal["uint16", "uint32"] = "uint16" if id_dtype(identity.vocab_size).itemsize == 2 else "uint32"
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        content_hash=content_hash(dtype, identity, progress.train, progress.val),
        tokenizer=identity,
        dtype=dtype,
        train=progress.train,
        val=progress.val,
        empty_documents=progress.documents_consumed - progress.train.documents - progress.val.documents,
        source=progress.source,
        source_fingerprint=progress.source_fingerprint,
        options=progress.options,
    )
    write_record(out / MANIFEST_FILE, manifest)
    (out / PROGRESS_FILE).unlink()
    return manifest
