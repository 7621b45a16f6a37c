"""plan(base, target, hps) -> Plan: the settings of every parameter group of the target, as plain data.

This module does not import torch.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from expertp.errors import InputError, did_you_mean
from expertp.rules import (
    CONSTANT_FAMILIES,
    DEPTH,
    EXPERTP,
    ONE,
    PAPER_CONSTANTS,
    RULE_SETS,
    Row,
    RuleSet,
)
from expertp.spec import BaseHPs, Counts, Model, ModelSpec, RuleSetName

# Parameter groups of the reference model, in forward order. The rules have more groups, for other architectures.
GROUPS = (
    "embedding",
    "unembedding",
    "norm",
    "final_norm",
    "attn_qk",
    "attn_v",
    "attn_o",
    "linear_bias",
    "router",
    "expert_up",
    "expert_down",
    "expert_bias",
    "ffn_up",
    "ffn_up_bias",
    "ffn_down",
)


@dataclass(frozen=True)
class Group:
    """Settings of one parameter group; None: the setting does not apply."""

    init_std: float | None = None
    lr: float | None = None
    weight_decay: float | None = None
    adam_eps: float | None = None


@dataclass(frozen=True)
class Multipliers:
    """Sizes of the target relative to the base."""

    width: float
    depth: float
    experts: float
    alpha: float


@dataclass(frozen=True)
class Forward:
    """Multipliers in the forward pass of the target; `moe_output` is None for a dense model."""

    residual: float
    logits: float
    attention_scale: float
    moe_output: float | None


@dataclass(frozen=True)
class Plan:
    """Scale-dependent settings for training the target."""

    base: ModelSpec
    target: ModelSpec
    hps: BaseHPs
    multipliers: Multipliers
    groups: Mapping[str, Group]
    forward: Forward
    counts: Counts

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values that are valid JSON."""
        return {
            "rules": self.hps.rules,
            "eps_rule": self.hps.eps_rule,
            "base": self.base.to_dict(),
            "target": self.target.to_dict(),
            "multipliers": asdict(self.multipliers),
            "groups": {name: asdict(group) for name, group in self.groups.items()},
            "forward": asdict(self.forward),
            "counts": asdict(self.counts),
        }


def plan(
    base: ModelSpec,
    target: ModelSpec,
    hps: BaseHPs,
    *,
    steps: int | None = None,
    allow_kappa_change: bool = False,
) -> Plan:
    """Transfer hyperparameters tuned on `base` to `target`.

    Paper: Tables 1 and 2, Section 3.3.

    Args:
        base: the model on which `hps` were tuned.
        target: the model to train.
        hps: the base's hyperparameters, the rule set and its options.
        steps: optimizer steps of the target's run, used by `decay: tau` (default: the steps of the base's run).
        allow_kappa_change: permit a sparsity other than the base's; the learning rate then does not transfer.

    Returns:
        The settings of the target. For `target == base` they are the base's hyperparameters times the constants.

    >>> small = ModelSpec(n_embd=256, n_layer=4, n_exp=4, n_act=1)
    >>> large = ModelSpec(n_embd=1024, n_layer=8, n_exp=16, n_act=4)
    >>> plan(small, large, BaseHPs(lr=0.01)).groups["expert_up"].lr
    0.0025
    """
    _check_comparable(base, target, allow_kappa_change)
    rules, multipliers = RULE_SETS[hps.rules], multipliers_of(base, target)
    if rules.is_native:
        raise InputError(
            f"hps.rules={hps.rules} is the init of a model of transformers; use sp for the reference model"
        )
    values = _symbol_values(multipliers, target, hps.gamma)
    constants = resolve_constants(hps.constants)
    longer = relative_steps(hps, steps)
    present = present_groups(target)
    return Plan(
        base=base,
        target=target,
        hps=hps,
        multipliers=multipliers,
        groups={
            name: group_settings(name, rules.rows[name], hps, values, constants, longer) if name in present else Group()
            for name in GROUPS
        },
        forward=forward_multipliers(rules, hps, values, target),
        counts=target.counts(),
    )


def multipliers_of(base: Model, target: Model) -> Multipliers:
    """Return the sizes of a target relative to a base of the same kind."""
    return Multipliers(
        width=target.n_embd / base.n_embd,
        depth=target.n_layer / base.n_layer,
        experts=target.n_exp / base.n_exp,
        alpha=target.alpha_ffn / base.alpha_ffn,
    )


def named_constants(constants: str | Mapping[str, float]) -> Mapping[str, float]:
    """Return constants by name, from a preset or a mapping; constants that are not named are 1."""
    return {"ones": {}, "paper": PAPER_CONSTANTS}[constants] if isinstance(constants, str) else constants


def resolve_constants(
    constants: str | Mapping[str, float], groups: Iterable[str] = GROUPS
) -> dict[tuple[str, str], float]:
    """Return {(group, "lr" or "init"): factor} for a preset or a mapping with names such as `router_lr`."""
    resolved: dict[tuple[str, str], float] = {}
    known = constant_names(groups)
    for name, factor in named_constants(constants).items():
        if name not in known:
            raise InputError(f"hps.constants.{name}: unknown constant; {did_you_mean(name, known)}")
        family, _, what = name.rpartition("_")
        if not (factor > 0 and math.isfinite(factor)):
            raise InputError(f"hps.constants.{name}: must be positive and finite, not {factor:g}")
        for group in CONSTANT_FAMILIES[family]:
            if (group, what) in resolved:
                raise InputError(
                    f"hps.constants.{name}: {what} of group '{group}' is set twice; name each group once, "
                    "by itself or by its family"
                )
            resolved[group, what] = factor
    return resolved


