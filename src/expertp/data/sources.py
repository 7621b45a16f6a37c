"""Read documents from a SOURCE: `builtin`, a file or folder (text, JSONL, Parquet), or `hf:NAME[:CONFIG]`.

The order of the documents is fixed: files sorted by path, lines and rows in file order.
"""

import gzip
import hashlib
import io
import json
import os
import sysconfig
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expertp.errors import InputError, how_to_install

BUILTIN = "builtin"
HUB_PREFIX = "hf:"
JSONL_ENDINGS = (".jsonl", ".jsonl.gz")
PARQUET_ENDINGS = (".parquet",)
PROSE_ENDINGS = (".txt", ".text", ".md", ".markdown", ".rst", ".adoc", ".org", ".tex", ".html", ".htm")
CODE_ENDINGS = (
    *(".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".js", ".ts", ".go", ".rs", ".rb", ".sh"),
    *(".lua", ".jl", ".scala", ".kt", ".swift", ".sql"),
)
TEXT_ENDINGS = PROSE_ENDINGS + CODE_ENDINGS

_BUILTIN_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
_PARQUET_ROWS = 1024


@dataclass(frozen=True)
class Document:
    """One document of a corpus.

    Attributes:
        id: its place in the source: a path, `path:line` or `path:row`.
        text: its text.
        bytes_read: bytes of the source read up to the end of this document.
    """

    id: str
    text: str
    bytes_read: int


@dataclass(frozen=True)
class Corpus:
    """The files of a SOURCE, listed but not yet read.

    Attributes:
        source: SOURCE as given by the user.
        files: files to read, in order; empty for the Hugging Face Hub.
        root: directory that document ids are relative to.
        text_key: field of JSONL, Parquet and Hub rows that contains the text.
        bytes_total: total size of the files; None if unknown.
        left_out: numbers of skipped files in the folder, by extension.
        fingerprint: hash of the relative file names and sizes.
    """

    source: str
    files: tuple[Path, ...]
    root: Path
    text_key: str
    bytes_total: int | None
    left_out: tuple[tuple[str, int], ...]
    fingerprint: str


def find_corpus(source: str, text_key: str = "text") -> Corpus:
    """List the files of SOURCE; raise `InputError` if it cannot be read."""
    if source.startswith(HUB_PREFIX):
        _split_hub_name(source)
        return Corpus(source, (), Path(), text_key, None, (), _fingerprint([source, text_key]))
    if source == BUILTIN:
        root = Path(sysconfig.get_paths()["stdlib"])
        paths = [path for path in _walk(root) if path.suffix == ".py" and _is_library_source(path, root)]
        return _corpus_of_files(source, root, paths, text_key, ())
    path = Path(source)
    if path.is_file():
        return _corpus_of_files(source, path.parent, [path], text_key, ())
    if not path.is_dir():
        raise InputError(
            f"source '{source}' does not exist; give a file, a folder, '{BUILTIN}' or '{HUB_PREFIX}NAME[:CONFIG]' "
            "(see 'expertp prepare --help')"
        )
    return _corpus_of_folder(source, path, text_key)


def read_documents(corpus: Corpus) -> Generator[Document, None, None]:
    """Yield the documents of a corpus in their fixed order."""
    if corpus.source.startswith(HUB_PREFIX):
        yield from _read_hub(corpus)
        return
    bytes_before = 0
    for path in corpus.files:
        for document in _reader(path)(path, corpus):
            yield Document(document.id, document.text, bytes_before + document.bytes_read)
        bytes_before += path.stat().st_size


def _corpus_of_folder(source: str, root: Path, text_key: str) -> Corpus:
    paths = list(_walk(root))
    # If there are data files, read only these: a README next to them is not part of the corpus.
    chosen = [path for path in paths if path.name.endswith(JSONL_ENDINGS + PARQUET_ENDINGS)]
    chosen = chosen or [path for path in paths if path.name.endswith(TEXT_ENDINGS)]
    if not chosen:
        seen = ", ".join(f"{count} {ending}" for ending, count in _count_endings(paths)) or "no files"
        raise InputError(
            f"no readable files in folder '{source}' (it has {seen}); supported extensions are "
            f"{' '.join(JSONL_ENDINGS + PARQUET_ENDINGS + TEXT_ENDINGS)}; rename the files or give one file"
        )
    kept = set(chosen)
    left_out = _count_endings(path for path in paths if path not in kept)
    return _corpus_of_files(source, root, chosen, text_key, left_out)


def _corpus_of_files(
    source: str, root: Path, paths: Iterable[Path], text_key: str, left_out: tuple[tuple[str, int], ...]
) -> Corpus:
    files = tuple(sorted(paths, key=lambda path: _name(path, root)))
    sizes = [path.stat().st_size for path in files]
    names = [f"{_name(path, root)} {size}" for path, size in zip(files, sizes, strict=True)]
    return Corpus(source, files, root, text_key, sum(sizes), left_out, _fingerprint([text_key, *names]))


def _walk(root: Path) -> Iterator[Path]:
    """Yield every file below `root` except hidden files and files in hidden folders."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def _is_library_source(path: Path, root: Path) -> bool:
    if _BUILTIN_LEFT_OUT.intersection(path.relative_to(root).parts):
        return False
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # users cannot convert files of the Python installation
        return False
    return True


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _count_endings(paths: Iterable[Path]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(path.suffix or "(no extension)" for path in paths).most_common(5))


def _fingerprint(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _reader(path: Path) -> Callable[[Path, Corpus], Iterator[Document]]:
    if path.name.endswith(JSONL_ENDINGS):
        return _read_jsonl
    return _read_parquet if path.name.endswith(PARQUET_ENDINGS) else _read_text


def _read_text(path: Path, corpus: Corpus) -> Iterator[Document]:
    content = path.read_bytes()
    yield Document(_name(path, corpus.root), _decode(content, f"{path}", 0), len(content))


def _read_jsonl(path: Path, corpus: Corpus) -> Iterator[Document]:
    name = _name(path, corpus.root)
    with path.open("rb") as file:
        lines = gzip.GzipFile(fileobj=file) if path.name.endswith(".gz") else file
        offset = 0
        for number, line in enumerate(_lines(path, lines), start=1):
            if not line.isspace():
                text = _text_of_line(_decode(line, f"{path}:{number}", offset), f"{path}:{number}", corpus.text_key)
                yield Document(f"{name}:{number}", text, file.tell() if lines is not file else offset + len(line))
            offset += len(line)


def _lines(path: Path, file: io.BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    try:
        yield from file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}); download or compress it again") from None


def _text_of_line(line: str, where: str, text_key: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where} is not JSON ({error.msg} at column {error.colno}); JSONL has one JSON object per line"
        ) from None
    if not isinstance(row, dict):
        raise InputError(f'{where} is a JSON {type(row).__name__}, not an object; write {{"{text_key}": ...}} per line')
    return _text_field(row, where, text_key)


def _text_field(row: dict[str, Any], where: str, text_key: str) -> str:
    if text_key not in row:
        raise _missing_field(where, text_key, row)
    text = row[text_key]
    if not isinstance(text, str):
        raise InputError(
            f"{where}: field '{text_key}' is {type(text).__name__}, not a string; choose another field with --text-key"
        )
    return _without_surrogates(text)


def _missing_field(where: str, text_key: str, fields: Iterable[str]) -> InputError:
    return InputError(
        f"{where} has no field '{text_key}'; its fields are {', '.join(fields) or '(none)'}; choose one with --text-key"
    )


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which are valid in JSON but not in UTF-8, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _decode(content: bytes, where: str, offset: int) -> str:
    try:
        return content.decode("utf-8-sig" if offset == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} is not UTF-8 (byte 0x{content[error.start]:02x} at offset {offset + error.start}); convert it, "
            "for example: iconv -f LATIN1 -t UTF-8 OLD > NEW"
        ) from None


def _read_parquet(path: Path, corpus: Corpus) -> Iterator[Document]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(f"reading {path} needs pyarrow: {how_to_install('data')}") from None
    name, size = _name(path, corpus.root), path.stat().st_size
    try:
        with parquet.ParquetFile(path) as table:
            if corpus.text_key not in table.schema_arrow.names:
                raise _missing_field(str(path), corpus.text_key, table.schema_arrow.names)
            row = 0
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=[corpus.text_key]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    text = _text_field({corpus.text_key: text}, f"{path}:{row}", corpus.text_key)
                    yield Document(f"{name}:{row}", text, size * row // table.metadata.num_rows)
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, OSError) as error:
        raise InputError(
            f"{path} cannot be read as Parquet ({_first_line(error)}); download or write it again"
        ) from None


def _split_hub_name(source: str) -> tuple[str, str | None]:
    name, _, config = source.removeprefix(HUB_PREFIX).partition(":")
    if not name:
        raise InputError(f"source '{source}' names no dataset; write {HUB_PREFIX}NAME[:CONFIG], e.g. hf:allenai/c4:en")
    return name, config or None


def _read_hub(corpus: Corpus) -> Iterator[Document]:
    name, config = _split_hub_name(corpus.source)
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # hide messages about retries
    try:
        import datasets
    except ImportError:
        raise InputError(f"reading {corpus.source} needs datasets: {how_to_install('data')}") from None
    bytes_read = 0
    try:
        rows = datasets.load_dataset(name, config, split="train", streaming=True)
        for number, row in enumerate(rows, start=1):
            text = _text_field(row, f"{corpus.source}:{number}", corpus.text_key)
            bytes_read += len(text.encode())
            yield Document(f"{corpus.source}:{number}", text, bytes_read)
    except InputError:
        raise
    except Exception as error:  # datasets raises many types for bad names, configs and networks
        raise InputError(
            f"cannot read the Hugging Face dataset '{name}' ({type(error).__name__}: {_first_line(error)}); check the "
            f"name, the config ({config or 'none given'}) and the network, then run the same command to resume"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no message"])[0]
