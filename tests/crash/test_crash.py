"""Commands that are killed, signalled or denied a write continue as if nothing had happened.

./test.sh tries some of the calls that write; `pytest -m slow tests/crash` tries all of them, with every fault, and
kills and signals at random moments. A call is one of open for writing, write, fsync, truncate, rename, link, unlink,
rmdir, mkdir and chmod.
"""

import errno
import random
import re
import shutil
import signal
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from crash.conftest import Whole
from crash.scenarios import SCENARIOS, Scenario, without_older_checkpoints
from crash.server import KILL, TEAR, Ended, Fault, Server
from fuzz.templates import Templates

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
LONGEST_LINE = 300
# Calls of each command that ./test.sh interrupts.
QUICK = 6
# Kills of each command, and how many of them are at least inside a save of a checkpoint.
KILLS = {"train": 80, "prepare": 50, "sweep": 50, "report": 20, "tune": 20}
KILLS_IN_SAVES = {"train": 40, "sweep": 20}
# Signals to a command, and how often each interrupts it.
SIGNALS = {
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT": (signal.SIGINT,),
    "SIGTERM twice": (signal.SIGTERM, signal.SIGTERM),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
}
EACH_SIGNAL = 10
STOPPED = (130, 143, -signal.SIGINT, -signal.SIGTERM)
# Random moments are within so many seconds of the start, and a second signal comes so much later.
WITHIN, LATER = 0.4, 0.03
# Signals that may come too late, for each that has to interrupt the command.
TOO_LATE = 20
# A command that makes the same calls for each of its runs, and what differs between equal calls: names of temporary
# files, hashes and numbers.
REPEATS = "tune"
DIFFERS = re.compile(r"(?<=/\.tmp)[A-Za-z0-9]{6}$|[0-9a-f]{8,}|[0-9]+(\.[0-9]+)?")


class Harness:
    """Interrupts commands, runs them again, and compares with the uninterrupted command."""

    def __init__(self, server: Server, templates: Templates, whole: Whole, folder: Path) -> None:
        self.server, self.templates, self.whole, self.folder = server, templates, whole, folder
        self.tried = 0

    def interrupt(self, name: str, fault: dict[str, Any] | None, signals: Any = ()) -> Ended:
        """Interrupt a fresh command, check what it says, and return how it ended."""
        scenario, root = SCENARIOS[name], self.folder / str(self.tried)
        self.tried += 1
        scenario.start(self.templates, root)
        armed = Fault(str(root), **fault) if fault is not None else None
        ended = self.server.run(scenario.argv, armed, signals, cwd=root)
        self._check_words(ended)
        self._resume(scenario, root, is_signalled=bool(signals))
        return ended

    def deny_read(self, name: str, number: int, error: int) -> None:
        """Let one file of a fresh command be unreadable."""
        scenario, root = SCENARIOS[name], self.folder / str(self.tried)
        self.tried += 1
        scenario.start(self.templates, root)
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        ended = self.server.run(scenario.argv, Fault(str(root), number, error, reads=True), cwd=root)
        self._check_words(ended)
        went_on = any(path not in before for path in root.rglob("step-*/*"))
        if ended.code not in (0, 1) and not went_on:
            assert before == {path: path.read_bytes() for path in before}, ended
        self._resume(scenario, root)

    def _check_words(self, ended: Ended) -> None:
        assert "Traceback" not in ended.err, ended.err
        assert ended.code in (0, 1, 2, 130, 143, -signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM), ended
        lines = ended.error_lines
        assert len(lines) <= 1, ended.err
        assert all(len(line) <= LONGEST_LINE for line in lines), lines
        if ended.code == 2:
            assert lines, ended

    def _resume(self, scenario: Scenario, root: Path, is_signalled: bool = False) -> None:
        ended = self.server.run(scenario.argv, cwd=root)
        assert ended.code in (0, 1), ended
        assert not ended.error_lines, ended.err
        found, expected = scenario.result(root), self.whole(scenario.name)[1]
        if is_signalled:
            found, expected = without_older_checkpoints(found), without_older_checkpoints(expected)
        for key in expected.keys() | found.keys():
            is_names = isinstance(found.get(key), set)
            difference = found[key] ^ expected[key] if is_names else (found.get(key), expected.get(key))
            assert found.get(key) == expected.get(key), (key, difference)
        shutil.rmtree(root)


@pytest.fixture
def harness(server: Server, templates: Templates, whole: Whole, scratch: Path) -> Harness:
    return Harness(server, templates, whole, Path(tempfile.mkdtemp(dir=scratch)))


