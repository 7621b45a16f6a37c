"""Verification: parameters, parameter groups and weights are what the plan and the saved file say."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from expertp.adapters.fit import Fit, TensorPlan
from expertp.adapters.roles import clean_name
from expertp.errors import InputError
from expertp.model.sharded import whole
from expertp.spec import BaseHPs
from expertp.util.records import read_record

SETTINGS = (("initial_lr", "lr"), ("weight_decay", "weight_decay"), ("eps", "adam_eps"))
# Entries of a tensor that are converted to float64 at a time.
CHUNK = 2**20
# The sums are in float64; their order may differ between machines.
TOLERANCE = 1e-9
# Schedules multiply in float64, in another order for each group.
SCHEDULE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Fingerprint:
    """What identifies the values of a tensor: its entries, its L2 norm and its projection on a fixed vector."""

    numel: int
    norm: float
    projection: float

    def matches(self, other: "Fingerprint") -> bool:
        """Return whether two tensors are equal, as far as their fingerprints tell."""
        near = TOLERANCE * max(self.norm, other.norm)
        return (
            self.numel == other.numel
            and abs(self.norm - other.norm) <= near
            and abs(self.projection - other.projection) <= near * math.sqrt(max(self.numel, 1))
        )


@dataclass(frozen=True)
class Saved:
    """The file beside a checkpoint: the plan, and fingerprints of parameters and selection biases."""

    hps: BaseHPs
    aux_loss: float
    bias_lr: float | None
    tensors: tuple[TensorPlan, ...]
    fingerprints: Mapping[str, Fingerprint]


def read_saved(path: Path) -> Saved:
    """Read the file that `Adapted.save` wrote."""
    if not path.exists():
        raise InputError(f"{path}: no such file; it is written beside every checkpoint, so keep it there")
    return read_record(path, Saved, "restore the checkpoint from a copy")


def fingerprint(tensor: Tensor) -> Fingerprint:
    """Return the fingerprint of a tensor.

    >>> fingerprint(torch.tensor([3.0, 4.0])).norm
    5.0
    """
    flat = whole(tensor.detach()).flatten()
    squares, projection, start = 0.0, 0.0, 0
    for chunk in flat.split(CHUNK):
        wide = chunk.double()
        squares += float(wide.square().sum())
        place = torch.arange(start, start + len(wide), device=wide.device).double()
        projection += float((wide * place.cos()).sum())
        start += len(wide)
    return Fingerprint(flat.numel(), math.sqrt(squares), projection)


def check_parameters(model: nn.Module, fit: Fit, others: frozenset[str]) -> None:
    """Check that the model has exactly the planned parameters; `others` are those that Adam does not train."""
    shapes = {clean_name(name): tuple(parameter.shape) for name, parameter in model.named_parameters()}
    planned = {tensor.name: tensor.shape for tensor in fit.tensors}
    for name in planned.keys() - shapes.keys():
        raise InputError(f"{name} is planned but the model does not have it; adapt the model that is trained")
    for name in shapes.keys() - planned.keys() - others:
        raise InputError(f"{name} is in the model but not in the plan; adapt the model that is trained")
    for name, shape in planned.items():
        if shapes[name] != shape:
            raise InputError(
                f"{name} has the shape {list(shapes[name])}, but {list(shape)} in the plan; adapt it again"
            )


def check_groups(model: nn.Module, optimizer: Optimizer, fit: Fit) -> None:
    """Check that every planned parameter is in exactly one group of the optimizer, with its planned settings.

    The learning rates may be those of any schedule that multiplies all of them by one factor.
    """
    planned = {tensor.name: tensor for tensor in fit.tensors}
    names = {id(parameter): clean_name(name) for name, parameter in model.named_parameters()}
    times = Counter(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    for key, name in names.items():
        if name in planned and times[key] != 1:
            raise InputError(f"{name} is in {times[key]} parameter groups, not in one; use param_groups of the plan")
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names.get(id(parameter), "")
            if name not in planned:
                raise InputError(f"the optimizer has {name or 'a parameter'} that is not planned; use param_groups")
            for setting, field in SETTINGS:
                wanted = getattr(planned[name], field)
                if group.get(setting) != wanted:
                    raise InputError(
                        f"{name} has {setting}={group.get(setting)} in the optimizer but {wanted} in the plan; the "
                        "optimizer was made or loaded with another plan"
                    )
    for group in optimizer.param_groups:
        _check_group(group, optimizer.param_groups[0], fit.hps)


def _check_group(group: Mapping[str, Any], first: Mapping[str, Any], hps: BaseHPs) -> None:
    """Check what all groups of an optimizer must have in common."""
    name = group.get("name", "a group")
    if tuple(group.get("betas", ())) != hps.betas:
        has = f"betas={tuple(group['betas'])}" if "betas" in group else "no betas"
        raise InputError(f"{name} has {has} in the optimizer; the plan is for AdamW with betas={hps.betas}")
    if group["weight_decay"] and group.get("decoupled_weight_decay") is False:
        raise InputError(f"{name} has weight decay as an L2 loss; use AdamW, whose weight decay is decoupled")
    factor, wanted = (float(each["lr"]) / each["initial_lr"] for each in (group, first))
    if not math.isclose(factor, wanted, rel_tol=SCHEDULE_TOLERANCE):
        raise InputError(
            f"{name} has lr={group['lr']:g}, {factor:g} times its planned value, and {first.get('name', 'another')} "
            f"{wanted:g} times; let the schedule multiply the lr of every group by the same factor"
        )


def check_saved(saved: Saved, fit: Fit, found: Mapping[str, Fingerprint], path: Path) -> None:
    """Check that the plan and the weights are those of a saved file."""
    for setting, then, now in (
        ("betas", saved.hps.betas, fit.hps.betas),
        ("clip", saved.hps.clip, fit.hps.clip),
        ("aux_loss", saved.aux_loss, fit.aux_loss),
        ("bias_lr", saved.bias_lr, fit.bias_lr),
    ):
        if then != now:
            raise InputError(
                f"{path}: planned with {setting}={then}, now with {now}; the plan changed since the checkpoint"
            )
    before = {tensor.name: tensor for tensor in saved.tensors}
    for tensor in fit.tensors:
        if (old := before.get(tensor.name)) != tensor:
            what = next((each.name for each in fields(tensor) if old and _differ(old, tensor, each.name)), "no plan")
            was = getattr(old, what, "absent")
            raise InputError(
                f"{path}: {tensor.name} was planned with {what}={was}, now with {getattr(tensor, what, 'a plan')}; the "
                "plan changed since the checkpoint"
            )
    for name in saved.fingerprints.keys() ^ found.keys():
        raise InputError(f"{path}: {name} is only in the {'file' if name in saved.fingerprints else 'model'}")
    lost = [name for name, old in saved.fingerprints.items() if not old.matches(found[name])]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise InputError(
            f"{lost[0]}{more}: the values are not those that were saved in {path}; load the checkpoint with load_ of "
            "the adapted model before the Trainer resumes"
        )


def _differ(old: TensorPlan, new: TensorPlan, field: str) -> bool:
    return bool(getattr(old, field) != getattr(new, field))
