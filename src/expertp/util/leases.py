"""Leases: who works on what, among processes of several machines that share a directory, but maybe no locks.

FOLDER/NAME/NUMBER.json says who holds, or held, the lease NAME; the highest number counts. A file is created by a hard
link, which the file server grants to one process only, so a lease has one holder, and a dead holder's lease is taken
over once. The holder touches its file every few seconds. A lease is over when its holder has released it, when its
process is dead, or when the file was not touched for LEASE_SECONDS by the clock of who looks: the clocks of the
machines need not agree. A holder that was suspended for so long finds the next number, and must not write any more.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from expertp.errors import BusyError, DamagedError, InputError, shown
from expertp.util.files import create_once, write_among_others
from expertp.util.machine import host, lives, process_space
from expertp.util.records import Count, read_record

# Without a sign of life for so long, a holder counts as dead; all machines of a study need the same value.
LEASE_SECONDS, VARIABLE = 90.0, "EXPERTP_LEASE_SECONDS"
BEATS_PER_LEASE = 6
LEASE_FILE = re.compile(r"[1-9][0-9]{0,8}\.json")
TEMPORARY_FILE = re.compile(r"\.[1-9][0-9]{0,8}\.json\..*\.tmp")


@dataclass(frozen=True)
class Holder:
    """NUMBER.json: the process that holds a lease; `space` says on which machine its number means something."""

    host: str
    pid: Count
    space: str
    is_released: bool = False

    @property
    def is_here(self) -> bool:
        """Whether its number is that of a process of this machine."""
        return self.space == process_space()

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to have ended: that of another machine is not."""
        return self.is_here and not lives(self.pid)


def lease_seconds() -> float:
    """Return the time after which a silent holder counts as dead; EXPERTP_LEASE_SECONDS changes it."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or LEASE_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86_400:
        raise InputError(f"{VARIABLE}={shown(text)}: give seconds from 0.1 to 86400")
    return seconds


class LostError(BusyError):
    """Another process has taken over what this process held."""


class Lease:
    """A lease that this process holds, and the thread that keeps it."""

    def __init__(self, path: Path, holder: Holder, seconds: float) -> None:
        self.path, self.holder, self.seconds = path, holder, seconds
        self.is_lost = False
        self._next = path.with_name(f"{int(path.stem) + 1}.json")
        self._touched_at, self._end = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `LostError` if another process has taken the lease over; call it before writing what it protects."""
        if time.monotonic() - self._touched_at > self.seconds / 2:  # suspended, or the file server did not answer
            self._touch()
        if self.is_lost:
            raise LostError(f"{self.path}: another process has taken over, because this one gave no sign of life")

    def release(self) -> None:
        """Let others have the lease; errors do not matter, because it ends without us."""
        self._end.set()
        self._thread.join()
        with suppress(OSError):
            if not (self.is_lost or self._next.exists()):
                write_among_others(self.path, _as_json(replace(self.holder, is_released=True)))

    def _keep(self) -> None:
        while not self._end.wait(self.seconds / BEATS_PER_LEASE):
            self._touch()

    def _touch(self) -> None:
        try:
            self.is_lost = self.is_lost or self._next.exists()
            os.utime(self.path)
            self._touched_at = time.monotonic()
        except FileNotFoundError:  # removed: there is nothing left to protect
            self.is_lost = True
        except OSError:  # the file server may answer again
            pass


class Leases:
    """The leases in a folder, as this process sees them. It remembers when it saw a sign of life of other holders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[Path, tuple[int, float]] = {}

    @contextmanager
    def hold(self, name: str, busy: str) -> Iterator[Lease]:
        """Hold a lease; raise `BusyError(busy)` while another process does."""
        seconds, number = lease_seconds(), self._last_number(name)
        if number and not self._is_over(self._path(name, number), seconds):
            raise BusyError(busy)
        path, holder = self._path(name, number + 1), Holder(host(), os.getpid(), process_space())
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            create_once(path, _as_json(holder))
        except FileExistsError:
            raise BusyError(busy) from None
        lease = Lease(path, holder, seconds)
        try:
            yield lease
        finally:
            lease.release()

    def holder(self, name: str) -> Holder | None:
        """Return who seems to hold a lease now, by the clock of this machine; None if nobody does."""
        path = self._path(name, self._last_number(name))
        holder = _read(path)
        if holder is None or holder.is_released or holder.is_dead:
            return None
        try:
            age = time.time() - path.stat().st_mtime
        except FileNotFoundError:  # it has just been forgotten
            return None
        return holder if holder.is_here or age < 2 * lease_seconds() else None

    def names(self) -> list[str]:
        """Return the names of all leases that were ever held and not forgotten."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(path.name for path in self.folder.iterdir())
        return []

    def held_by(self, pid: int) -> list[str]:
        """Return the leases that a process of this machine holds, or held when it died."""
        held = {name: _read(self._path(name, self._last_number(name))) for name in self.names()}
        here = (process_space(), pid, False)
        return [name for name, each in held.items() if each and (each.space, each.pid, each.is_released) == here]

    def forget(self, name: str) -> None:
        """Remove a lease whose work is done for ever; files of others in its folder stay."""
        with suppress(OSError):
            for path in (self.folder / name).iterdir():
                if LEASE_FILE.fullmatch(path.name) or TEMPORARY_FILE.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        with suppress(OSError):
            (self.folder / name).rmdir()
        with suppress(OSError):  # others are left
            self.folder.rmdir()

    def _is_over(self, path: Path, seconds: float) -> bool:
        holder = _read(path)
        if holder is not None and (holder.is_released or holder.is_dead):
            return True
        if os.path.lexists(path) and not path.is_file():  # a link that leads to itself, a pipe: nobody's
            return True
        try:
            with path.open("rb") as file:  # opening asks the file server, where a bare stat may answer from a cache
                touched = os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return False  # it has just been forgotten
        now = time.monotonic()
        before, since = self._seen.setdefault(path, (touched, now))
        if before != touched:
            self._seen[path] = touched, now
            return False
        return now - since > seconds

    def _last_number(self, name: str) -> int:
        with suppress(FileNotFoundError, NotADirectoryError):
            found = [path.stem for path in (self.folder / name).iterdir() if LEASE_FILE.fullmatch(path.name)]
            return max(map(int, found), default=0)
        return 0

    def _path(self, name: str, number: int) -> Path:
        return self.folder / name / f"{number}.json"


def _read(path: Path) -> Holder | None:
    try:
        return read_record(path, Holder, "remove it")
    except (FileNotFoundError, NotADirectoryError, DamagedError):  # no process of the program wrote it
        return None


def _as_json(holder: Holder) -> bytes:
    return json.dumps(asdict(holder)).encode()
