"""Text to token shards: streaming and resumable, with the same bytes after any number of interruptions."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from expertp.data.formats import Document
from expertp.data.manifest import (
    DEFAULT_BPE_VOCABULARY,
    FORMAT_VERSION,
    MANIFEST_FILE,
    PROGRESS_FILE,
    REMEDY,
    Manifest,
    PrepareOptions,
    Progress,
    content_hash,
)
from expertp.data.shards import open_dataset, open_split
from expertp.data.sources import SPOOL_FILE, STANDARD_INPUT, Corpus, find_corpus, read_documents, spooled_input
from expertp.data.splitting import is_close, scan, train_part
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
from expertp.errors import DamagedError, InputError, printable, shown
from expertp.util.files import exclusive
from expertp.util.records import read_record, write_record
from expertp.util.text import plural

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
        source: `builtin`, a file or folder, `hf:NAME[:CONFIG]`, or `-` for standard input.
        out: directory of the shards and `manifest.json`, which is written last.
        options: tokenizer, split and shard size (default: `PrepareOptions()`).
        on_progress: called at the start, after every batch of documents and at the end.
        on_note: called with one-line messages for the user.

    Returns:
        The manifest, also if the directory was already complete.
    """
    options, out = _checked(options or PrepareOptions()), Path(out)
    corpus = None if source == STANDARD_INPUT else find_corpus(source, options.text_key)
    with exclusive(out, f"another prepare is writing to {out}; wait until it ends or choose another --out"):
        if corpus is not None:
            return _prepare(corpus, out, options, on_progress, on_note)
        with spooled_input(out, on_note) as corpus:
            return _prepare(corpus, out, options, on_progress, on_note)


def _prepare(
    corpus: Corpus,
    out: Path,
    options: PrepareOptions,
    on_progress: Callable[[PrepareProgress], None],
    on_note: Callable[[str], None],
) -> Manifest:
    manifest = _finished(out, corpus, options)
    if manifest is not None:
        on_note(f"nothing to do: {out} is complete")
        return manifest
    progress = _saved_progress(out, corpus, options)
    if progress is None:
        progress = _start(out, corpus, options, _cuts(corpus, options))
    else:
        on_note(f"resuming after {plural(progress.documents_consumed, 'document')}")
    if corpus.left_out:
        listed = ", ".join(f"{count} {ending}" for ending, count in corpus.left_out)
        on_note(f"skipped files: {listed}")
    tokenizer = _tokenizer(out, corpus, progress, on_note)
    progress = replace(progress, tokenizer=tokenizer.identity)
    progress = _write_shards(out, corpus, tokenizer, progress, on_progress)
    manifest = _finish(out, tokenizer.identity, progress)
    share = manifest.val.tokens / (manifest.train.tokens + manifest.val.tokens)
    if options.val_fraction > 0 and not is_close(share, options.val_fraction):
        on_note(
            f"val has {100 * share:.3g}% of the tokens, but {100 * options.val_fraction:.3g}% was requested: the "
            "source has too few documents, or too unequal ones, for a closer split"
        )
    return manifest


def _checked(options: PrepareOptions) -> PrepareOptions:
    if options.tokenizer not in KINDS:
        raise InputError(f"unknown tokenizer {shown(options.tokenizer)}; choose one of {', '.join(KINDS)}")
    if options.vocab_size is not None and options.tokenizer != "bpe":
        raise InputError(
            f"vocabulary size {shown(options.vocab_size)} given for the {options.tokenizer} tokenizer, whose size is "
            "fixed; leave out --vocab-size or use --tokenizer bpe"
        )
    if not 0 <= options.val_fraction <= LARGEST_VAL_FRACTION:
        raise InputError(
            f"val fraction {options.val_fraction:g} is not in 0 to {LARGEST_VAL_FRACTION}; "
            "give for example --val-fraction 0.01"
        )
    if not 1 <= options.shard_tokens < 2**63:
        what = "not positive" if options.shard_tokens < 1 else "too large"
        raise InputError(f"shard tokens {shown(options.shard_tokens)} is {what}; leave out --shard-tokens for 2**24")
    if not options.text_key.isprintable():
        raise InputError(f"text key {shown(options.text_key)} is not printable; give the name of a field")
    if options.tokenizer == "bpe":
        vocab_size = DEFAULT_BPE_VOCABULARY if options.vocab_size is None else options.vocab_size
        check_bpe_vocabulary(vocab_size)
        return replace(options, vocab_size=vocab_size)
    return options


