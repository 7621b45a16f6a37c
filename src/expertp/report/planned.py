"""The plan for the study's largest model as a table, as JSON and as torch code."""

from __future__ import annotations

import json

from expertp.adapters.fit import Fit
from expertp.adapters.summary import HEADER, rows
from expertp.plan import Plan, plan
from expertp.report.elements import Item, Listing, Note, Table
from expertp.spec import Model
from expertp.study.spec import StudySpec
from expertp.training.resolution import plan_models

TORCH_CODE = '''\
"""{title}

You provide `group_of(name)`: it returns the group in PLAN that a parameter belongs to.
"""

import torch

# Init std (None: gains start at 1, biases at 0), lr, weight decay and Adam eps of every group.
PLAN = {{
{groups}
}}
BETAS = {betas}
# Factors in the forward pass, on: block outputs, logits, attention scores q.k, the sum over active experts.
FORWARD = {forward}
# Step size of the expert biases, which balance the load and are not updated by Adam.
EXPERT_BIAS_LR = {bias_lr}


def init_parameters(model, group_of):
    """Initialize every parameter in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = PLAN[group_of(name)]["init_std"]
            if std is None:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.normal_(0.0, std) if std > 0 else parameter.zero_()


def param_groups(model, group_of):
    """Return parameter groups for torch.optim.AdamW; a schedule must multiply the lr of each group."""
    groups = {{}}
    for name, parameter in model.named_parameters():
        settings = {{key: value for key, value in PLAN[group_of(name)].items() if key != "init_std"}}
        groups.setdefault(group_of(name), {{"name": group_of(name), "params": [], "betas": BETAS, **settings}})
        groups[group_of(name)]["params"].append(parameter)
    return list(groups.values())


# init_parameters(model, group_of)
# optimizer = torch.optim.AdamW(param_groups(model, group_of))
'''


def plan_for(study: StudySpec, target: Model) -> Plan | Fit:
    """Return the plan that carries the study's hyperparameters over to a target."""
    return plan_models(study.base, target, study.hps, study.train.steps, study.allow_kappa_change)


def tensor_table(made: Fit) -> Table:
    """Return one row per role and settings of a plan of tensors."""
    text = [(row[0], row[-1], *row[1:-1]) for row in (HEADER, *rows(made.tensors))]
    return Table("Settings of every tensor of the target", text[0], tuple(text[1:]), numeric=6)


def plan_table(made: Plan) -> Table:
    """Return one row per parameter group: its settings, and their ratio to the base's."""
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
        caption="Settings of every parameter group of the target",
        head=("group", "init std", "lr", "weight decay", "Adam eps", "init std / base", "lr / base"),
        rows=tuple(rows),
        numeric=6,
    )


def _factor(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.4g}" if ours and theirs else "–"


def plan_json(made: Plan | Fit) -> str:
    """Return the plan as `expertp plan --json` prints it."""
    return json.dumps(made.to_dict(), indent=2)


def torch_code(made: Plan, title: str) -> str:
    """Return a Python file that builds the plan's parameter groups for any model and needs torch only."""
    groups = [
        f'    "{name}": {{"init_std": {group.init_std!r}, "lr": {group.lr!r}, '
        f'"weight_decay": {group.weight_decay!r}, "eps": {group.adam_eps!r}}},'
        for name, group in made.groups.items()
        if group.lr is not None and name != "expert_bias"
    ]
    return TORCH_CODE.format(
        title=title,
        groups="\n".join(groups),
        betas=made.hps.betas,
        forward={name: getattr(made.forward, name) for name in ("residual", "logits", "attention_scale", "moe_output")},
        bias_lr=made.groups["expert_bias"].lr,
    )


def plan_items(made: Plan | Fit, title: str) -> tuple[Item, ...]:
    """Return the plan as a table, as JSON, and for the reference model as torch code."""
    as_json = Listing("plan-json", "The plan as JSON", plan_json(made), is_folded=True)
    if isinstance(made, Fit):
        return (*_tensor_items(made), as_json)
    code = Listing("plan-torch", "The plan as parameter groups of torch", torch_code(made, title), is_folded=True)
    return (*_group_items(made), as_json, code)


def _group_items(made: Plan) -> tuple[Item, ...]:
    """Show the plan of a reference model."""
    forward = made.forward
    experts = "" if forward.moe_output is None else f", sum over active experts × {forward.moe_output:g}"
    return (
        plan_table(made),
        Note(
            f"Factors in the forward pass: block outputs × {forward.residual:.4g}, logits × {forward.logits:.4g}, "
            f"attention scores q·k × {forward.attention_scale:.4g}{experts}. Norms start with gain 1 and bias 0. "
            "Expert biases are not updated by Adam."
        ),
    )


def _tensor_items(made: Fit) -> tuple[Item, ...]:
    """Show the plan of a model of another family."""
    forward = made.forward
    return (
        tensor_table(made),
        Note(
            f"Forward multipliers, folded into the tensors: block outputs × {forward.residual:.4g}, logits × "
            f"{forward.logits:.4g}, sum over active experts × {forward.moe_output:.4g}. Init is a standard deviation, "
            "or = and the value at which a tensor starts."
        ),
    )
