"""One program for several ranks: `python rank_program.py SIZE FOLDER` runs the jobs of FOLDER/jobs.json on all ranks.

The ranks are forks of one process that has imported torch, which takes seconds. What a job returns or raises is written
to FOLDER/RANK.json. A job is {"do": name of a function below, ...}; all ranks do all jobs in turn.
"""

import contextlib
import hashlib
import json
import logging
import math
import os
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
import torch.distributed.fsdp
from adapters.float64 import Float64
from adapters.tiny import build as build_family
from adapters.tiny import wider
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.tensor import DTensor

from expertp.adapters.adapted import adapt
from expertp.config import build
from expertp.data import open_dataset
from expertp.errors import InputError, RunError
from expertp.model.sharded import own_part
from expertp.spec import BaseHPs, RunSpec
from expertp.study.store import read_study
from expertp.study.sweep import work
from expertp.training.checkpoints import resume
from expertp.training.loop import StepOutcome, TrainingLoop
from expertp.training.ranks import Ranks, launched_ranks
from expertp.training.run_model import RunModel
from expertp.training.store import read_run
from expertp.training.traffic import Traffic
from expertp.training.train import train
from expertp.util.files import exclusive

# Sizes of the experts of runs that are counted; they tell expert weights from other saved tensors.
WIDTH, HIDDEN = 32, 48


def do_train(ranks: Ranks, run: dict[str, Any], out: str, **faults: Any) -> dict[str, Any]:
    """Train a run.

    Faults at a rank and step: "stop" asks it to stop, "kill" kills it, "poison" makes its loss NaN; "instead" gives a
    rank another run. The loads of all steps go to loads.jsonl in the run's directory.
    """
    if faults.get("instead", [None])[0] == ranks.rank:
        run = faults["instead"][1]
    calls = 0

    def should_stop() -> bool:
        nonlocal calls
        calls += 1
        if [ranks.rank, calls] == faults.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        return [ranks.rank, calls] == faults.get("stop")

    with _Poison(ranks, faults.get("poison")), recording_loads(Path(out) if ranks.is_first else None):
        return train(build(RunSpec, run, "run"), out, should_stop=should_stop, ranks=ranks).to_dict()


@contextlib.contextmanager
def recording_loads(out: Path | None) -> Iterator[None]:
    """Append the loads of every step to loads.jsonl in the directory of the run that is trained."""
    original = TrainingLoop.step

    def step(loop: TrainingLoop, *arguments: Any) -> StepOutcome:
        outcome = original(loop, *arguments)
        if out is not None:
            with (out / "loads.jsonl").open("a") as file:
                file.write(f"{json.dumps(outcome.load_LE.tolist())}\n")
        return outcome

    TrainingLoop.step = step  # type: ignore[method-assign]
    try:
        yield
    finally:
        TrainingLoop.step = original  # type: ignore[method-assign]


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


def do_damage(ranks: Ranks, out: str, how: str) -> str:
    """Cut or remove a file of the newest checkpoint that the last rank has written, and return its name."""

    def damage() -> str:
        folder = max((Path(out) / "checkpoints").glob("step-*"))
        file = max(folder.glob("*.safetensors"))
        if how == "cut":
            file.write_bytes(file.read_bytes()[:-4])
        else:
            file.unlink()
        return f"{folder.name}/{file.name}"

    return ranks.first(damage)


def do_load(ranks: Ranks, run: dict[str, Any], out: str) -> dict[str, str]:
    """Load the newest checkpoint into a fresh model and optimizer; return the hash of every tensor."""
    loop = _loop(ranks, run)
    saved = resume(read_run(out), ranks)
    assert saved is not None
    loop.restore(saved.step, saved.tensors)
    return hashes({**loop.weights(), **loop.optimizer_state()})


def do_count(ranks: Ranks, run: dict[str, Any]) -> dict[str, Any]:
    """Take a step; return what this rank holds, keeps and exchanges."""
    gradients = list[int]()

    def measure(model: RunModel) -> None:
        grads = [parameter.grad for parameter in model.module.parameters() if parameter.grad is not None]
        gradients.append(sum(own_part(each)[0].nbytes for each in grads))

    loop = _loop(ranks, run, measure)
    kept = _KeptExperts(loop)
    with Traffic() as traffic, kept:
        loop.step(lambda: (False, False))
    state = [value for name, value in loop.optimizer_state().items() if not name.startswith("step/")]
    return {
        "bytes": dict(traffic.bytes),
        "calls": dict(traffic.calls),
        "parameters": sum(own_part(value)[0].numel() for value in loop.parameters.values()),
        "optimizer": sum(own_part(value)[0].numel() for value in state),
        "kept": kept.bytes,
        "loads": kept.loads,
        "state": sum(own_part(value)[0].nbytes for value in [*loop.parameters.values(), *state]) + gradients[0],
    }