def constant_names(groups: Iterable[str] = GROUPS) -> list[str]:
    """Return the names allowed in `hps.constants` for a model with the given groups (default: the reference model)."""
    names, there = [], set(groups)
    for family, members in CONSTANT_FAMILIES.items():
        if not there & set(members):
            continue
        names.append(f"{family}_lr")
        if EXPERTP.rows[members[0]].init is not None:
            names.append(f"{family}_init")
    return names


def _check_comparable(base: ModelSpec, target: ModelSpec, allow_kappa_change: bool) -> None:
    for field in ("d_head", "ffn", "gate", "tied_embeddings", "linear_bias", "activation"):
        ours, theirs = getattr(target, field), getattr(base, field)
        if ours != theirs:
            raise InputError(
                f"{field}={ours} in the target but {theirs} in the base; hyperparameters transfer between sizes "
                "of one architecture only, so make them equal"
            )
    if target.kappa != base.kappa and not allow_kappa_change:
        n_act = target.n_exp * base.kappa
        fix = f"n_act={n_act}" if n_act.denominator == 1 else f"n_exp to a multiple of {base.kappa.denominator}"
        raise InputError(
            f"kappa=n_act/n_exp={target.kappa} in the target but {base.kappa} in the base; learning rates do not "
            f"transfer across sparsity, so set {fix} or pass --allow-kappa-change (in a run file, "
            "allow_kappa_change: true)"
        )


def present_groups(model: ModelSpec) -> set[str]:
    """Return the parameter groups that a reference model has."""
    dense, moe = {"ffn_up", "ffn_up_bias", "ffn_down"}, {"router", "expert_up", "expert_down", "expert_bias"}
    absent = dense if model.ffn == "moe" else moe
    if model.tied_embeddings:
        absent.add("unembedding")
    if not model.linear_bias:
        absent |= {"linear_bias", "ffn_up_bias"}
    return set(GROUPS) - absent


def _symbol_values(multipliers: Multipliers, target: ModelSpec, gamma: float) -> dict[str, float]:
    return {
        "m_N": multipliers.width,
        "m_N^gamma": 1.0 if math.isinf(gamma) else multipliers.width**gamma,
        "m_L": multipliers.depth,
        "m_E": multipliers.experts,
        "m_a": multipliers.alpha,
        "m_KV": multipliers.width,  # keys and values are as wide as the model
        "L": target.n_layer,
        "(2L)": 2 * target.n_layer,
        "d_head": target.d_head,
        "n_act": target.n_act,
    }


def place_in_paper(group: str, rules: RuleSetName) -> str:
    """Return the place in the paper of a group's rule; empty if the rule set differs from the paper.

    >>> place_in_paper("router", "expertp"), place_in_paper("router", "sp")
    ('Tab. 1-2, Rule 1', '')
    """
    papers = EXPERTP.rows[group]
    return papers.where if RULE_SETS[rules].rows[group] == papers else ""


def relative_steps(hps: BaseHPs, steps: int | None) -> float:
    """Return the factor by which the target's run is longer than the base's, as used by weight decay."""
    if steps is not None and steps < 1:
        raise InputError(f"steps={steps} is not positive; give the number of optimizer steps of the target's run")
    if hps.decay == "independent":
        return 1.0
    if hps.tuned_steps is None:
        raise InputError("hps.tuned_steps is missing; give the steps of the base run, which hps.decay=tau needs")
    return 1.0 if steps is None else steps / hps.tuned_steps


def group_settings(
    name: str,
    row: Row,
    hps: BaseHPs,
    values: Mapping[str, float],
    constants: Mapping[tuple[str, str], float],
    longer: float,
) -> Group:
    """Return the settings of one parameter group.

    Args:
        name: name of the group.
        row: its rules.
        hps: hyperparameters of the base.
        values: values of the symbols in the rules.
        constants: constant multipliers, from `resolve_constants`.
        longer: how much longer the target's run is than the base's, from `relative_steps`.
    """
    if name == "expert_bias":
        return Group(init_std=0.0, lr=hps.bias_lr * row.lr(values))
    eps = row.adam_eps(hps.eps_rule)
    assert eps is not None, f"{name} is an Adam parameter and needs an eps rule"
    if row.init is None:
        init_std = 0.0 if row.start == "zero" else None
    elif name == "router" and math.isinf(hps.gamma):
        init_std = 0.0
    else:
        init_std = hps.init_std * constants.get((name, "init"), 1.0) * row.init(values)
    # Independent decay keeps lr*wd constant, tau keeps steps*lr*wd: wd gets the inverse of lr's factor in both cases.
    decay = hps.weight_decay / row.lr(values) / longer if row.decays else 0.0
    return Group(
        init_std=init_std,
        lr=hps.lr * constants.get((name, "lr"), 1.0) * row.lr(values),
        weight_decay=decay,
        adam_eps=hps.adam_eps * eps(values),
    )


def forward_multipliers(rules: RuleSet, hps: BaseHPs, values: Mapping[str, float], target: ModelSpec) -> Forward:
    """Return the forward multipliers of a target; arguments as in `group_settings`."""
    residual = rules.forward.residual
    # The paper multiplies block outputs by 1/L, CompleteP's code by 1/m_L; the two differ by the constant L0. Rule sets
    # without a depth multiplier use neither.
    if hps.residual == "absolute" and residual != ONE:
        residual = 1 / DEPTH
    return Forward(
        residual=residual(values),
        logits=rules.forward.logits(values),
        attention_scale=rules.forward.attention_scale(values),
        moe_output=rules.forward.moe_output(values) if target.ffn == "moe" else None,
    )
