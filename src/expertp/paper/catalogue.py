"""All findings, in the order of the paper."""

from __future__ import annotations

from collections.abc import Mapping

from expertp.errors import InputError, did_you_mean
from expertp.paper import (
    bias_shift,
    constants_load,
    constants_loss,
    fan_in_down,
    fixed_topk,
    horizon,
    imbalance,
    joint_scale,
    loss_collapse,
    medium,
    scaling_fit,
    soft_router,
    softmax,
    speedrun,
    tradeoff,
    tradeoff_long,
    transfer_quarter,
    transfer_twelfth,
    weight_decay,
)
from expertp.paper.finding import Finding, PaperStudy

_MODULES = (
    transfer_quarter, transfer_twelfth, loss_collapse, speedrun, medium, tradeoff, tradeoff_long, bias_shift,
    weight_decay, constants_loss, constants_load, fixed_topk, fan_in_down, scaling_fit, joint_scale, horizon, imbalance,
    softmax, soft_router,
)  # fmt: skip
FINDINGS: tuple[Finding, ...] = tuple(module.FINDING for module in _MODULES)
STUDIES: Mapping[str, PaperStudy] = {study.name: study for finding in FINDINGS for study in finding.studies}


def find(name: str) -> Finding:
    """Return a finding by its name."""
    by_name = {finding.name: finding for finding in FINDINGS}
    if name not in by_name:
        raise InputError(f"no finding '{name}'; {did_you_mean(name, by_name)}")
    return by_name[name]