def _finished(out: Path, corpus: Corpus, options: PrepareOptions) -> Manifest | None:
    if not os.path.lexists(out / MANIFEST_FILE):
        return None
    manifest = read_record(out / MANIFEST_FILE, Manifest, REMEDY)
    _check_same(out, manifest, corpus, options)
    open_dataset(out)  # raises if a shard is missing or damaged
    (out / PROGRESS_FILE).unlink(missing_ok=True)
    return manifest


def _saved_progress(out: Path, corpus: Corpus, options: PrepareOptions) -> Progress | None:
    """Return the progress of an interrupted call; None if there is nothing to resume."""
    if not os.path.lexists(out / PROGRESS_FILE):
        foreign = sorted(path.name for path in out.iterdir() if path.suffix == ".bin" or path.name == BPE_FILE)
        if foreign:
            raise InputError(
                f"{out} already has {foreign[0]}, which expertp prepare did not write; choose an empty --out"
            )
        return None
    progress = read_record(out / PROGRESS_FILE, Progress, REMEDY)
    if progress.documents_consumed == 0:
        return None
    _check_same(out, progress, corpus, options)
    documents = progress.train.documents + progress.val.documents - progress.cut_documents
    if progress.tokenizer is None or documents > progress.documents_consumed:
        raise DamagedError(f"{out / PROGRESS_FILE}: damaged (its fields contradict each other); {REMEDY}")
    for split in (progress.train, progress.val):
        open_split(out, split, id_dtype(progress.tokenizer.vocab_size).name, is_hashed=True)
    return progress


def _check_same(out: Path, saved: Manifest | Progress, corpus: Corpus, options: PrepareOptions) -> None:
    fix = "choose another --out, or delete that directory"
    if saved.source_fingerprint != corpus.fingerprint:
        before, now = shown(saved.source), shown(corpus.source)
        if STANDARD_INPUT == saved.source == corpus.source:
            raise InputError(f"{out} was prepared from another text on standard input; {fix}")
        if STANDARD_INPUT in (saved.source, corpus.source):
            raise InputError(f"{out} was prepared from {before}, not from {now}; {fix}")
        raise InputError(f"{out} was prepared from {before} with other file names or sizes than {now} has now; {fix}")
    for name, old in vars(saved.options).items():
        new = getattr(options, name)
        if new != old:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{out} was prepared with {flag} {printable(str(old))}, not {new}; {fix}")


def _cuts(corpus: Corpus, options: PrepareOptions) -> bool:
    """Return whether documents must be cut for the requested val split; raise `InputError` for too little text."""
    with closing(read_documents(corpus)) as documents:
        found = scan((len(document.text) for document in documents), options.val_fraction)
    name = "standard input" if corpus.source == STANDARD_INPUT else f"source {shown(corpus.source)}"
    if found.documents == 0:
        raise InputError(f"{name} has no text; give a source with text")
    cuts = options.val_fraction > 0 and found.cuts(options.val_fraction)
    if found.documents == 1 and found.is_complete and options.val_fraction > 0 and not cuts:
        raise InputError(
            f"{name} has only one document of {found.characters:,} characters, too few for --val-fraction "
            f"{options.val_fraction:g}; give more text, a larger --val-fraction, or --val-fraction 0 for no val split"
        )
    return cuts


