"""The processes that train one run together, which a launcher such as torchrun or srun has started.

Every process has a rank. All of them execute the same program; rank 0 writes the files of the run and decides by the
clock. What one rank finds out alone, such as bad input, is agreed before the next collective, so that no rank waits for
another one that has stopped.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_store

from expertp.errors import BusyError, DamagedError, InputError, RunError, one_line, shown
from expertp.util.machine import check_launcher, local_rank_and_ranks, rank_and_ranks

# First port, and number of ports, from which srun's ranks choose that of their meeting.
FIRST_PORT, PORTS = 20_000, 20_000
# After this time, a process says that it waits for the others. They may have to start on other machines.
LATE_SECONDS = 30.0
# What gloo and NCCL say when another process has ended.
HAS_ENDED = re.compile(
    r"[Cc]onnection (closed|reset|refused)|[Bb]roken pipe|[Tt]imed out|[Tt]imeout|[Rr]emote process exited|read error"
)

# Key of the store of the ranks: the error of a rank that has failed without the others.
LAST_WORDS = "last words"

# Errors of which rank 0 tells the user in one line.
TOLD = (InputError, RunError, OSError)

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run, as one of them sees them; `ALONE` is a run of one process.

    Args:
        rank: this process, from 0 on.
        size: number of processes.
        local_size: number of processes on this machine.
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether the run has one process."""
        return self.size == 1

    def sum(self, values: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        """Return the sum of a vector over all ranks."""
        if not self.is_alone:
            dist.all_reduce(values)
        return values

    def gathered(self, value: ValueT) -> list[ValueT]:
        """Return the value of every rank."""
        if self.is_alone:
            return [value]
        values: list[ValueT] = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def agreed(self, make: Callable[[], ValueT]) -> ValueT:
        """Return what `make` returns on this rank; if it fails on a rank, all ranks raise the error of the first."""
        if self.is_alone:
            return make()
        value, error = _attempt(make)
        told = self.gathered(None if error is None else _to_tell(error))
        if error is not None and (self.is_first or not isinstance(error, TOLD)):
            raise error
        for rank, failed in enumerate(told):
            if failed is not None:
                raise failed if rank == 0 else type(failed)(f"rank {rank}: {failed}")
        assert value is not None
        return value[0]

    def first(self, make: Callable[[], ValueT]) -> ValueT:
        """Return on all ranks what `make` returns on rank 0; if it fails there, all ranks raise its error."""
        if self.is_alone:
            return make()
        value, error = _attempt(make) if self.is_first else (None, None)
        box = [value, None if error is None else _to_tell(error)]
        dist.broadcast_object_list(box, src=0)
        if error is not None:
            raise error
        if isinstance(box[1], Exception):
            raise box[1]
        assert isinstance(box[0], tuple)
        made: ValueT = box[0][0]
        return made


ALONE = Ranks()


@contextmanager
def launched_ranks(on_wait: Callable[[str], None] = lambda _: None) -> Iterator[Ranks]:
    """Join the processes that a launcher has started for this command; without a launcher, yield `ALONE`.

    Args:
        on_wait: called with a message on one process of each machine if the others are late.
    """
    check_launcher()
    rank, size = rank_and_ranks()
    if size == 1:
        yield ALONE
        return
    local_rank, local_size = local_rank_and_ranks()
    place = meeting_place(os.environ)
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())  # srun may give every rank a device of its own
    with naming_lost_ranks():
        with _saying_that_it_waits(f"rank {rank} of {size}", place, on_wait if local_rank == 0 else lambda _: None):
            _meet(place, rank, size)
        try:
            with naming_lost_ranks(), _leaving_last_words(rank):
                yield Ranks(rank, size, local_size)
                dist.barrier()  # without it, a process that ends first may abort the others
        finally:
            dist.destroy_process_group()


