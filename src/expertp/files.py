"""Small things about files: writing so that a crash leaves the old or the new content, locking, hashing."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from expertp.errors import BusyError

# How often somebody may remove a directory while it is being locked, before it must be something else.
REMOVALS = 20


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
    if temporary.is_dir():
        _sync_directory(temporary)
    os.replace(temporary, path)
    _sync_directory(path.parent)


@contextmanager
def exclusive(directory: Path, busy: str) -> Iterator[None]:
    """Make a directory if need be and hold it until the end, however that comes; when somebody has it, say `busy`.

    The lock is on the directory itself and leaves no file. A directory that was made here and stays empty goes away.
    """
    was_there = directory.exists()
    descriptor = _lock(directory, busy)
    try:
        yield
    finally:
        if not was_there:
            with suppress(OSError):  # it is not empty; bad input leaves no trace
                directory.rmdir()
        os.close(descriptor)


def _lock(directory: Path, busy: str) -> int:
    """Return a descriptor that locks a directory, made if need be."""
    for _ in range(REMOVALS):
        with suppress(FileExistsError, FileNotFoundError):
            return _try_lock(directory, busy)
    return _try_lock(directory, busy)


def _try_lock(directory: Path, busy: str) -> int:
    """Do so, unless whoever had the directory removes it meanwhile."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), directory.stat()):
            raise FileNotFoundError(directory)
    except BlockingIOError:
        os.close(descriptor)
        raise BusyError(busy) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
