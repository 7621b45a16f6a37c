"""Properties of this machine and of this process on it: processor, cores, memory, place among other processes."""

import ctypes
import errno
import os
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from expertp.errors import InputError, shown

# Variables by which a launcher gives a process its place among others, or the place where they meet.
LAUNCHER_VARIABLE = re.compile(
    r"((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
    r"|SLURM_(PROCID|LOCALID|STEP_NUM_TASKS|STEP_TASKS_PER_NODE)"
)
# Variables that hold the place of a process among those of a launcher, and their number: torchrun's and srun's.
PLACES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


def processor_name() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def memory_bytes() -> int:
    """Return the size of the main memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def release_memory() -> None:
    """Return freed memory to the system, if the C library supports it.

    Without it, a worker that trains many models keeps several times the memory of the largest one.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not glibc
        return
    trim(0)


def host() -> str:
    """Return the name of this machine."""
    return platform.node()


def lives(pid: int) -> bool:
    """Return whether a process of this machine exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        pass
    return True


def core_share(pid: int) -> float | None:
    """Return the CPU time of a process of this machine divided by its age; None if the system does not say.

    It is about 1 for a process that computes with one thread on a core of its own.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
        ticks = os.sysconf("SC_CLK_TCK")
        return (int(fields[11]) + int(fields[12])) / ticks / max(uptime - int(fields[19]) / ticks, 1.0)
    except (OSError, ValueError, IndexError):
        return None


@cache
def process_space() -> str:
    """Return what tells where a process number means something: the boot of a machine and the container on it.

    Machines may share a name, and containers of one machine number their processes independently.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        return host()


def rank_and_ranks() -> tuple[int, int]:
    """Return the place of this process among those that a launcher has started for one command, and their number.

    torchrun says so in RANK and WORLD_SIZE, srun in SLURM_PROCID and SLURM_STEP_NUM_TASKS.
    """
    for rank, ranks in PLACES:
        place, number = os.environ.get(rank, "0"), os.environ.get(ranks, "")
        if number.isdecimal() and place.isdecimal() and int(place) < int(number):
            return int(place), int(number)
    return 0, 1


def check_launcher(remedy: str = "start the command with torchrun or srun, or unset both") -> None:
    """Raise `InputError` if the variables of a launcher name no place among its processes.

    A process that took itself for another one, or for the only one, would wait for ever or train alone.
    """
    for rank, ranks in PLACES:
        place, number = os.environ.get(rank), os.environ.get(ranks)
        if not number:
            continue
        if not number.isdecimal() or int(number) < 1:
            raise InputError(f"{ranks}={shown(number)} is no number of processes; {remedy}")
        if int(number) > 1 and not (place and place.isdecimal() and int(place) < int(number)):
            what = f"{rank}={shown(place)} is not a number below it" if place else f"{rank} is not set"
            raise InputError(f"{ranks}={number}, but {what}; {remedy}")
        return


def local_rank_and_ranks() -> tuple[int, int]:
    """Return the place of this process among those of `rank_and_ranks` on this machine, and their number."""
    place = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID", "")
    number, node = os.environ.get("LOCAL_WORLD_SIZE", ""), os.environ.get("SLURM_NODEID", "")
    if not number.isdecimal():
        of_step = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
        number = str(tasks_of_node(of_step, int(node) if node.isdecimal() else 0))
    return int(place) if place.isdecimal() else 0, int(number)


def tasks_of_node(tasks: str, node: int) -> int:
    """Return the number of tasks of a node, from those of all nodes as SLURM writes them; 1 if it does not say.

    >>> [tasks_of_node("4(x2),3", node) for node in range(4)]
    [4, 4, 3, 1]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks)
    numbers = [int(number) for number, times in found for _ in range(int(times or 1))]
    return numbers[node] if node < len(numbers) else 1


def refuse_other_ranks(what: str) -> None:
    """Raise an error if a launcher has started several processes for `what`, which is one."""
    check_launcher(f"{what} is one process; start it without torchrun or srun -n, and unset both")
    _, ranks = rank_and_ranks()
    if ranks > 1:
        raise InputError(
            f"a launcher has started {ranks} processes, but {what} is one process; start it without torchrun or srun "
            "-n (and unset WORLD_SIZE)"
        )


def end_rank(code: int) -> None:
    """End this process at once if it is one of several ranks; call it when all is written.

    A thread of torch's process groups may abort a process while Python shuts down, and with it the exit code.
    """
    if rank_and_ranks()[1] > 1:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of torchrun and srun: for processes that are not theirs.

    >>> without_launcher({"PATH": "/bin", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"})
    {'PATH': '/bin', 'SLURM_JOB_ID': '7'}
    """
    return {name: value for name, value in environment.items() if not LAUNCHER_VARIABLE.fullmatch(name)}


def usable_cores() -> int:
    """Return the number of cores that this process may use; a scheduler may grant fewer than exist."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory could not be allocated.

    On CPU, torch raises a plain RuntimeError with varying messages.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("a shape does not match"))
    (True, False)
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in ("allocate", "Storage size"))
