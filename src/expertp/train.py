"""One run: RunSpec -> RunResult. Deterministic to the bit, resumable to the bit.

The state of a run is its weights (expert biases among them), its optimizer state and the step: batches are a pure
function of (seed, step) and nothing else draws random numbers, so a checkpoint of these three is complete.
"""

import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.utils import deterministic

from expertp.balance import bias_update, load_deviation
from expertp.data import Dataset, check_vocab, eval_batches, open_dataset, train_batch
from expertp.errors import InputError
from expertp.model.experts import choose_backend
from expertp.model.transformer import MoETransformer
from expertp.optim import adamw, init_parameters, lr_factor, set_lr_factor
from expertp.plan import Plan, plan
from expertp.spec import RunSpec
from expertp.store import Checkpoint, RunDirectory, open_run

Status = Literal["finished", "diverged", "stopped"]
TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
# Fields of a metrics record that a clock decides; all others are the same in every repetition of a run.
CLOCK_FIELDS = ("seconds", "tokens_per_second")
METRICS_FLUSH_SECONDS = 5.0


@dataclass(frozen=True)
class StepMetrics:
    """What one optimizer step tells; lists have one entry per layer and are empty in a dense model.

    `loss` is that of the step's batch before the update, `val_loss` (None between validations) that after it.
    """

    step: int
    loss: float
    val_loss: float | None
    lr_factor: float
    tokens: int
    max_load_deviation: list[float]
    dead_experts: list[int]
    bias_range: list[float]
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class RunResult:
    """How a run ended, or stands."""

    status: Status
    step: int
    steps: int
    tokens: int
    train_loss: float | None
    val_loss: float | None
    max_load_deviation: float | None
    dead_experts: int | None
    seconds: float


class Tracker(Protocol):
    """Somebody who wants to see every step: a progress bar, TensorBoard."""

    def log(self, metrics: StepMetrics) -> None:
        """Take notice of one step."""


def plan_run(run: RunSpec) -> Plan:
    """Return the plan that a run trains by."""
    return plan(run.base, run.model, run.hps, steps=run.train.steps, allow_kappa_change=run.allow_kappa_change)


def resolve_device(run: RunSpec) -> str:
    """Return "cpu" or "cuda"."""
    if run.train.device == "cuda" and not torch.cuda.is_available():
        raise InputError("train.device=cuda but torch sees no CUDA device; set train.device=cpu")
    if run.train.device != "auto":
        return run.train.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def build_model(run: RunSpec, planned: Plan, device: str) -> MoETransformer:
    """Return the run's model at step 0."""
    train = run.train
    model = MoETransformer(
        run.model,
        planned.forward,
        backend=choose_backend(train.expert_backend, device),
        with_auxiliary=train.balance == "aux_loss",
        activation_checkpointing=train.activation_checkpointing,
    )
    if train.dtype == "float64":
        model = model.double()
    init_parameters(model, planned, train.seed)
    return model.to(device)


