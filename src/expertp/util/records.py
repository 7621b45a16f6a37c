"""Records: JSON files that the program writes and reads back.

All records are read here, so that one rule says what a damaged record is: a file that is not the JSON of its type.
A missing file stays a `FileNotFoundError`, and a file that cannot be read stays an `OSError`.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from expertp.errors import DamagedError, InputError, shown
from expertp.util.files import write_atomically

# Size of the largest file that is read as a record; those of the program are smaller by far.
LARGEST_RECORD = 2**26
# A count in a record. Larger integers overflow where they meet floats or tensors.
Count = Annotated[int, Field(ge=0, lt=2**63)]

RecordT = TypeVar("RecordT")
_adapter: Any = cache(TypeAdapter)


def read_record(path: Path, kind: type[RecordT], remedy: str) -> RecordT:
    """Read a JSON file as a value of a type.

    Args:
        path: the file.
        kind: a dataclass, or any other type that pydantic validates; unknown keys of an object are ignored.
        remedy: what to do if the file is damaged; the end of the error message.

    Raises:
        DamagedError: the file is not the JSON of such a value.
        OSError: the file is missing or cannot be read.
    """
    return parse_record(read_bounded(path, remedy), kind, str(path), remedy)


def parse_record(content: bytes, kind: type[RecordT], where: str, remedy: str) -> RecordT:
    """Return the value of a JSON text; `where` names its place in the error message.

    >>> parse_record(b"[1, 2]", list, "counts.json", "write it again")
    [1, 2]
    """
    try:
        value: RecordT = _adapter(kind).validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"][:4])
        found = "" if first["type"] in ("json_invalid", "missing") else f", not {shown(first['input'])}"
        what = f"{place}: {first['msg']}" if place else first["msg"]
        raise DamagedError(f"{where}: damaged ({what[0].lower()}{what[1:]}{found}); {remedy}") from None
    return value


def read_bounded(path: Path, remedy: str, largest: int = LARGEST_RECORD) -> bytes:
    """Return the content of a regular file of at most `largest` bytes."""
    with loops_are_damage(path, remedy):
        if path.exists() and not path.is_file():
            raise DamagedError(f"{path}: damaged (not a regular file); {remedy}")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > largest:
                raise DamagedError(f"{path}: damaged (larger than {largest >> 20} MiB); {remedy}")
            return file.read(size)


def read_text(path: Path, remedy: str) -> str:
    """Return the text of a file that a user has named; a byte order mark is left out."""
    try:
        return read_bounded(path, remedy).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; {remedy}") from None


@contextmanager
def loops_are_damage(path: Path, remedy: str) -> Iterator[None]:
    """Raise `DamagedError` for a link that leads to itself: there is no file that could be read another time."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise DamagedError(f"{path}: damaged (a link that leads to itself); {remedy}") from None


def write_record(path: Path, tree: Mapping[str, Any]) -> None:
    """Write a record atomically as indented JSON."""
    write_atomically(path, (json.dumps(tree, indent=2) + "\n").encode())