def do_work(ranks: Ranks, study: str, held: str) -> list[str]:
    """Work on a study whose runs others hold for longer than a rank waits for a collective; return its results."""
    directory = read_study(study)
    _set_pg_timeout(timedelta(seconds=2))
    with contextlib.ExitStack() as stack:
        if ranks.is_first:
            for identity in directory.runs:
                lease, lock = directory.at_work(identity), exclusive(directory.place(identity), "busy")
                stack.enter_context(lease if held == "lease" else lock)
            threading.Timer(5, stack.close).start()
        work(directory, lambda: False, ranks)
    _set_pg_timeout(timedelta(minutes=30))
    return [result.status for result in directory.results()]


def do_adapt(ranks: Ranks, model_type: str, out: str) -> dict[str, float]:
    """Train an adapted model for three steps, sharded by FSDP2 where there are ranks; save and verify it.

    In true float64: sums of float32 gradients differ in their last bits, by an amount that depends on the processor.
    """
    changes = {"num_hidden_layers": 2, **wider(model_type)}
    hps = BaseHPs(lr=2**-6, init_std=0.05, adam_eps=1e-8, weight_decay=0.1)
    model = build_family(model_type, **changes).double().train()
    adapted = adapt(model, build_family(model_type, "meta", num_hidden_layers=2), hps)
    if not ranks.is_alone:
        for layer in model.model.layers:  # type: ignore[union-attr]
            torch.distributed.fsdp.fully_shard(layer)
        torch.distributed.fsdp.fully_shard(model)
    adapted.init_(model)
    optimizer = torch.optim.AdamW(adapted.param_groups(model), lr=hps.lr)
    batches = torch.randint(3, 64, (3, 4, 12), generator=torch.Generator().manual_seed(0))
    with adapted.balancing(model) if adapted.balances else contextlib.nullcontext() as balance:
        for batch in batches:
            rows = batch.chunk(ranks.size)[ranks.rank]
            with Float64():
                model(input_ids=rows, labels=rows).loss.backward()
            norm = adapted.clip_grad_norm_(optimizer, 0.5)
            optimizer.step()
            optimizer.zero_grad()
            if balance is not None:
                balance.step()
    adapted.save(out, model)
    if not ranks.is_alone:
        torch.distributed.barrier()
    adapted.verify(model, optimizer, saved=out)
    return {"norm": float(norm), "held": sum(own_part(each)[0].numel() for each in model.parameters())}


class _KeptExperts(torch.autograd.graph.saved_tensors_hooks):
    """Bytes of stacked expert weights that are kept between the forward and the backward pass."""

    def __init__(self, loop: TrainingLoop) -> None:
        super().__init__(self._remember, lambda tensor: tensor)
        self.bytes, self._saved, self._loss = 0, list[torch.Tensor](), loop.model.loss
        self.loads = list[Any]()  # of the micro-batches of this rank
        loop.model.loss = self._forward  # type: ignore[method-assign]

    def _remember(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 3 and tensor.is_floating_point():
            self._saved.append(tensor)
        return tensor

    def _forward(self, *batch: torch.Tensor) -> Any:
        out = self._loss(*batch)
        experts = [each for each in self._saved if each.shape[-2:] in ((WIDTH, HIDDEN), (HIDDEN, WIDTH))]
        assert experts, "no expert weight was saved"
        self.bytes += sum(each.untyped_storage().nbytes() for each in experts)
        self._saved.clear()
        self.loads.append(out.load_LE.tolist())
        return out


def _loop(ranks: Ranks, run: dict[str, Any], on_gradients: Callable[[RunModel], None] = lambda _: None) -> TrainingLoop:
    spec = build(RunSpec, run, "run")
    return TrainingLoop(spec, open_dataset(spec.train.data), "cpu", ranks, on_gradients)


def hashes(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the hash of every tensor; all ranks call it together."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # it advises another mesh
    whole = {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in tensors.items()}
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.NOTSET)
    return {name: hashlib.sha256(each.numpy().tobytes()).hexdigest() for name, each in whole.items()}


JOBS: dict[str, Callable[..., Any]] = {"train": do_train, "damage": do_damage, "load": do_load}
JOBS |= {"work": do_work}
JOBS |= {"count": do_count, "adapt": do_adapt}


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
    try:
        with launched_ranks() as ranks:
            for job in json.loads((folder / "jobs.json").read_text()):
                try:
                    outcomes.append(JOBS[job.pop("do")](ranks, **job))
                except (InputError, RunError) as error:
                    outcomes.append(f"{type(error).__name__}: {error}")
                (folder / f"{ranks.rank}.json").write_text(json.dumps(outcomes))
    except RunError as error:  # a rank was lost
        (folder / f"{ranks.rank}.json").write_text(json.dumps([*outcomes, f"RunError: {error}"]))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