def _start(out: Path, corpus: Corpus, options: PrepareOptions, cuts: bool) -> Progress:
    """Delete what an unfinished earlier call left and write the first `progress.json`."""
    for path in out.iterdir():
        if SHARD_NAME.fullmatch(path.name) or (path.name == SPOOL_FILE and path not in corpus.files):
            path.unlink()
    progress = Progress(FORMAT_VERSION, printable(corpus.source), corpus.fingerprint, options, cuts=cuts)
    write_record(out / PROGRESS_FILE, asdict(progress))
    return progress


def _tokenizer(out: Path, corpus: Corpus, progress: Progress, on_note: Callable[[str], None]) -> Tokenizer:
    options = progress.options
    if progress.tokenizer is not None:
        if progress.tokenizer.name != options.tokenizer:
            raise DamagedError(f"{out / PROGRESS_FILE}: damaged (its fields contradict each other); {REMEDY}")
        return load_tokenizer(progress.tokenizer, out)
    if options.tokenizer == "bytes":
        return load_bytes()
    if options.tokenizer == "gpt2":
        return load_gpt2()
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
    train = SplitWriter(out, "train", progress.train, tokenizer.eot)
    val = SplitWriter(out, "val", progress.val, tokenizer.eot)
    cut_documents = progress.cut_documents

    def state(documents_consumed: int) -> Progress:
        written = replace(progress, train=train.split, val=val.split)
        return replace(written, documents_consumed=documents_consumed, cut_documents=cut_documents)

    def place(document: _Encoded, is_last: bool) -> None:
        nonlocal cut_documents
        ids, cuts = document.ids, cut_documents if progress.cuts else None
        at = train_part(ids, tokenizer, train.split, val.split, options.val_fraction, cuts, is_last)
        if at > 0:
            train.add(ids[:at])
        if at < len(ids):
            val.add(ids[at:])
        cut_documents += 0 < at < len(ids)
        if train.open_tokens >= options.shard_tokens:
            train.close_shard()
            val.close_shard()
            write_record(out / PROGRESS_FILE, asdict(state(document.number)))

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
    """An encoded document without its end-of-text id; `number` counts the documents of the corpus from 1."""

    number: int
    ids: Ids
    is_empty: bool
    bytes_read: int


def _unread(corpus: Corpus, consumed: int) -> Iterator[tuple[int, Document]]:
    with closing(read_documents(corpus)) as documents:
        if sum(1 for _ in islice(documents, consumed)) < consumed:
            raise DamagedError(
                f"{PROGRESS_FILE} counts {consumed:,} documents, {shown(corpus.source)} has fewer; {REMEDY}"
            )
        yield from enumerate(documents, start=consumed + 1)


def _encode_ahead(documents: Iterable[tuple[int, Document]], tokenizer: Tokenizer) -> Iterator[list[_Encoded]]:
    """Yield encoded batches in order; the next batches are encoded in the background."""

    def encode(batch: list[tuple[int, Document]]) -> list[_Encoded]:
        all_ids = tokenizer.encode_batch([document.text for _, document in batch])
        return [
            _Encoded(number, ids, not document.text, document.bytes_read)
            for (number, document), ids in zip(batch, all_ids, strict=True)
        ]

    # Two batches share the tokenizer's threads, so that no thread waits for the last piece of a batch.
    with ThreadPoolExecutor(_BATCHES_AHEAD) as pool:
        waiting: deque[Future[list[_Encoded]]] = deque()
        for batch in _batches(documents):
            waiting.append(pool.submit(encode, batch))
            del batch  # a text may be large
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
        empty_documents=progress.documents_consumed
        - (progress.train.documents + progress.val.documents - progress.cut_documents),
        source=progress.source,
        source_fingerprint=progress.source_fingerprint,
        options=progress.options,
        cut_documents=progress.cut_documents,
    )
    write_record(out / MANIFEST_FILE, asdict(manifest))
    (out / PROGRESS_FILE).unlink()
    return manifest