def spread(calls: int, number: int, seed: int) -> list[int]:
    """Return some of the calls, spread over all of them."""
    start = random.Random(seed).random()
    return sorted({int((place + start) * calls / number) for place in range(min(number, calls))})


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["train", "prepare", "sweep"])
def test_a_command_that_is_killed_at_a_write_continues(name: str, harness: Harness) -> None:
    calls = harness.whole(name)[0]
    for number in spread(len(calls), QUICK, seed=1):
        for action in (KILL, TEAR):
            harness.interrupt(name, {"number": number, "action": action})


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["train", "prepare", "sweep"])
def test_a_command_that_cannot_write_says_so_in_one_line_and_continues(name: str, harness: Harness) -> None:
    calls = harness.whole(name)[0]
    for place, number in enumerate(spread(len(calls), QUICK, seed=2)):
        harness.interrupt(name, {"number": number, "action": ERRORS[place % 3]})


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["train", "prepare", "sweep"])
def test_a_command_that_gets_a_signal_continues(name: str, harness: Harness) -> None:
    for place, delay in enumerate((0.05, 0.1, 0.2)):
        number = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)[place]
        harness.interrupt(name, None, ((delay, number),))
        harness.interrupt(name, None, ((delay, signal.SIGINT), (delay + 0.002, signal.SIGINT)))


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["resume", "prepare"])
def test_a_file_that_cannot_be_read_is_not_damaged(name: str, harness: Harness) -> None:
    """The command says so in one line, removes nothing, and continues when the file can be read again."""
    calls = harness.whole(name, reads=True)[0]
    for number in range(len(calls)):
        harness.deny_read(name, number, (errno.EACCES, errno.EIO)[number % 2])


def faults(calls: Sequence[str], is_repeated: bool) -> Iterator[tuple[int, int]]:
    """Yield numbers of calls, each with every action that it can have.

    Where calls are repeated, those that differ by `DIFFERS` only count as one: each action is at any of them.
    """
    rng, equal = random.Random(3), defaultdict[str, list[int]](list)
    for number, call in enumerate(calls):
        equal[DIFFERS.sub("#", call) if is_repeated else str(number)].append(number)
    for numbers in equal.values():
        for action in (KILL, TEAR, *ERRORS):
            number = rng.choice(numbers)
            if action != TEAR or calls[number].startswith("write "):
                yield number, action


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_write_is_killed_torn_and_denied_once(name: str, harness: Harness) -> None:
    """Each call that changes files is killed, and fails with ENOSPC, EIO and EACCES; each write is torn as well.

    train (from the start and resumed), prepare, sweep and report: every call. tune makes the same calls for each of its
    runs, so there it is every kind of call: calls whose paths differ in hashes and numbers only are one kind, and each
    fault is at one of them by chance.
    """
    calls, killed = harness.whole(name)[0], 0
    for number, action in faults(calls, name == REPEATS):
        ended = harness.interrupt(name, {"number": number, "action": action})
        assert action not in (KILL, TEAR) or ended.code == -signal.SIGKILL, (number, calls[number], ended)
        killed += ended.code == -signal.SIGKILL
    kinds = len({DIFFERS.sub("#", call) for call in calls}) if name == REPEATS else len(calls)
    print(f"{name}: {len(calls)} calls, {kinds} kinds, {harness.tried} faults, {killed} of them kills")
    assert harness.tried >= 4 * kinds


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLS)
def test_two_hundred_kills(name: str, harness: Harness) -> None:
    """Every second kill is inside a save of a checkpoint, where the command saves any: at least 60 of all."""
    assert sum(KILLS.values()) >= 200
    assert sum(KILLS_IN_SAVES.values()) >= 60
    rng, calls = random.Random(4), harness.whole(name)[0]
    saves = [number for number, call in enumerate(calls) if "/checkpoints/" in call]
    killed = Counter[str]()
    while killed.total() < KILLS[name]:
        assert harness.tried < TOO_LATE * KILLS[name]
        fault, signals = None, tuple[tuple[float, int], ...]()
        if saves and killed.total() % 2:
            where, fault = "inside a save", {"number": rng.choice(saves), "action": rng.choice((KILL, TEAR))}
        elif killed.total() % 4 == 0:
            where, fault = "at a call", {"number": rng.randrange(len(calls)), "action": KILL}
        else:
            where, signals = "at any moment", ((rng.random() * WITHIN, signal.SIGKILL),)
        ended = harness.interrupt(name, fault, signals)
        killed[where] += ended.code == -signal.SIGKILL  # it may have ended before the signal came
    print(f"{name}: {killed.total()} kills, of these {dict(killed)}")
    assert killed["inside a save"] >= KILLS_IN_SAVES.get(name, 0)
    assert min(killed["at a call"], killed["at any moment"]) >= KILLS[name] // 5


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLS)
def test_signals_at_random_moments(name: str, harness: Harness) -> None:
    """Each signal, and the same signal again a moment later, until it has interrupted the command some times."""
    rng, stopped = random.Random(5), Counter[str]()
    for kind, numbers in SIGNALS.items():
        while stopped[kind] < EACH_SIGNAL:
            assert harness.tried < TOO_LATE * EACH_SIGNAL * len(SIGNALS)
            first = rng.random() * WITHIN
            moments = (first, first + rng.random() * LATER)
            ended = harness.interrupt(name, None, tuple(zip(moments, numbers, strict=False)))
            stopped[kind] += ended.code in STOPPED  # it may have ended before the signal came
    print(f"{name}: {harness.tried} tries, stopped by {dict(stopped)}")
