"""From plans to torch: initialization, parameter groups of optimizers, and schedules as factors on their lr."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from expertp.errors import InputError, did_you_mean, shown
from expertp.model.seeding import draw_normal_
from expertp.model.sharded import own
from expertp.model.transformer import group_of
from expertp.plan import Group, Plan
from expertp.spec import TrainSpec


def init_parameters(model: nn.Module, plan: Plan, seed: int, group_of: Callable[[str], str] = group_of) -> None:
    """Initialize every parameter in place according to the plan.

    Weights are N(0, init_std^2), drawn in float32 from a generator seeded with (seed, name), so that they do not depend
    on other parameters. Biases are 0, norm gains 1.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = _planned(plan, group_of(name), name).init_std
            if std is None:  # a norm
                own(parameter).fill_(0.0 if name.endswith("bias") else 1.0)
            elif std == 0.0:
                own(parameter).zero_()
            else:
                draw_normal_(parameter, std, seed, name)


def param_groups(model: nn.Module, plan: Plan, group_of: Callable[[str], str] = group_of) -> list[dict[str, Any]]:
    """Return one torch parameter group per group of the plan, for Adam and other torch optimizers.

    A group has `name`, `params`, `param_names`, `lr`, `initial_lr` (multiplied by schedules), `weight_decay`, `eps` and
    `betas`. A parameter without a group in the plan is an error.
    """
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        group_name = group_of(name)
        planned = _planned(plan, group_name, name)
        group = groups.setdefault(
            group_name,
            {
                "name": group_name,
                "params": [],
                "param_names": [],
                "lr": planned.lr,
                "initial_lr": planned.lr,
                "weight_decay": planned.weight_decay,
                "eps": planned.adam_eps,
                "betas": plan.hps.betas,
            },
        )
        group["params"].append(parameter)
        group["param_names"].append(name)
    return list(groups.values())


def adamw(groups: list[dict[str, Any]]) -> torch.optim.AdamW:
    """Return AdamW with some parameter groups, using the fused kernel on CPU and CUDA."""
    device = groups[0]["params"][0].device.type
    return torch.optim.AdamW(groups, fused=device in ("cpu", "cuda"))


def lr_factor(train: TrainSpec, step: int) -> float:
    """Return the schedule's factor at a step (from 0): linear warm-up, then constant, cosine to zero, or wsd.

    >>> spec = TrainSpec(data="d", steps=10, batch_tokens=8, warmup_steps=4)
    >>> [lr_factor(spec, step) for step in (0, 1, 3, 4, 9)]
    [0.25, 0.5, 1.0, 1.0, 1.0]
    """
    if step < train.warmup_steps:
        return (step + 1) / train.warmup_steps
    if train.schedule == "cosine":
        done = (step - train.warmup_steps) / max(1, train.steps - train.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    if train.schedule == "wsd":
        assert train.decay_steps is not None, "validated by TrainSpec"
        return min(1.0, (train.steps - step) / train.decay_steps)
    return 1.0


def set_lr_factor(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the lr of every group to its planned lr times the factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def _planned(plan: Plan, group_name: str, parameter_name: str) -> Group:
    group = plan.groups.get(group_name)
    if group is None:
        raise InputError(
            f"parameter {shown(parameter_name)} is in group {shown(group_name)}, which is unknown; "
            f"{did_you_mean(group_name, plan.groups)}"
        )
    if group.lr is None:
        raise InputError(
            f"parameter {shown(parameter_name)} is in group {shown(group_name)}, which the plan does not have; "
            "plan the model that is trained"
        )
    return group