def meeting_place(environment: Mapping[str, str]) -> str:
    """Return the address at which the ranks meet: torchrun says so, and srun has the first node of the step.

    Raises:
        InputError: if the environment has no address or no valid port.

    >>> meeting_place({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "gpu[03-04,7],cpu1"})
    'tcp://gpu03:20701'
    """
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if port and not (port.isdecimal() and 0 < int(port) < 2**16):
        raise InputError(f"MASTER_PORT={shown(port)} is no port; set one of 1 to 65535, the same on all machines")
    if "RANK" in environment:
        if not (address and port):
            missing = " and ".join(name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name))
            raise InputError(
                f"{missing} must be set where RANK is: the address of the machine of rank 0 and a free port on it; "
                "torchrun sets both"
            )
        return "env://"
    nodes, job = environment.get("SLURM_STEP_NODELIST", ""), environment.get("SLURM_JOB_ID", "")
    step = environment.get("SLURM_STEP_ID", "")
    first = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    node = "".join(part or "" for part in first.groups()) if first else ""
    here = "127.0.0.1" if environment.get("SLURM_STEP_NUM_NODES") == "1" else node
    chosen = FIRST_PORT + (100 * int(job if job.isdecimal() else 0) + int(step if step.isdecimal() else 0)) % PORTS
    return f"tcp://{address or here or '127.0.0.1'}:{port or chosen}"


def _meet(place: str, rank: int, size: int) -> None:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, init_method=place, rank=rank, world_size=size)
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        remedy = "set MASTER_PORT to a free one, the same on all machines"
        raise InputError(f"the port at which the processes meet is taken; {remedy}") from error


@contextmanager
def _saying_that_it_waits(who: str, place: str, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Call `on_wait` once if the others are late."""
    of_torchrun = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    where = of_torchrun if place == "env://" else place.removeprefix("tcp://")
    message = f"{who} has waited {LATE_SECONDS:.0f} s for the others at {where}; do all run, and reach this address?"
    late = threading.Timer(LATE_SECONDS, on_wait, [message])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _attempt(make: Callable[[], ValueT]) -> tuple[tuple[ValueT] | None, Exception | None]:
    try:
        return (make(),), None
    except Exception as error:
        return None, error


def _to_tell(error: Exception) -> Exception:
    """Return an error that other ranks can raise: of a type that the command line reports as one line."""
    if isinstance(error, OSError):
        return InputError(f"{error.filename}: {error.strerror}; check the path" if error.filename else str(error))
    for kind in (DamagedError, BusyError, InputError, RunError):
        if isinstance(error, kind):
            return kind(str(error))
    return RunError(f"another rank has failed ({type(error).__name__}: {error})")


@contextmanager
def naming_lost_ranks() -> Iterator[None]:
    """Raise `RunError` where a collective failed because another process has ended, with its error if it left one."""
    try:
        yield
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        what = _last_words() or "another process of the run has ended or cannot be reached"
        raise RunError(f"{what}; run the same command again; it continues from the last checkpoint") from error


@contextmanager
def _leaving_last_words(rank: int) -> Iterator[None]:
    """If another rank than 0 fails, leave its error in the store of the ranks: rank 0 speaks for all of them."""
    try:
        yield
    except Exception as error:
        if rank > 0 and not _is_lost(error):
            with suppress(Exception):  # rank 0 may have ended, and the store with it
                words = one_line(f"rank {rank} has failed ({type(error).__name__}: {error})")
                _get_default_store().set(LAST_WORDS, words)
        raise


def _last_words() -> str:
    """Return the error that another rank has left, or an empty string."""
    with suppress(Exception):
        if (store := _get_default_store()).check([LAST_WORDS]):
            words: str = store.get(LAST_WORDS).decode()
            return words
    return ""


def _is_lost(error: Exception) -> bool:
    """Return whether a collective failed because another process has ended."""
    is_of_torch = isinstance(error, RuntimeError) and not isinstance(error, RunError)
    return is_of_torch and HAS_ENDED.search(str(error)) is not None
