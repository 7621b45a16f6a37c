"""Files: atomic and durable writes, directory locks, hashes."""

import errno
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from expertp.errors import BusyError, InputError, RunError
from expertp.util.machine import host, lives

# Attempts to lock a directory that another process removes at the same time.
LOCK_ATTEMPTS = 20
# Seconds between two attempts while another process has the lock.
LOCK_SECONDS = 0.2
# Errors after which no file can be written in a directory.
NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# The file that is locked in a directory, and errors of file systems without locks.
LOCK_FILE = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# Errors of file systems without hard links.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class FullDiskError(RunError):
    """The disk is full or read-only."""


@contextmanager
def stopping_on_full_disk(directory: Path) -> Iterator[None]:
    """Raise `FullDiskError` for errors that say that no file can be written."""
    try:
        yield
    except FullDiskError:
        raise
    except Exception as error:
        if (number := not_writable(error)) is None:
            raise
        what = "mount it writable" if number == errno.EROFS else "free some space"
        raise FullDiskError(
            f"{directory}: {os.strerror(number)}; {what} and run the same command again; it continues from the last "
            "checkpoints"
        ) from error


def not_writable(error: BaseException) -> int | None:
    """Return the number of the system's error if an error or its cause says that the disk is full or read-only.

    >>> not_writable(OSError(errno.ENOSPC, "")) == errno.ENOSPC, not_writable(OSError(errno.EACCES, ""))
    (True, None)
    """
    if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
        return error.errno
    return not_writable(error.__cause__) if error.__cause__ is not None else None


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` such that after a crash `path` has either its old or its new content."""
    temporary = temporary_name(path)
    write_durably(temporary, content)
    move_into_place(temporary, path)


def write_among_others(path: Path, content: bytes) -> None:
    """Write a file atomically, under a temporary name of this process: several processes may write it at once."""
    temporary = path.with_name(f".{path.name}.{host()}.{os.getpid()}.tmp")
    try:
        write_durably(temporary, content)
        move_into_place(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def create_once(path: Path, content: bytes) -> None:
    """Create a complete file, or raise FileExistsError: of several processes, on any machine, one succeeds."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # machines may share a name
    try:
        write_durably(temporary, content)
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        move_into_place(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of `write_among_others` whose processes, of this machine, were killed."""
    for path in folder.glob(f".*.{host()}.*.tmp"):
        pid = path.name.split(".")[-2]
        if pid.isdecimal() and not lives(int(pid)):
            path.unlink(missing_ok=True)


def write_durably(path: Path, content: bytes, mode: str = "wb") -> None:
    """Write (or append, with mode "ab") and sync to disk."""
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Sync an existing file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def temporary_name(path: Path) -> Path:
    """Return the hidden name of `path` until it is complete.

    >>> temporary_name(Path("tokens/train_00000.bin")).name
    '.train_00000.bin.tmp'
    """
    return path.with_name(f".{path.name}.tmp")


def move_into_place(temporary: Path, path: Path) -> None:
    """Rename a complete, synced file or directory to its final name and sync the rename to disk."""
    if temporary.is_dir():
        _sync_directory(temporary)
    os.replace(temporary, path)
    _sync_directory(path.parent)


@contextmanager
def exclusive(directory: Path, busy: str, is_temporary: bool = False, patience: float = 0.0) -> Iterator[None]:
    """Lock a directory, creating it if needed; raise `BusyError(busy)` if another process keeps its lock.

    `patience` is the number of seconds to wait for the other process.

    The lock is on a file `.lock` in the directory, opened for writing: NFS grants no lock on a directory. The file
    stays, because removing it would let a machine with an outdated view lock the removed file; only a command that
    fails leaves no new file. A directory that was created here, or that is temporary, is removed if it is empty.
    """
    lock, was_there = directory / LOCK_FILE, directory.exists()
    had_lock, has_failed = lock.exists(), True
    descriptor = _lock(directory, busy, time.monotonic() + patience)
    try:
        yield
        has_failed = False
    finally:
        with suppress(OSError):
            goes = (is_temporary or not was_there) and os.listdir(directory) == [LOCK_FILE]
            if goes or (has_failed and not had_lock):
                lock.unlink()
            if goes:
                directory.rmdir()
        os.close(descriptor)


def _lock(directory: Path, busy: str, until: float) -> int:
    """Lock a directory, creating it if needed, and return the descriptor that holds the lock; wait until a time."""
    for _ in range(LOCK_ATTEMPTS):
        with suppress(FileExistsError, FileNotFoundError):
            while True:
                try:
                    return _try_lock(directory, busy)
                except BusyError:
                    if time.monotonic() >= until:
                        raise
                time.sleep(LOCK_SECONDS)
    return _try_lock(directory, busy)


def _try_lock(directory: Path, busy: str) -> int:
    """Try once; raises FileNotFoundError or FileExistsError if another process removes the directory meanwhile."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EROFS) and not os.access(directory, os.W_OK):
            return os.open(directory, os.O_RDONLY)  # nothing can be written here, so there is nothing to lock
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), path.lstat()):
            raise FileNotFoundError(path)
    except BlockingIOError:
        os.close(descriptor)
        raise BusyError(busy) from None
    except OSError as error:
        os.close(descriptor)
        if error.errno in NO_LOCKS:
            raise InputError(
                f"{directory}: its file system has no locks ({os.strerror(error.errno)}); choose a directory "
                "on another one, or have it mounted with locks (Lustre: -o flock)"
            ) from None
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
