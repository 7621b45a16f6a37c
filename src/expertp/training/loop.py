"""The training loop in memory: model, optimizer and load balancing of one run.

The only files read are token shards; no file is written. The state after a step is the weights (including expert
biases), the optimizer state and the step count. Batches are a pure function of (seed, step) and no other random
numbers are drawn, so a checkpoint needs only these three.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils import deterministic as torch_deterministic

from expertp.data import Dataset, check_vocab, eval_batches, train_batch
from expertp.errors import InputError
from expertp.spec import Dtype, RunSpec, TrainSpec
from expertp.training.build import build_model, check_model
from expertp.training.optim import adamw, lr_factor, set_lr_factor
from expertp.training.parallel import check_layout, free_gathered_, micro_batch, own_rows
from expertp.training.ranks import ALONE, Ranks
from expertp.training.resolution import resolve_dtype
from expertp.training.run_model import RunModel
from expertp.training.tensor_files import TensorFiles
from expertp.util.machine import memory_bytes


@dataclass(frozen=True)
class StepOutcome:
    """Result of one optimizer step: loss before the update, loads per layer, factor of the schedule.

    A diverged step (loss not finite, or above the bound) does not change the model. `requests` says for every request
    whether a rank has made it.
    """

    loss: float
    load_LE: Int[Tensor, "L E"]
    lr_factor: float
    diverged: bool
    requests: tuple[bool, ...] = ()


def resolve_device(train: TrainSpec) -> str:
    """Return the device of a run: "cpu" or "cuda"."""
    if train.device == "cuda" and not torch.cuda.is_available():
        raise InputError("train.device=cuda, but torch finds no CUDA device; set train.device=cpu")
    if train.device != "auto":
        return train.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_run(run: RunSpec, dataset: Dataset, device: str, ranks: Ranks = ALONE) -> None:
    """Raise `InputError` if the run has no valid plan or layout, too little data or memory; writes no file."""
    check_model(run, device)
    check_layout(run, ranks)
    check_vocab(dataset, run.model.vocab_size)
    train_batch(dataset.train, run.model.context, run.sequences, run.train.seed, step=0)
    if run.train.eval_every > 0:
        next(iter(eval_batches(dataset.val, run.model.context, 1, run.train.eval_tokens)))
    # Weights, gradients and the two moments of Adam; activations are not counted.
    needed = run.model.counts().total * (32 if run.train.dtype == "float64" else 16)
    here = needed * run.parallel.replicas // ranks.size * (1 if device == "cuda" else ranks.local_size)
    there = torch.cuda.get_device_properties(0).total_memory if device == "cuda" else memory_bytes()
    if here > there:
        raise InputError(
            f"the model's weights, gradients and optimizer state need {here / 2**30:.1f} GiB, but this machine has "
            f"{there / 2**30:.1f} GiB; choose a smaller model"
        )


class TrainingLoop:
    """One run in memory.

    Args:
        run: the run.
        dataset: its data.
        device: "cpu" or "cuda".
        ranks: the processes that train the run.
        on_gradients: called with the model after the backward passes of a step, before clipping; must not change it.
    """

    def __init__(
        self,
        run: RunSpec,
        dataset: Dataset,
        device: str,
        ranks: Ranks = ALONE,
        on_gradients: Callable[[RunModel], None] = lambda _: None,
    ) -> None:
        self.run, self.dataset, self.device, self.on_gradients = run, dataset, device, on_gradients
        self.ranks, self.micro_batch = ranks, micro_batch(run, ranks)
        self.dtype = resolve_dtype(run, device)
        self.model = build_model(run, device, ranks)
        # Looked up once: while a forward pass computes, a module has other tensors in the place of spread parameters.
        self.parameters = dict(self.model.module.named_parameters())
        self.model.init_(run.train.seed)
        self.optimizer = adamw(self.model.param_groups())
        self.diverge_above = run.train.diverge_above or 2 * math.log(run.model.vocab_size)
        self.steps_done = 0

    def step(self, requests: Callable[[], Sequence[bool]] = tuple) -> StepOutcome:
        """Take one optimizer step; if the loss has diverged, leave the model unchanged.

        Args:
            requests: what this rank asks for, such as to stop; called once the gradients are computed. A request of one
                rank is one of all.
        """
        factor = lr_factor(self.run.train, self.steps_done)
        set_lr_factor(self.optimizer, factor)
        loss, load_LE, requested = self._accumulate(requests)
        diverged = self.has_diverged(loss)
        if not diverged:
            self.on_gradients(self.model)
            if self.run.hps.clip is not None:
                self.model.clip_(self.optimizer, self.run.hps.clip)
            self.optimizer.step()
            assert (load_LE.sum(-1) > 0).all() or not load_LE.numel(), "a MoE layer received no tokens"
            self.model.balance_(load_LE)
        self.optimizer.zero_grad(set_to_none=True)
        self.steps_done += 1
        return StepOutcome(loss, load_LE, factor, diverged, requested)

    def has_diverged(self, loss: float) -> bool:
        """Return whether a loss is not finite or is above the bound."""
        return not (math.isfinite(loss) and loss <= self.diverge_above)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the mean loss over the fixed validation tokens."""
        run, ranks = self.run, self.ranks
        batches = list(eval_batches(self.dataset.val, run.model.context, self.micro_batch, run.train.eval_tokens))
        losses = torch.zeros(len(batches), dtype=torch.float64)
        # Ranks take turns and make the same number of passes, because a pass gathers weights from all of them.
        for number in range(ranks.rank, len(batches) + -len(batches) % ranks.size, ranks.size):
            tokens = torch.from_numpy(batches[min(number, len(batches) - 1)]).to(self.device)
            with autocast(self.dtype, self.device):
                loss = self.model.loss(tokens[:, :-1], tokens[:, 1:]).loss.item()
            if number < len(batches):
                losses[number] = loss
        free_gathered_(self.model.module)
        total, count = 0.0, 0
        for batch, loss in zip(batches, ranks.sum(losses).tolist(), strict=True):
            total, count = total + loss * len(batch), count + len(batch)
        return total / count

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters and expert biases by name."""
        return self.model.weights()

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the tensors of the optimizer state by `STATE/PARAMETER`."""
        return {
            f"{key}/{name}": value.contiguous()
            for name, parameter in self.parameters.items()
            for key, value in self.optimizer.state[parameter].items()
        }

    def restore(self, steps_done: int, files: TensorFiles) -> None:
        """Restore the state that `weights` and `optimizer_state` returned after `steps_done` steps."""
        shapes, tensors = files.shapes(), self.model.state()
        scalars = files.whole(key for key, shape in shapes.items() if not shape)
        for key in shapes.keys() - tensors.keys():
            what, _, name = key.partition("/")
            parameter = self.parameters[name]
            value = scalars[key].to(self.device) if key in scalars else torch.empty_like(parameter, requires_grad=False)
            self.optimizer.state[parameter][what] = tensors[key] = value
        for key, value in tensors.items():
            assert shapes.get(key) == value.shape, f"{key} has another shape than that of the model"
        files.read_into(tensors)
        self.steps_done = steps_done

    def _accumulate(self, requests: Callable[[], Sequence[bool]]) -> tuple[float, Tensor, tuple[bool, ...]]:
        """Accumulate the gradients of all micro-batches; return the mean loss, the summed loads and the requests."""
        run, rows = self.run, own_rows(self.run, self.ranks)
        batch = train_batch(self.dataset.train, run.model.context, run.sequences, run.train.seed, self.steps_done, rows)
        count, before = run.sequences // self.micro_batch, rows.start // self.micro_batch
        losses, loads = [0.0] * count, []
        for number, tokens in enumerate(torch.from_numpy(batch).to(self.device).split(self.micro_batch), before):
            with autocast(self.dtype, self.device):
                out = self.model.loss(tokens[:, :-1], tokens[:, 1:])
            objective = out.loss + out.auxiliary
            (objective / count).backward()
            losses[number] = out.loss.item()
            loads.append(out.load_LE)
        load_LE = torch.stack(loads).sum(0)
        losses, requested, load_LE = self._summed(losses, requests(), load_LE)
        total = 0.0
        for loss in losses:  # one by one: `sum` of Python 3.12 rounds in another way
            total += loss
        return total / count, load_LE, requested

    def _summed(
        self, losses: list[float], requests: Sequence[bool], load_LE: Tensor
    ) -> tuple[list[float], tuple[bool, ...], Tensor]:
        """Return losses, requests and loads of all ranks: one sum per step, exact for integers below 2^53."""
        own = (torch.tensor(losses, dtype=torch.float64), torch.tensor(requests), load_LE.flatten().cpu())
        parts = self.ranks.sum(torch.cat([part.double() for part in own])).split([len(part) for part in own])
        told, loads = parts[1].tolist(), parts[2].to(load_LE)
        return parts[0].tolist(), tuple(each > 0 for each in told), loads.view_as(load_LE)


def autocast(dtype: Dtype, device: str) -> AbstractContextManager[Any]:
    """Return the autocast context of a compute dtype: bfloat16 uses autocast, other dtypes do not."""
    return torch.autocast(device, dtype=torch.bfloat16) if dtype == "bfloat16" else nullcontext()


@contextmanager
def deterministic(device: str) -> Iterator[None]:
    """Make torch raise an error for nondeterministic operations."""
    settings: Any = torch_deterministic  # torch changes the module's class at run time
    before, fill = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # unnecessary: no uninitialized memory is read
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        settings.fill_uninitialized_memory = fill
