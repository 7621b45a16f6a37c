"""The plan for the study's largest model, in the forms that people take away: a table, JSON and torch code."""

from __future__ import annotations

import json

from expertp.plan import Plan, plan
from expertp.report.views import Table
from expertp.spec import ModelSpec
from expertp.study import StudySpec

TORCH_CODE = '''\
"""{title}

`group_of(name)` is yours: it says which group of PLAN a parameter belongs to.
"""

import torch

# Init std (None: gains 1, biases 0), lr, weight decay and Adam eps of every group.
PLAN = {{
{groups}
}}
BETAS = {betas}
# Factors in the forward pass: on block outputs, on logits, on attention scores q.k, on the sum over active experts.
FORWARD = {forward}
# Step size of the expert biases, which balance the load and are not in Adam.
EXPERT_BIAS_LR = {bias_lr}


def init_parameters(model, group_of):
    """Set every parameter in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = PLAN[group_of(name)]["init_std"]
            if std is None:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.normal_(0.0, std) if std > 0 else parameter.zero_()


def param_groups(model, group_of):
    """Return the groups of torch.optim.AdamW; a schedule must multiply each group's own lr."""
    groups = {{}}
    for name, parameter in model.named_parameters():
        settings = {{key: value for key, value in PLAN[group_of(name)].items() if key != "init_std"}}
        groups.setdefault(group_of(name), {{"name": group_of(name), "params": [], "betas": BETAS, **settings}})
        groups[group_of(name)]["params"].append(parameter)
    return list(groups.values())


# init_parameters(model, group_of)
# optimizer = torch.optim.AdamW(param_groups(model, group_of))
'''


def plan_for(study: StudySpec, target: ModelSpec) -> Plan:
    """Carry the study's base hyperparameters over to a target."""
    return plan(study.base, target, study.hps, steps=study.train.steps, allow_kappa_change=study.allow_kappa_change)


def plan_table(made: Plan) -> Table:
    """Return a row per group: what it is set to, and by what that differs from the base."""
    at_base = plan(made.base, made.base, made.hps)
    rows = []
    for name, group in made.groups.items():
        if group.lr is None:
            continue
        base = at_base.groups[name]
        factors = [_factor(group.init_std, base.init_std), _factor(group.lr, base.lr)]
        settings = (group.init_std, group.lr, group.weight_decay, group.adam_eps)
        rows.append((name, *("–" if value is None else f"{value:.4g}" for value in settings), *factors))
    return Table(
        caption="What every parameter group of the target is set to",
        head=("group", "init std", "lr", "weight decay", "Adam eps", "init × base", "lr × base"),
        rows=tuple(rows),
        numeric=6,
    )


def _factor(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.4g}" if ours and theirs else "–"


def plan_json(made: Plan) -> str:
    """Return the plan as `expertp plan --json` prints it."""
    return json.dumps(made.to_dict(), indent=2)


def torch_code(made: Plan, title: str) -> str:
    """Return a Python file that needs torch only and builds the plan's parameter groups for any model."""
    groups = [
        f'    "{name}": {{"init_std": {group.init_std!r}, "lr": {group.lr!r}, '
        f'"weight_decay": {group.weight_decay!r}, "eps": {group.adam_eps!r}}},'
        for name, group in made.groups.items()
        if group.lr is not None and name != "expert_bias"
    ]
    forward = made.forward
    return TORCH_CODE.format(
        title=title,
        groups="\n".join(groups),
        betas=made.hps.betas,
        forward={
            "residual": forward.residual,
            "logits": forward.logits,
            "attention_scale": forward.attention_scale,
            "moe_output": forward.moe_output,
        },
        bias_lr=made.groups["expert_bias"].lr,
    )
