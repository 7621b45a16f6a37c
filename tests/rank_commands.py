"""Command lines on several ranks: `python rank_commands.py SIZE FOLDER` runs those of FOLDER/commands.json in turn.

The ranks are forks of one process that has imported torch, which takes seconds. A command is {"argv": the arguments of
every rank, "short": ranks with too little memory}. FOLDER/outcomes.json then has the exit code of every rank, and the
lines that they have printed; a rank that has not ended after SECONDS is killed.
"""

import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch.distributed.fsdp

from expertp.cli import main as command_line
from expertp.training import trackers
from expertp.training.loop import TrainingLoop

SECONDS = 30.0


def allocate_too_much(*_: object) -> None:
    """Fail as torch does."""
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


def start(rank: int, size: int, port: int, command: dict[str, Any], log: Path) -> int:
    """Fork a rank that runs a command; return its process number."""
    if child := os.fork():
        return child
    if rank in command["short"]:
        TrainingLoop._accumulate = allocate_too_much  # type: ignore[assignment, method-assign]
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["expertp", *command["argv"][rank]]
    code = 99
    try:
        code = command_line.main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def code_of(child: int, deadline: float) -> int:
    """Return the exit code of a rank; one that takes too long is killed."""
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome(size: int, folder: Path, number: int, command: dict[str, Any]) -> dict[str, Any]:
    """Run a command on all ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / f"{number}.log"
    children = [start(rank, size, port, command, log) for rank in range(size)]
    deadline = time.monotonic() + SECONDS
    return {"codes": [code_of(child, deadline) for child in children], "lines": log.read_text().splitlines()}


def main(size: int, folder: Path) -> None:
    """Run all commands."""
    torch.set_num_threads(1)
    command_line.rank_0_ends = lambda: True
    trackers.PACKAGES = {**trackers.PACKAGES, "trackio": "no_such_package"}
    commands = json.loads((folder / "commands.json").read_text())
    outcomes = [outcome(size, folder, number, each) for number, each in enumerate(commands)]
    (folder / "outcomes.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
