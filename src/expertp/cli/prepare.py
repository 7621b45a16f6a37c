"""Convert text to token shards for `expertp train`.

SOURCE is one of
  builtin            the source files of the Python standard library (12 MB), for tests without a download
  FILE or FOLDER     plain text (.txt, .md, .rst, .html, .py, ...; one document per file), JSONL (.jsonl, .jsonl.gz;
                     one document per line) or Parquet (.parquet; one document per row)
  -                  standard input as one document of plain text
  hf:NAME[:CONFIG]   the train split of a Hugging Face dataset, streamed, e.g. hf:HuggingFaceFW/fineweb:sample-10BT

Validation gets whole documents. If these are too few or too long for --val-fraction, for example a single file, it gets
the ends of long documents.

The same command resumes an interrupted one; with standard input, pipe the same text again, which starts over. A
complete directory is not changed.
"""

import argparse
import json
import time
from dataclasses import asdict
from itertools import starmap
from pathlib import Path

from expertp.cli.progress import Reporter
from expertp.data import Manifest, PrepareOptions, PrepareProgress, prepare
from expertp.data.manifest import DEFAULT_BPE_VOCABULARY
from expertp.data.sources import STANDARD_INPUT, find_corpus
from expertp.data.tokenizers import KINDS
from expertp.errors import one_line, printable
from expertp.util.text import plural

EXAMPLES = """\
  expertp prepare input.txt --out prepared/input --tokenizer bytes --val-fraction 0.1
  expertp prepare hf:allenai/c4:en --out prepared/c4 --tokenizer gpt2 --val-fraction 0.001
"""

_DEFAULTS = PrepareOptions()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("source", metavar="SOURCE", help="builtin, a file or folder, - or hf:NAME[:CONFIG]")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="directory of the shards")
    parser.add_argument(
        "--tokenizer",
        choices=KINDS,
        default=_DEFAULTS.tokenizer,
        help="gpt2 (50257 ids), bytes (257 ids), or bpe trained on the first 64M characters (default: %(default)s)",
    )
    parser.add_argument(
        "--vocab-size",
        metavar="N",
        type=int,
        help=f"number of ids of a bpe tokenizer, 257 or more (default: {DEFAULT_BPE_VOCABULARY})",
    )
    parser.add_argument(
        "--val-fraction",
        metavar="F",
        type=float,
        default=_DEFAULTS.val_fraction,
        help="fraction of the tokens for validation, 0 to 0.5 (default: %(default)s)",
    )
    parser.add_argument(
        "--shard-tokens",
        metavar="N",
        type=int,
        default=_DEFAULTS.shard_tokens,
        help="tokens per train shard; a crash loses at most one shard (default: %(default)s)",
    )
    parser.add_argument(
        "--text-key",
        metavar="KEY",
        default=_DEFAULTS.text_key,
        help="field of JSONL, Parquet and Hugging Face rows that contains the text (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON on standard output")


def run(args: argparse.Namespace) -> int:
    """Prepare the data and print a summary."""
    options = PrepareOptions(
        tokenizer=args.tokenizer,
        vocab_size=args.vocab_size,
        val_fraction=args.val_fraction,
        shard_tokens=args.shard_tokens,
        text_key=args.text_key,
    )
    total = None if args.source == STANDARD_INPUT else find_corpus(args.source, args.text_key).bytes_total
    clock = _Clock()
    with Reporter("prepare", total) as reporter:

        def on_progress(progress: PrepareProgress) -> None:
            clock.update(progress)
            counts = ((progress.documents, "document"), (progress.tokens, "token"))
            reporter.update(progress.bytes_read, ", ".join(starmap(plural, counts)))

        def on_note(text: str) -> None:
            reporter.line(one_line(text))

        manifest = prepare(args.source, args.out, options, on_progress, on_note)
    print(json.dumps(asdict(manifest), indent=2) if args.json else _summary(manifest, args.out, clock))
    return 0


class _Clock:
    """Speed of this call; tokens of an interrupted earlier call do not count."""

    def __init__(self) -> None:
        self._first: PrepareProgress | None = None
        self._started = self._last = time.monotonic()
        self._tokens = 0

    @property
    def has_run(self) -> bool:
        return self._tokens > 0

    def update(self, progress: PrepareProgress) -> None:
        self._last = time.monotonic()
        if self._first is None:
            self._first, self._started = progress, self._last
        self._tokens = progress.tokens - self._first.tokens

    def __str__(self) -> str:
        seconds = self._last - self._started
        speed = self._tokens / max(seconds, 1e-9)
        return f"{plural(self._tokens, 'token')} in {seconds:.1f} s = {speed:,.0f} tokens/s"


def _summary(manifest: Manifest, out: Path, clock: _Clock) -> str:
    tokenizer = manifest.tokenizer
    lines = [f"{'tokenizer':<10} {tokenizer.name}, {tokenizer.vocab_size:,} ids, stored as {manifest.dtype}"]
    for name, split in (("train", manifest.train), ("val", manifest.val)):
        counts = ((split.tokens, "token"), (split.documents, "document"), (len(split.shards), "shard"))
        share = f" ({split.tokens / (manifest.train.tokens + manifest.val.tokens):.1%} of all)"
        words = ", ".join(starmap(plural, counts))
        lines.append(f"{name:<10} {words}{share if name == 'val' else ''}")
    if manifest.cut_documents:
        lines.append(f"{'cut':<10} {plural(manifest.cut_documents, 'document')}, whose end is in val")
    if manifest.empty_documents:
        lines.append(f"{'skipped':<10} {plural(manifest.empty_documents, 'empty document')}")
    if clock.has_run:
        lines.append(f"{'speed':<10} {clock}")
    lines.append(f"{'directory':<10} {printable(str(out))}")
    return "\n".join(lines)
