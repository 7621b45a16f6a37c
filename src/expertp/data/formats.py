"""Read the documents of one plain text, JSONL or Parquet file, or of a dataset of the Hugging Face Hub."""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expertp.errors import InputError, how_to_install, printable, shortened, shown

HUB_PREFIX = "hf:"
JSONL_ENDINGS = (".jsonl", ".jsonl.gz")
PARQUET_ENDINGS = (".parquet",)
# Bytes of the largest document of plain text, and of the longest line of JSONL: both are held several times.
LARGEST_TEXT = 2**28
LONGEST_JSON = 2**28

_PARQUET_ROWS = 1024
_MOST_FIELDS = 12


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


def read_file(path: Path, name: str, text_key: str) -> Iterator[Document]:
    """Yield the documents of a file; `name` starts their ids, and the file's extension is its format."""
    if path.name.endswith(JSONL_ENDINGS):
        return _read_jsonl(path, name, text_key)
    return _read_parquet(path, name, text_key) if path.name.endswith(PARQUET_ENDINGS) else read_text(path, name)


def too_large(what: str) -> InputError:
    """Return the error for a document of plain text that is too large."""
    return InputError(
        f"{what} has more than {LARGEST_TEXT >> 20} MiB, the most for one document; split it into several files"
    )


def read_text(path: Path, name: str, where: str = "") -> Iterator[Document]:
    """Yield a file as one document of plain text; `where` names it in error messages (default: its path)."""
    yield _whole_text(path, name, where or f"{path}")


def _whole_text(path: Path, name: str, where: str) -> Document:
    # A function of its own, so that the bytes are not kept while the document is used.
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > LARGEST_TEXT:
            raise too_large(where)
        content = file.read()
    return Document(name, _decode(content, where, 0), len(content))


def _read_jsonl(path: Path, name: str, text_key: str) -> Iterator[Document]:
    with path.open("rb") as file:
        lines = gzip.GzipFile(fileobj=file) if path.name.endswith(".gz") else file
        offset = 0
        for number, line in enumerate(_lines(path, lines), start=1):
            if not line.isspace():
                text = _text_of_line(_decode(line, f"{path}:{number}", offset), f"{path}:{number}", text_key)
                yield Document(f"{name}:{number}", text, file.tell() if lines is not file else offset + len(line))
            offset += len(line)


def _lines(path: Path, file: Any) -> Iterator[bytes]:
    """Yield the lines of a binary file, whose length is bounded whatever the file decompresses to."""
    number = 0
    try:
        while line := file.readline(LONGEST_JSON + 1):
            number += 1
            if len(line) > LONGEST_JSON:
                raise InputError(
                    f"{path}:{number} is longer than {LONGEST_JSON >> 20} MiB; JSONL has one JSON object per line"
                )
            yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}); download or compress it again") from None


def _text_of_line(line: str, where: str, text_key: str) -> str:
    try:
        row = json.loads(line)
        is_repeated = line.count(json.dumps(text_key)) > 1 and _is_repeated(line, text_key)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            what = f"{error.msg} at column {error.colno}"
        else:
            what = "too deeply nested" if isinstance(error, RecursionError) else "an integer has too many digits"
        raise InputError(f"{where} is not JSON ({what}); JSONL has one JSON object per line") from None
    if not isinstance(row, dict):
        raise InputError(
            f"{where} is a JSON {type(row).__name__}, not an object; write {{{json.dumps(text_key)}: ...}} per line"
        )
    if is_repeated:
        raise InputError(f"{where} has the field {shown(text_key)} more than once; keep one of them")
    return _text_field(row, where, text_key)


def _is_repeated(line: str, text_key: str) -> bool:
    """Return whether an object has a field more than once, of which JSON parsers keep one."""
    pairs = json.loads(line, object_pairs_hook=list)  # objects become lists of pairs
    return (
        line.lstrip().startswith("{") and isinstance(pairs, list) and sum(1 for key, _ in pairs if key == text_key) > 1
    )