def train(
    run: RunSpec,
    out: str | Path,
    trackers: Sequence[Tracker] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Train one run in a directory, from its newest checkpoint if there is one.

    Args:
        run: what to train.
        out: the run's directory; one that holds another run is an error.
        trackers: told about every logged step.
        should_stop: asked after each step; when it says yes, the run is saved and returned as `stopped`.
    """
    dataset = _open_data(run)
    planned = plan_run(run)
    device = resolve_device(run)
    directory = open_run(out, run, dataset, _environment(device))
    with directory.locked(), _deterministic(device):
        return _Trainer(run, planned, dataset, directory, device, trackers).go(should_stop)


def _open_data(run: RunSpec) -> Dataset:
    """Open a run's data and see that it fits the model and fills a batch, before anything is written."""
    dataset = open_dataset(run.train.data)
    check_vocab(dataset, run.model.vocab_size)
    train_batch(dataset.train, run.model.context, run.sequences, run.train.seed, step=0)
    if run.train.eval_every > 0:
        next(iter(eval_batches(dataset.val, run.model.context, 1, run.train.eval_tokens)))
    return dataset


class _Trainer:
    """The moving parts of one run, put together once and stepped until done."""

    def __init__(
        self,
        run: RunSpec,
        planned: Plan,
        dataset: Dataset,
        directory: RunDirectory,
        device: str,
        trackers: Sequence[Tracker],
    ) -> None:
        self.run, self.dataset, self.directory, self.device = run, dataset, directory, device
        self.trackers = trackers
        self.model = build_model(run, planned, device)
        self.optimizer = adamw(self.model, planned)
        self.diverge_above = run.train.diverge_above or 2 * math.log(run.model.vocab_size)
        self.step, self.seconds_before = 0, 0.0
        self.last: StepMetrics | None = None
        self.pending: list[str] = []

    def go(self, should_stop: Callable[[], bool]) -> RunResult:
        finished = self.directory.summary()
        if finished and finished["status"] in ("finished", "diverged"):
            return RunResult(**{key: finished[key] for key in RunResult.__dataclass_fields__})
        self._resume()
        train = self.run.train
        self.started = self.saved_at = self.flushed_at = time.monotonic()
        self.step_before = self.step
        while self.step < train.steps:
            if not self._one_step():
                return self._end("diverged")
            if self._checkpoint_due():
                self._save()
            if should_stop() and self.step < train.steps:
                self._save()
                return self._end("stopped")
        self._save()
        return self._end("finished")

    def _one_step(self) -> bool:
        """Take one optimizer step and record it; return False, with nothing changed, if the loss has diverged."""
        train, factor = self.run.train, lr_factor(self.run.train, self.step)
        set_lr_factor(self.optimizer, factor)
        loss, load_LE = self._accumulate()
        diverged = not (math.isfinite(loss) and loss <= self.diverge_above)
        if not diverged:
            if self.run.hps.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.run.hps.clip)
            self.optimizer.step()
            self._balance(load_LE)
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        last_step = self.step == train.steps
        evaluate = train.eval_every > 0 and (self.step % train.eval_every == 0 or last_step) and not diverged
        val_loss = self._evaluate() if evaluate else None
        if evaluate or diverged or last_step or self.step % train.log_every == 0 or self.step == 1:
            self._record(loss, val_loss, factor, load_LE)
        return not diverged

    def _accumulate(self) -> tuple[float, Tensor]:
        """Add up the gradients of the step's micro-batches; return the mean loss and the summed loads."""
        run = self.run
        batch = torch.from_numpy(
            train_batch(self.dataset.train, run.model.context, run.sequences, run.train.seed, self.step)
        ).to(self.device)
        micro_batches = batch.split(run.train.micro_batch or run.sequences)
        total, loads = 0.0, None
        for micro in micro_batches:
            with self._autocast():
                out = self.model(micro[:, :-1], micro[:, 1:])
            objective = out.loss + run.train.aux_weight * out.auxiliary
            (objective / len(micro_batches)).backward()
            total += out.loss.item()
            loads = out.load_LE if loads is None else loads + out.load_LE
        assert loads is not None, "a batch has at least one micro-batch"
        return total / len(micro_batches), loads

    def _balance(self, load_LE: Tensor) -> None:
        routers = self.model.routers()
        if routers:
            assert (load_LE.sum(-1) > 0).all(), "every MoE layer has seen tokens"
            change_LE = bias_update(load_LE, self.run.model.n_act, self.run.hps.bias_lr, self.run.train.balance)
            for router, change_E in zip(routers, change_LE, strict=True):
                router.bias.add_(change_E.to(router.bias.dtype))

    @torch.no_grad()
    def _evaluate(self) -> float:
        """Return the mean loss over the fixed validation tokens."""
        run = self.run
        sequences = run.train.micro_batch or run.sequences
        total, count = 0.0, 0
        for batch in eval_batches(self.dataset.val, run.model.context, sequences, run.train.eval_tokens):
            tokens = torch.from_numpy(batch).to(self.device)
            with self._autocast():
                total += self.model(tokens[:, :-1], tokens[:, 1:]).loss.item() * len(tokens)
            count += len(tokens)
        return total / count

    def _record(self, loss: float, val_loss: float | None, factor: float, load_LE: Tensor) -> None:
        run, deviations, dead, ranges = self.run, [], [], []
        if routers := self.model.routers():
            deviations = load_deviation(load_LE, run.model.n_act).abs().amax(-1).tolist()
            dead = (load_LE == 0).sum(-1).tolist()
            ranges = [(router.bias.max() - router.bias.min()).item() for router in routers]
        here = time.monotonic() - self.started
        metrics = StepMetrics(
            step=self.step,
            loss=loss,
            val_loss=val_loss,
            lr_factor=factor,
            tokens=self.step * run.train.batch_tokens,
            max_load_deviation=deviations,
            dead_experts=dead,
            bias_range=ranges,
            seconds=round(self.seconds_before + here, 3),
            tokens_per_second=round((self.step - self.step_before) * run.train.batch_tokens / max(here, 1e-9), 1),
        )
        self.last = metrics
        # JSON has no NaN: a diverged loss is written as null.
        record = {key: _finite(value) for key, value in asdict(metrics).items()}
        self.pending.append(json.dumps(record) + "\n")
        if time.monotonic() - self.flushed_at > METRICS_FLUSH_SECONDS:
            self._flush()
        for tracker in self.trackers:
            tracker.log(metrics)

    def _flush(self) -> None:
        self.directory.append_metrics("".join(self.pending))
        self.pending.clear()
        self.flushed_at = time.monotonic()

    def _checkpoint_due(self) -> bool:
        train = self.run.train
        by_steps = train.checkpoint_steps is not None and self.step % train.checkpoint_steps == 0
        return by_steps or time.monotonic() - self.saved_at >= train.checkpoint_seconds

    def _save(self) -> None:
        self._flush()
        optimizer = {
            f"{key}/{name}": value.contiguous()
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state[parameter].items()
        }
        weights = {name: value.contiguous() for name, value in self.model.state_dict().items()}
        length = self.directory.metrics_path.stat().st_size
        self.directory.save_checkpoint(Checkpoint(self.step, weights, optimizer, length, self._seconds()))
        self.saved_at = time.monotonic()

    def _resume(self) -> None:
        """Go back to the newest checkpoint, or to the start when there is none."""
        checkpoint = self.directory.latest_checkpoint()
        if checkpoint is None:
            self.directory.cut_metrics(0)
            return
        self.model.load_state_dict(checkpoint.weights)
        parameters = dict(self.model.named_parameters())
        for key, value in checkpoint.optimizer.items():
            what, _, name = key.partition("/")
            device = "cpu" if what == "step" and self.device == "cpu" else self.device
            self.optimizer.state[parameters[name]][what] = value.to(device)
        self.directory.cut_metrics(checkpoint.metrics_bytes)
        self.step, self.seconds_before = checkpoint.step, checkpoint.seconds

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _end(self, status: Status) -> RunResult:
        self._flush()
        records = self.directory.metrics()
        last = records[-1] if records else {}
        validated = [record["val_loss"] for record in records if record["val_loss"] is not None]
        result = RunResult(
            status=status,
            step=self.step,
            steps=self.run.train.steps,
            tokens=self.step * self.run.train.batch_tokens,
            train_loss=last.get("loss"),
            val_loss=validated[-1] if validated else None,
            max_load_deviation=max(last.get("max_load_deviation") or [], default=None),
            dead_experts=sum(last["dead_experts"]) if last.get("dead_experts") else None,
            seconds=round(self._seconds(), 3),
        )
        self.directory.write_summary(asdict(result))
        return result

    def _autocast(self) -> Any:
        if self.run.train.dtype != "bfloat16":
            return nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16)


@contextmanager
def _deterministic(device: str) -> Iterator[None]:
    """Have torch refuse operations that differ from run to run."""
    settings: Any = deterministic  # torch sets the module's class at run time, which types cannot see
    before, fill = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # nothing here reads memory that it has not written
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        settings.fill_uninitialized_memory = fill


def _environment(device: str) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
