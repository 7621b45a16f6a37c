"""One program for several ranks: `python rank_program.py SIZE FOLDER` runs the jobs of FOLDER/jobs.json on all ranks.

The ranks are forks of one process that has imported torch, which takes seconds. What a job returns or raises is written
to FOLDER/RANK.json. A job is {"do": name of a function below, ...}; all ranks do all jobs in turn.
"""

import json
import math
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
import torch.distributed.fsdp

from expertp.config import build
from expertp.errors import InputError, RunError
from expertp.spec import RunSpec
from expertp.training.loop import TrainingLoop
from expertp.training.ranks import Ranks, launched_ranks
from expertp.training.train import train


def do_train(ranks: Ranks, run: dict[str, Any], out: str, **faults: Any) -> dict[str, Any]:
    """Train a run. Faults: {"stop": [RANK, CALL]} asks one rank to stop, {"poison": [RANK, STEP]} has its loss NaN."""
    calls = 0

    def should_stop() -> bool:
        nonlocal calls
        calls += 1
        return [ranks.rank, calls] == faults.get("stop")

    with _Poison(ranks, faults.get("poison")):
        return train(build(RunSpec, run, "run"), out, should_stop=should_stop, ranks=ranks).to_dict()


class _Poison:
    """Make the loss of one step not a number on one rank."""

    def __init__(self, ranks: Ranks, place: list[int] | None) -> None:
        self.ranks, self.place, self.original = ranks, place, TrainingLoop._accumulate

    def __enter__(self) -> None:
        def accumulate(loop: TrainingLoop, requests: Any) -> Any:
            if [self.ranks.rank, loop.steps_done + 1] == self.place:
                original = loop.model.loss

                def loss(*batch: Any) -> Any:
                    out = original(*batch)
                    return out._replace(loss=out.loss * math.nan)

                loop.model.loss = loss  # type: ignore[method-assign]
            return self.original(loop, requests)

        if self.place is not None:
            TrainingLoop._accumulate = accumulate  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        TrainingLoop._accumulate = self.original  # type: ignore[method-assign]


def do_damage(ranks: Ranks, out: str) -> str:
    """Cut a file of the newest checkpoint that the last rank has written, and return its name."""

    def cut() -> str:
        folder = max((Path(out) / "checkpoints").glob("step-*"))
        file = max(folder.glob("*.safetensors"))
        file.write_bytes(file.read_bytes()[:-4])
        return f"{folder.name}/{file.name}"

    return ranks.first(cut)


JOBS: dict[str, Callable[..., Any]] = {"train": do_train, "damage": do_damage}


def main(size: int, folder: Path) -> int:
    """Fork the ranks and wait for them; return the number of ranks that failed."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", ".*(started with ranks|damaged checkpoint)")  # some jobs want them
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(size):
        if (child := os.fork()) == 0:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(size)}
            code = 1
            try:
                _work(folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    return sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


def _work(folder: Path) -> None:
    outcomes: list[Any] = []
    with launched_ranks() as ranks:
        for job in json.loads((folder / "jobs.json").read_text()):
            try:
                outcomes.append(JOBS[job.pop("do")](ranks, **job))
            except (InputError, RunError) as error:
                outcomes.append(f"{type(error).__name__}: {error}")
            (folder / f"{ranks.rank}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