def _text_field(row: dict[str, Any], where: str, text_key: str) -> str:
    if text_key not in row:
        raise _missing_field(where, text_key, row)
    text = row[text_key]
    if not isinstance(text, str):
        raise _not_text(where, text_key, "null" if text is None else type(text).__name__)
    return _without_surrogates(text)


def _not_text(where: str, text_key: str, found: str) -> InputError:
    found = shortened(printable(found), 60)
    return InputError(
        f"{where}: field {shown(text_key)} is {found}, not a string; choose another field with --text-key"
    )


def _missing_field(where: str, text_key: str, fields: Iterable[str]) -> InputError:
    names = [shortened(printable(field), 30) for field in fields]
    listed = ", ".join(names[:_MOST_FIELDS]) + (", ..." if len(names) > _MOST_FIELDS else "")
    return InputError(
        f"{where} has no field {shown(text_key)}; its fields are {listed or '(none)'}; choose one with --text-key"
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
        # A byte order mark is not counted by the error.
        start = error.start + len(content) - len(error.object)
        raise InputError(
            f"{where} is not UTF-8 (byte 0x{content[start]:02x} at offset {offset + start}); convert it, "
            "for example: iconv -f LATIN1 -t UTF-8 OLD > NEW"
        ) from None


def _read_parquet(path: Path, name: str, text_key: str) -> Iterator[Document]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(f"reading {path} needs pyarrow: {how_to_install('data')}") from None
    size = path.stat().st_size
    try:
        with parquet.ParquetFile(path) as table:
            _check_column(path, table.schema_arrow, text_key)
            row = 0
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=[text_key]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    text = _text_field({text_key: text}, f"{path}:{row}", text_key)
                    yield Document(f"{name}:{row}", text, min(size, size * row // max(1, table.metadata.num_rows)))
    except (arrow.ArrowException, OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file cannot be read, which is no damage
        raise InputError(
            f"{path} cannot be read as Parquet ({_first_line(error)}); download or write it again"
        ) from None


def _check_column(path: Path, schema: Any, text_key: str) -> None:
    """Raise `InputError` if a Parquet file has no column of strings with this name."""
    import pyarrow.types as types

    if text_key not in schema.names:
        raise _missing_field(str(path), text_key, schema.names)
    kind = schema.types[schema.names.index(text_key)]
    stored = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(stored) or types.is_large_string(stored) or types.is_string_view(stored)):
        raise _not_text(str(path), text_key, str(kind))


def split_hub_name(source: str) -> tuple[str, str | None]:
    """Return the name and the config of `hf:NAME[:CONFIG]`."""
    name, _, config = source.removeprefix(HUB_PREFIX).partition(":")
    if not name:
        raise InputError(
            f"source {shown(source)} names no dataset; write {HUB_PREFIX}NAME[:CONFIG], e.g. hf:allenai/c4:en"
        )
    return name, config or None


def read_hub(source: str, text_key: str) -> Iterator[Document]:
    """Yield the documents of the train split of `hf:NAME[:CONFIG]`."""
    name, config = split_hub_name(source)
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # hide messages about retries
    try:
        import datasets
    except ImportError:
        raise InputError(f"reading {source} needs datasets: {how_to_install('data')}") from None
    bytes_read = 0
    try:
        rows = datasets.load_dataset(name, config, split="train", streaming=True)
        for number, row in enumerate(rows, start=1):
            text = _text_field(row, f"{source}:{number}", text_key)
            bytes_read += len(text.encode())
            yield Document(f"{source}:{number}", text, bytes_read)
    except InputError:
        raise
    except Exception as error:  # datasets raises many types for bad names, configs and networks
        raise InputError(
            f"cannot read the Hugging Face dataset {shown(name)} ({type(error).__name__}: {_first_line(error)}); check "
            f"the name, the config ({config or 'none given'}) and the network, then run the same command to resume"
        ) from None


def _first_line(error: Exception) -> str:
    return shortened((str(error).splitlines() or ["no message"])[0], 120)
