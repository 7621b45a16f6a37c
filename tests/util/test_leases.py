"""Leases, held by threads and processes of this machine and by processes of machines that are made up."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest

from expertp.errors import BusyError, InputError
from expertp.util import leases as module
from expertp.util.files import NO_LINKS
from expertp.util.leases import Holder, Leases, lease_seconds

SECONDS = 0.6
ELSEWHERE = Holder("elsewhere", os.getpid(), "another boot/1")
HOLDS = """
import sys, time
from pathlib import Path
from expertp.errors import BusyError
from expertp.util.leases import Leases
with Leases(Path(sys.argv[1])).hold("run", "busy") as lease:
    print("held", flush=True)
    while True:
        time.sleep(0.01)
        try:
            lease.check()
        except BusyError as error:
            print(error, flush=True)
            break
"""


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTP_LEASE_SECONDS", str(SECONDS))


def write(folder: Path, number: int, holder: Holder) -> Path:
    path = folder / "run" / f"{number}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(asdict(holder)))
    return path


def until(is_so: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def can_hold(leases: Leases) -> bool:
    try:
        with leases.hold("run", "busy"):
            return True
    except BusyError:
        return False


def test_a_lease_has_one_holder_and_can_be_held_again(tmp_path: Path) -> None:
    leases = Leases(tmp_path)
    for number in (1, 2):
        with leases.hold("run", "busy") as lease:
            assert lease.path.name == f"{number}.json"
            assert leases.holder("run") == lease.holder
            assert leases.held_by(os.getpid()) == ["run"]
            assert not can_hold(Leases(tmp_path))
        assert leases.holder("run") is None
    assert leases.held_by(os.getpid()) == []
    leases.forget("run")
    assert not tmp_path.exists()


@pytest.mark.heavy
def test_of_many_that_want_a_lease_one_gets_it(tmp_path: Path) -> None:
    at_once = threading.Lock()
    held = []

    def visit(_: int) -> None:
        try:
            with Leases(tmp_path).hold("run", "busy"):
                assert at_once.acquire(blocking=False)
                held.append(1)
                at_once.release()
        except BusyError:
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(visit, range(400)))
    assert 1 <= len(held) == len(list((tmp_path / "run").iterdir()))


def test_the_lease_of_a_dead_process_of_this_machine_is_over_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert not can_hold(Leases(tmp_path))
        process.kill()
    assert Leases(tmp_path).held_by(process.pid) == ["run"]
    assert can_hold(Leases(tmp_path))


def test_a_holder_on_another_machine_is_dead_when_it_gives_no_sign_of_life(tmp_path: Path) -> None:
    path, leases = write(tmp_path, 1, ELSEWHERE), Leases(tmp_path)
    os.utime(path, (0, 0))  # the clock of the other machine is wrong
    began = time.monotonic()
    for place in range(4):  # it lives for longer than a lease, as long as it gives signs of life
        assert not can_hold(leases)
        time.sleep(SECONDS / 2)
        os.utime(path, (place, place + 1))
    assert time.monotonic() - began > 1.5 * SECONDS
    until(lambda: can_hold(leases))
    assert time.monotonic() - began > 2.5 * SECONDS


def test_a_dead_holder_is_succeeded_once(tmp_path: Path) -> None:
    write(tmp_path, 1, ELSEWHERE)
    others = [Leases(tmp_path) for _ in range(4)]
    assert not any(can_hold(each) for each in others)
    time.sleep(1.1 * SECONDS)
    with others[0].hold("run", "busy"):
        assert not any(can_hold(each) for each in others[1:])
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["1.json", "2.json"]


def test_who_looked_too_early_does_not_take_what_another_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1, ELSEWHERE)
    late = Leases(tmp_path)
    monkeypatch.setattr(late, "_is_over", lambda *_: True)
    monkeypatch.setattr(late, "_last_number", lambda _: 1)  # what a file server with an outdated view says
    (tmp_path / "run/2.json").write_text(json.dumps(asdict(ELSEWHERE)))
    assert not can_hold(late)
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.heavy
def test_a_holder_that_was_suspended_finds_that_it_has_lost(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGSTOP)
        leases = Leases(tmp_path)
        assert not can_hold(leases)
        time.sleep(1.2 * SECONDS)
        with leases.hold("run", "busy") as lease:
            process.send_signal(signal.SIGCONT)
            assert "another process has taken over" in process.stdout.readline()
            assert process.wait(timeout=20) == 0
            lease.check()  # the one that lost has changed nothing
            assert leases.holder("run") == lease.holder


def test_a_lease_that_was_removed_is_lost(tmp_path: Path) -> None:
    with Leases(tmp_path).hold("run", "busy") as lease:
        lease.path.unlink()
        until(lambda: lease.is_lost)
        with pytest.raises(BusyError):
            lease.check()


def test_without_hard_links_there_is_still_one_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(NO_LINKS[0], "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    with Leases(tmp_path).hold("run", "busy") as lease:
        assert Leases(tmp_path).holder("run") == lease.holder
        assert not can_hold(Leases(tmp_path))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["1.json"]


def test_files_of_others_are_no_holders(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("x.json", "0.json", ".5.json.tmp", "²²².json"):
        (tmp_path / "run" / name).write_text("mine")
    (tmp_path / "run/7.json").write_text("not a holder")
    leases = Leases(tmp_path)
    assert (leases.holder("run"), leases.held_by(os.getpid())) == (None, [])
    assert not can_hold(leases)  # whoever wrote it may live
    time.sleep(1.1 * SECONDS)
    assert can_hold(leases)


@pytest.mark.parametrize("text", ["never", "0", "nan", "-1", "1e9"])
def test_a_time_that_makes_no_sense_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTP_LEASE_SECONDS", text)
    with pytest.raises(InputError, match=r"EXPERTP_LEASE_SECONDS='.*': give seconds from"):
        lease_seconds()
    monkeypatch.delenv("EXPERTP_LEASE_SECONDS")
    assert lease_seconds() == module.LEASE_SECONDS


def test_a_file_in_the_place_of_a_lease_is_held_by_nobody(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    assert Leases(tmp_path).holder("run") is None
    assert Leases(tmp_path).held_by(os.getpid()) == []


@pytest.mark.parametrize("make", [lambda path: path.symlink_to(path.name), os.mkfifo, Path.mkdir])
def test_what_is_no_file_in_the_place_of_a_lease_is_over(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "run").mkdir()
    make(tmp_path / "run/1.json")
    leases = Leases(tmp_path)
    assert leases.holder("run") is None
    with leases.hold("run", "busy") as lease:
        assert lease.path.name == "2.json"


def test_a_lease_that_is_forgotten_takes_no_file_of_others_along(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "leases")
    for name in ("mine", "shared"):
        with leases.hold(name, "busy"):
            pass
    stray = tmp_path / "leases" / "shared" / "notes.txt"
    stray.write_text("text")
    for name in ("mine", "shared"):
        leases.forget(name)
    assert [path for path in (tmp_path / "leases").rglob("*") if path.is_file()] == [stray]
    assert not (tmp_path / "leases" / "mine").exists()
