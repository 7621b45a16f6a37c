"""Find the documents of a SOURCE: `builtin`, a file or folder, standard input, or `hf:NAME[:CONFIG]`.

The order of the documents is fixed: files sorted by path, lines and rows in file order.
"""

import errno
import hashlib
import os
import stat
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from expertp.data.formats import (
    HUB_PREFIX,
    JSONL_ENDINGS,
    LARGEST_TEXT,
    PARQUET_ENDINGS,
    Document,
    read_file,
    read_hub,
    read_text,
    split_hub_name,
    too_large,
)
from expertp.errors import InputError, printable, shown

BUILTIN = "builtin"
STANDARD_INPUT = "-"
PROSE_ENDINGS = (".txt", ".text", ".md", ".markdown", ".rst", ".adoc", ".org", ".tex", ".html", ".htm")
CODE_ENDINGS = (
    *(".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".js", ".ts", ".go", ".rs", ".rb", ".sh"),
    *(".lua", ".jl", ".scala", ".kt", ".swift", ".sql"),
)
TEXT_ENDINGS = PROSE_ENDINGS + CODE_ENDINGS

_BUILTIN_LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
# Standard input is copied to this file of the output directory until all of it is prepared.
SPOOL_FILE = ".stdin.tmp"
_SPOOL_BYTES = 2**20


@dataclass(frozen=True)
class Corpus:
    """The files of a SOURCE, listed but not yet read.

    Attributes:
        source: SOURCE as given by the user.
        files: files to read, in order; empty for the Hugging Face Hub.
        root: directory that document ids are relative to.
        text_key: field of JSONL, Parquet and Hub rows that contains the text.
        bytes_total: total size of the files; None if unknown.
        left_out: numbers of skipped files in the folder, by extension or kind.
        fingerprint: hash of the relative file names and sizes; of standard input, hash of its content.
    """

    source: str
    files: tuple[Path, ...]
    root: Path
    text_key: str
    bytes_total: int | None
    left_out: tuple[tuple[str, int], ...]
    fingerprint: str


def find_corpus(source: str, text_key: str = "text") -> Corpus:
    """List the files of SOURCE, which is not standard input; raise `InputError` if it cannot be read."""
    if source.startswith(HUB_PREFIX):
        split_hub_name(source)
        return Corpus(source, (), Path(), text_key, None, (), _fingerprint([source, text_key]))
    if source == BUILTIN:
        root = Path(sysconfig.get_paths()["stdlib"])
        paths = [path for path in _walk(root, Counter(), _BUILTIN_LEFT_OUT) if _is_library_source(path)]
        return _corpus_of_files(source, root, paths, text_key, ())
    path = Path(source)
    if source and path.is_file():
        return _corpus_of_files(source, path.parent, [path], text_key, ())
    if source and path.is_dir():
        return _corpus_of_folder(source, path, text_key)
    if source and path.exists():
        raise InputError(
            f"source {shown(source)} is a pipe or device, not a file; pipe the text instead: "
            f"COMMAND | expertp prepare {STANDARD_INPUT} --out DIR"
        )
    raise InputError(
        f"source {shown(source)} does not exist; give a file, a folder, '{BUILTIN}' or '{HUB_PREFIX}NAME[:CONFIG]' "
        "(see 'expertp prepare --help')"
    )


def read_documents(corpus: Corpus) -> Generator[Document, None, None]:
    """Yield the documents of a corpus in their fixed order."""
    if corpus.source.startswith(HUB_PREFIX):
        yield from read_hub(corpus.source, corpus.text_key)
        return
    if corpus.source == STANDARD_INPUT:
        yield from read_text(corpus.files[0], STANDARD_INPUT, "standard input")
        return
    bytes_before = 0
    for path in corpus.files:
        for document in read_file(path, _name(path, corpus.root), corpus.text_key):
            yield Document(document.id, document.text, bytes_before + document.bytes_read)
            del document  # a text may be large
        bytes_before += path.stat().st_size


@contextmanager
def spooled_input(out: Path, on_note: Callable[[str], None] = lambda _: None) -> Iterator[Corpus]:
    """Copy standard input to a hidden file of `out` and yield it as a corpus of one document of plain text."""
    if sys.stdin is None:
        raise InputError("standard input is closed; pipe text to it or give a file")
    if sys.stdin.isatty():
        on_note("reading text from the terminal; end it with Ctrl-D on an empty line")
    spool, digest, size = out / SPOOL_FILE, hashlib.sha256(), 0
    try:
        with spool.open("wb") as file:
            while block := sys.stdin.buffer.read(_SPOOL_BYTES):
                size += len(block)
                if size > LARGEST_TEXT:
                    raise too_large("standard input")
                digest.update(block)
                file.write(block)
        yield Corpus(STANDARD_INPUT, (spool,), out, "", size, (), _fingerprint([STANDARD_INPUT, digest.hexdigest()]))
    finally:
        spool.unlink(missing_ok=True)


def _corpus_of_folder(source: str, root: Path, text_key: str) -> Corpus:
    skipped: Counter[str] = Counter()
    paths = list(_walk(root, skipped))
    # If there are data files, read only these: a README next to them is not part of the corpus.
    chosen = [path for path in paths if path.name.endswith(JSONL_ENDINGS + PARQUET_ENDINGS)]
    chosen = chosen or [path for path in paths if path.name.endswith(TEXT_ENDINGS)]
    kept = set(chosen)
    left_out = _count_endings(path for path in paths if path not in kept) + tuple(sorted(skipped.items()))
    if not chosen:
        seen = ", ".join(f"{count} {ending}" for ending, count in left_out) or "no files"
        raise InputError(
            f"no readable files in folder {shown(source)} (it has {seen}); supported extensions are "
            f"{' '.join(JSONL_ENDINGS + PARQUET_ENDINGS + TEXT_ENDINGS)}; rename the files or give one file"
        )
    return _corpus_of_files(source, root, chosen, text_key, left_out)


def _corpus_of_files(
    source: str, root: Path, paths: Iterable[Path], text_key: str, left_out: tuple[tuple[str, int], ...]
) -> Corpus:
    files = tuple(sorted(paths, key=lambda path: _name(path, root)))
    sizes = [path.stat().st_size for path in files]
    names = [f"{_name(path, root)} {size}" for path, size in zip(files, sizes, strict=True)]
    return Corpus(source, files, root, text_key, sum(sizes), left_out, _fingerprint([text_key, *names]))


def _walk(root: Path, skipped: Counter[str], left_out: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield every regular file below `root` except hidden files and files in hidden folders.

    Args:
        root: the folder.
        skipped: counts what is neither a regular file nor a folder; such files are not opened, as a pipe would block.
        left_out: names of folders to skip.
    """
    for folder, folders, names in os.walk(root, onerror=_refuse_folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in left_out]
        skipped["(linked folder)"] += sum(os.path.islink(os.path.join(folder, name)) for name in folders)
        for name in names:
            path = Path(folder, name)
            kind = "" if name.startswith(".") else _kind(path)
            if kind == "file":
                yield path
            elif kind:
                skipped[kind] += 1
    for kind in [kind for kind, count in skipped.items() if not count]:
        del skipped[kind]


def _refuse_folder(error: OSError) -> NoReturn:
    """Raise an error for a folder that cannot be listed: without it, the corpus would silently be smaller."""
    raise InputError(
        f"folder {shown(str(error.filename))} cannot be read ({error.strerror}); make it readable or move it elsewhere"
    ) from None


def _kind(path: Path) -> str:
    """Return `file` for a regular file, else a word for the list of skipped files."""
    try:
        return "file" if stat.S_ISREG(path.stat().st_mode) else "(pipe, socket or device)"
    except OSError as error:
        if path.is_symlink() and error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
            return "(broken link)"
        raise


def _is_library_source(path: Path) -> bool:
    if path.suffix != ".py":
        return False
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # users cannot convert files of the Python installation
        return False
    return True


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _count_endings(paths: Iterable[Path]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(printable(path.suffix) or "(no extension)" for path in paths).most_common(5))


def _fingerprint(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
