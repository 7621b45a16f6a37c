"""The Trainer of transformers: an optimizer factory, a callback, and a loader that restores every tensor.

The Trainer (5.22) resumes expert tensors under names that its checkpoints do not have, so that they keep their init; so
does its `load_best_model_at_end`. `load_weights_` restores them, and the callback refuses to train when weights are not
those of the checkpoint.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from expertp.adapters.balance import Balancing
from expertp.adapters.roles import clean_name
from expertp.errors import InputError, how_to_install, one_line
from expertp.model.sharded import whole, write_
from expertp.util.records import read_record

# Our file beside a checkpoint of the Trainer, and the one in which the Trainer notes its step.
SAVED_FILE, STATE_FILE = "expertp.json", "trainer_state.json"


@dataclass(frozen=True)
class TrainerState:
    """What is needed of the Trainer's own file beside a checkpoint."""

    global_step: int


@runtime_checkable
class Trains(Protocol):
    """What the callback needs of an adapted model."""

    @property
    def balances(self) -> bool:
        """Whether the model has selection biases."""

    @property
    def loaded_from(self) -> Path | None:
        """The checkpoint that was loaded last."""

    def load_(self, model: nn.Module, checkpoint: str | Path) -> None:
        """Load all weights of a checkpoint."""

    def keep_routers_wide(self, model: nn.Module) -> None:
        """Let routers compute in the dtype of their weights under autocast."""

    def balancing(self, model: nn.Module) -> AbstractContextManager[Balancing]:
        """Count loads inside the `with` block."""

    def clip_grad_norm_(self, optimizer: Optimizer, max_norm: float) -> Tensor:
        """Clip in planned units."""

    def save(self, path: str | Path, model: nn.Module) -> None:
        """Write the plan and fingerprints."""

    def verify(self, model: nn.Module, optimizer: Optimizer | None = None, saved: str | Path | None = None) -> None:
        """Check the model and the optimizer."""


class PlanEvents:
    """Events of the Trainer: verify at the start, clip before a step, update biases after it, save fingerprints."""

    def __init__(self, adapted: Trains, clip: float | None) -> None:
        self._adapted, self._clip = adapted, clip
        self._context: AbstractContextManager[Balancing] | None = None
        self.balance: Balancing | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Verify the model, the optimizer and, after a resume, the weights."""
        del control
        if args.max_grad_norm > 0:
            raise InputError(
                f"max_grad_norm={args.max_grad_norm:g} clips by another norm than that of the base; set "
                "max_grad_norm=0 and pass clip=... to callback()"
            )
        saved = self._checkpoint(args, state.global_step) / SAVED_FILE if state.global_step else None
        self._adapted.verify(parts["model"], parts["optimizer"], saved)
        if args.bf16 or args.fp16:
            self._adapted.keep_routers_wide(parts["model"])
        if self._adapted.balances:
            self._context = self._adapted.balancing(parts["model"])
            self.balance = self._context.__enter__()

    def _checkpoint(self, args: Any, step: int) -> Path:
        """Return the checkpoint whose weights the model must have: the one that was loaded, or that of the Trainer."""
        loaded = self._adapted.loaded_from
        if loaded is None:
            place = Path(args.output_dir) / f"checkpoint-{step}"
            if not place.exists():
                raise InputError(
                    f"the Trainer resumes at step {step} from a checkpoint that is not in {args.output_dir}; load it "
                    "with load_ of the adapted model before"
                )
            return place
        if (loaded / STATE_FILE).exists():
            at = read_record(loaded / STATE_FILE, TrainerState, "restore the checkpoint from a copy").global_step
            if at != step:
                raise InputError(
                    f"{loaded} was loaded, of step {at}, but the Trainer resumes at step {step}; give both the same"
                )
        return loaded

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Clip gradients in planned units."""
        del args, state, control
        if self._clip is not None:
            self._adapted.clip_grad_norm_(parts["optimizer"], self._clip)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Update the selection biases."""
        del args, state, control, parts
        if self.balance is not None:
            self.balance.step()

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Write the plan and fingerprints beside the checkpoint."""
        del control
        self._adapted.save(Path(args.output_dir) / f"checkpoint-{state.global_step}" / SAVED_FILE, parts["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Remove the hooks, and load the best checkpoint again if the Trainer did: it leaves out expert tensors."""
        del control
        if self._context is not None:
            self._context.__exit__(None, None, None)
            self._context = self.balance = None
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            best = Path(state.best_model_checkpoint)
            self._adapted.load_(parts["model"], best)
            self._adapted.verify(parts["model"], saved=best / SAVED_FILE)


def make_callback(adapted: Trains, clip: float | None) -> Any:
    """Return a callback for the Trainer."""
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise InputError(f"transformers is not installed; {how_to_install('hf')}") from None
    return type("PlanCallback", (PlanEvents, TrainerCallback), {})(adapted, clip)


@torch.no_grad()
def load_weights_(model: nn.Module, checkpoint: Path) -> None:
    """Load all weights and buffers of a checkpoint of transformers, expert tensors and selection biases included."""
    inner = unwrapped(model)
    # float32 holds all values of bfloat16, and selection biases stay exact.
    options = {"dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        stored, loading = type(inner).from_pretrained(checkpoint, **options)  # type: ignore[attr-defined]
    except Exception as error:  # damaged and missing files fail in many ways
        raise InputError(f"{checkpoint}: transformers cannot load it: {one_line(str(error))}") from None
    # transformers gives a tensor that it does not find, or that has another shape, a random value.
    mismatched = [name for name, *_ in loading["mismatched_keys"]]
    if lost := sorted((*loading["missing_keys"], *mismatched)):
        what = "has another shape" if lost[0] in mismatched else "is missing"
        raise InputError(f"{checkpoint}: {lost[0]} {what}; give a complete checkpoint of the same model")
    values = {**dict(stored.named_parameters()), **dict(stored.named_buffers())}
    for name, tensor in (*inner.named_parameters(), *inner.named_buffers()):
        if clean_name(name) not in values:
            raise InputError(f"{checkpoint}: {clean_name(name)} is missing; give a checkpoint of the same model")
        write_(tensor, whole(values[clean_name(name)]).to(tensor.dtype))


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside of wrappers such as torch.compile and DDP."""
    for wrapper in ("_orig_mod", "module"):
        inner = getattr(model, wrapper, None)
        if isinstance(inner, nn.Module):
            return unwrapped(inner)
    return model
