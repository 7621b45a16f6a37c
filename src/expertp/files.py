"""Small things about files: writing so that a crash leaves the old or the new content, and hashing."""

import hashlib
import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` so that `path` holds either all of it or what it held before, even after a crash."""
    temporary = temporary_name(path)
    write_durably(temporary, content)
    move_into_place(temporary, path)


def write_durably(path: Path, content: bytes, mode: str = "wb") -> None:
    """Write (or, with mode "ab", append) and return when the bytes are on disk."""
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Return when a file that somebody else wrote is on disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def temporary_name(path: Path) -> Path:
    """Return the hidden name under which `path` is written before it is complete.

    >>> temporary_name(Path("tokens/train_00000.bin")).name
    '.train_00000.bin.tmp'
    """
    return path.with_name(f".{path.name}.tmp")


def move_into_place(temporary: Path, path: Path) -> None:
    """Rename a complete, synced file or directory to its real name, and make the rename itself durable."""
    os.replace(temporary, path)
    if os.name == "posix":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def file_sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
