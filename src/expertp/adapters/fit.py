"""fit(base, target, hps) -> Fit: the settings of every tensor of a target, with forward multipliers folded into them.

A forward multiplier c on the output of a tensor is the same as the tensor c theta, if init and lr are multiplied by c
and Adam's eps and weight decay divided by it. So the model's forward pass stays as it is. All settings are relative to
the base: for target = base they are the base's hyperparameters, and no tensor is changed.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from expertp.adapters.comparable import check_comparable
from expertp.adapters.description import ROUTED, Description, Sizes, Tensor
from expertp.adapters.family import NativeMultiplier
from expertp.errors import InputError
from expertp.plan import (
    GROUPS,
    Forward,
    Group,
    constant_names,
    group_settings,
    named_constants,
    relative_steps,
    resolve_constants,
)
from expertp.rules import EXPERTP, RULE_SETS
from expertp.spec import BaseHPs

Apply = Literal["fold", "config"]
HIDDEN = ("H", "S", "F")
RANKS = ("RQ", "RK")


@dataclass(frozen=True)
class TensorPlan:
    """Settings of one tensor, after folding.

    Args:
        name: name of the parameter.
        role: its parameter group in the rules.
        shape: its shape.
        start: value around which it is initialized: 0, or the gain of a norm.
        init_std: standard deviation of its init; 0: it starts at `start`.
        lr: learning rate.
        weight_decay: weight decay of AdamW.
        adam_eps: Adam's eps.
        fold: forward multiplier that is folded into the tensor; the other settings include it.
        clip_factor: factor on the norm of its gradient in the global norm that clipping sees.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    start: float
    init_std: float
    lr: float
    weight_decay: float
    adam_eps: float
    fold: float
    clip_factor: float

    @property
    def numel(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


def alike(tensors: Iterable[TensorPlan]) -> list[list[TensorPlan]]:
    """Group tensors with equal role and settings."""
    groups: dict[tuple[object, ...], list[TensorPlan]] = {}
    for tensor in tensors:
        key = (tensor.role, tensor.start, tensor.init_std, tensor.lr, tensor.weight_decay, tensor.adam_eps)
        groups.setdefault(key, []).append(tensor)
    return list(groups.values())


@dataclass(frozen=True)
class Fit:
    """Scale-dependent settings for training the target.

    Args:
        family: its `model_type`.
        base: sizes of the base.
        target: sizes of the target.
        hps: hyperparameters of the base.
        apply: "fold": forward multipliers are in the tensors; "config": in the configuration.
        forward: forward multipliers relative to the base.
        tensors: settings of every tensor.
        aux_loss: factor on the base's coefficient of the auxiliary loss, whose gradient grows with n_act.
        bias_lr: learning rate of the selection biases; None: the family has none.
        config: values of configuration keys that `apply="config"` needs.
    """

    family: str
    base: Sizes
    target: Sizes
    hps: BaseHPs
    apply: Apply
    forward: Forward
    tensors: tuple[TensorPlan, ...]
    aux_loss: float
    bias_lr: float | None
    config: Mapping[str, float]

    @property
    def total_parameters(self) -> int:
        """Number of parameters, without selection biases."""
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def active_parameters(self) -> int:
        """Parameters that multiply the activations of one token.

        All but the experts that it does not visit and the input embedding, which is a lookup; a tied embedding counts,
        because it makes the logits.
        """
        is_tied = all(tensor.role != "unembedding" for tensor in self.tensors)
        lookup = 0 if is_tied else self._entries(("embedding",))
        idle = (1 - self.target.kappa) * self._entries(ROUTED)
        return self.total_parameters - lookup - int(idle)

    def _entries(self, roles: tuple[str, ...]) -> int:
        return sum(tensor.numel for tensor in self.tensors if tensor.role in roles)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values that are valid JSON."""
        return {
            "family": self.family,
            "apply": self.apply,
            "rules": self.hps.rules,
            "base": asdict(self.base),
            "target": asdict(self.target),
            "hps": self.hps.to_dict(),
            "forward": asdict(self.forward),
            "parameters": {"total": self.total_parameters, "active": self.active_parameters},
            "aux_loss": self.aux_loss,
            "bias_lr": self.bias_lr,
            "config": dict(self.config),
            "tensors": [{**asdict(tensor), "shape": list(tensor.shape)} for tensor in self.tensors],
        }


def fit(
    base: Description,
    target: Description,
    hps: BaseHPs,
    *,
    apply: Apply = "fold",
    steps: int | None = None,
    allow_kappa_change: bool = False,
) -> Fit:
    """Return the settings of the target.

    Args:
        base: the model on which `hps` were tuned.
        target: the model to train.
        hps: hyperparameters of the base, the rule set and its options.
        apply: "fold" puts forward multipliers into the tensors, "config" into the configuration, where the family has
            keys for them.
        steps: optimizer steps of the target's run, used by `hps.decay: tau`.
        allow_kappa_change: permit a sparsity other than the base's; the learning rate then does not transfer.
    """
    check_comparable(base, target, hps, allow_kappa_change)
    if math.isinf(hps.gamma):
        raise InputError(
            "gamma=.inf starts routers at zero, and top-k of equal scores sends every token to the same experts in "
            "models of others; use gamma=1"
        )
    forward = _relative_forward(base, target, hps)
    aux_loss = base.sizes.n_act / target.sizes.n_act
    _check_auxiliary_loss(base, target, aux_loss)
    native = _native_values(base, target, forward, apply)
    plans = _Plans(base, target, hps, _what_to_fold(forward, target, apply), relative_steps(hps, steps))
    return Fit(
        family=target.family.model_type,
        base=base.sizes,
        target=target.sizes,
        hps=hps,
        apply=apply,
        forward=forward,
        tensors=tuple(plans),
        aux_loss=aux_loss,
        bias_lr=_bias_lr(base, target, hps),
        config=native,
    )


def _relative_forward(base: Description, target: Description, hps: BaseHPs) -> Forward:
    """Return the forward multipliers divided by those of the base; d_head is fixed."""
    rules, values = RULE_SETS[hps.rules].forward, _shared_symbols(base, target, hps)
    return Forward(
        residual=rules.residual(values),
        logits=rules.logits(values),
        attention_scale=1.0,
        moe_output=rules.moe_output(values) if target.gate == "sum" else 1.0,
    )


def _shared_symbols(base: Description, target: Description, hps: BaseHPs) -> dict[str, float]:
    """Return the symbols of the rules that are the same for all tensors; absolute sizes count relative to the base."""
    ours, theirs = target.sizes, base.sizes
    width, depth = ours.n_embd / theirs.n_embd, ours.n_layer / theirs.n_layer
    return {
        "m_N": width,
        "m_N^gamma": 1.0 if math.isinf(hps.gamma) else width**hps.gamma,
        "m_L": depth,
        "m_E": ours.n_exp / theirs.n_exp,
        "L": depth,
        "(2L)": depth,
        "d_head": 1.0,
        "n_act": ours.n_act / theirs.n_act,
    }


def _check_auxiliary_loss(base: Description, target: Description, factor: float) -> None:
    """Check the coefficient of a target that uses the auxiliary loss; the loss and its gradient grow with n_act."""
    key = "router_aux_loss_coef"
    if not target.config.get("output_router_logits") or key not in base.config:
        return
    ours, theirs = float(target.config[key]), float(base.config[key])
    if not math.isclose(ours, theirs * factor, rel_tol=1e-9):
        raise InputError(
            f"{key}={ours:g} in the target and {theirs:g} in the base, but the auxiliary loss grows with n_act; build "
            f"the target with {key}={theirs * factor!r}"
        )


def _native_values(base: Description, target: Description, forward: Forward, apply: Apply) -> dict[str, float]:
    """Return the planned values of native multipliers, and check those of the target."""
    keys = target.family.native
    if apply == "config" and not keys:
        raise InputError(
            f"model_type '{target.family.model_type}' has no multipliers in its configuration; leave apply='fold'"
        )
    planned = {}
    for native in keys:
        theirs, ours = (float(each.config[native.key]) for each in (base, target))
        planned[native.key] = theirs * _native_factor(native, forward, apply)
        if not math.isclose(ours, planned[native.key], rel_tol=1e-9):
            what = "the multipliers would count twice" if apply == "fold" else "apply='config' needs the planned value"
            raise InputError(
                f"{native.key}={ours:g} in the target but {theirs:g} in the base: {what}; build the target with "
                f"{native.key}={planned[native.key]!r}"
            )
    return planned if apply == "config" else {}


def _native_factor(native: NativeMultiplier, forward: Forward, apply: Apply) -> float:
    factor: float = getattr(forward, native.place) ** native.power
    return factor if apply == "config" else 1.0


def _what_to_fold(forward: Forward, target: Description, apply: Apply) -> Forward:
    """Return the multipliers that are not in the configuration."""
    if apply == "fold":
        return forward
    native = {each.place for each in target.family.native}
    return Forward(
        residual=1.0 if "residual" in native else forward.residual,
        logits=1.0 if "logits" in native else forward.logits,
        attention_scale=1.0,
        moe_output=forward.moe_output,
    )


def _bias_lr(base: Description, target: Description, hps: BaseHPs) -> float | None:
    """Return the learning rate of selection biases; a softmax over all experts is smaller with more experts."""
    if target.family.selection is None:
        return None
    return hps.bias_lr * (base.sizes.n_exp / target.sizes.n_exp if target.family.selection == "softmax" else 1.0)


class _Plans:
    """The settings of the tensors of a target, one after another."""

    def __init__(self, base: Description, target: Description, hps: BaseHPs, fold: Forward, longer: float) -> None:
        self._base, self._target, self._hps, self._fold, self._longer = base, target, hps, fold, longer
        self._shared = _shared_symbols(base, target, hps)
        self._constants = _constants(target, hps)
        self._counts, self._base_counts = _entries(target), _entries(base)

    def __iter__(self) -> Iterator[TensorPlan]:
        return map(self._plan, self._target.tensors)

    def _plan(self, tensor: Tensor) -> TensorPlan:
        role, values, fold = tensor.row.role, self._symbols(tensor), self._folded(tensor)
        row = RULE_SETS[self._hps.rules].rows[role]
        settings = group_settings(role, row, self._hps, values, self._constants, self._longer)
        lr, decay, eps = _adam(settings)
        gradient = EXPERTP.rows[role].eps
        assert gradient is not None, f"{role} is trained by Adam"
        per_entry = math.sqrt(self._base_counts[role] / self._counts[role])
        return TensorPlan(
            name=tensor.name,
            role=role,
            shape=tensor.shape,
            start=self._start(tensor, fold) if settings.init_std is None else 0.0,
            init_std=fold * (settings.init_std or 0.0),
            lr=fold * lr,
            weight_decay=decay / fold,
            adam_eps=eps / fold,
            fold=fold,
            clip_factor=per_entry * fold / gradient(values),
        )

    def _symbols(self, tensor: Tensor) -> dict[str, float]:
        """Return the symbols of the rules; m_a, m_KV and m_R come from the axes of the tensor."""
        ours, theirs, width = self._target.sizes.axes, self._base.sizes.axes, self._shared["m_N"]
        own = {"m_a": 1.0, "m_KV": width, "m_R": 1.0}
        for symbol in (symbol for axis in tensor.row.axes for symbol in axis.symbols):
            ratio = ours[symbol] / theirs[symbol]
            if symbol in HIDDEN:
                own["m_a"] = ratio / width
            elif symbol in RANKS:
                own["m_R"] = ratio
            elif symbol == "KV":
                own["m_KV"] = ratio
        return {**self._shared, **own}

    def _folded(self, tensor: Tensor) -> float:
        """Return the product of the forward multipliers on the output of a tensor."""
        fold = self._fold.residual if tensor.row.writes else 1.0
        if tensor.row.role == "final_norm":
            fold *= self._fold.logits
        if tensor.row.role in ("expert_down", "expert_down_bias"):
            fold *= self._fold.moe_output or 1.0
        return fold

    def _start(self, tensor: Tensor, fold: float) -> float:
        """Return the value at which a norm starts: gain 1 or bias 0, times what is folded into it."""
        if tensor.name.endswith("bias"):
            return 0.0
        return fold - 1.0 if self._target.family.gain_minus_one else fold


def _constants(target: Description, hps: BaseHPs) -> dict[tuple[str, str], float]:
    """Return constant multipliers by role and setting; as elsewhere, those of the reference model are always known."""
    known = constant_names({*GROUPS, *(tensor.row.role for tensor in target.tensors)})
    for name in named_constants(hps.constants):
        if name in constant_names(EXPERTP.rows) and name not in known:
            raise InputError(
                f"hps.constants.{name}: '{target.family.model_type}' has no parameter that it would reach; leave it out"
            )
    return resolve_constants(hps.constants, EXPERTP.rows)


def _adam(settings: Group) -> tuple[float, float, float]:
    lr, decay, eps = settings.lr, settings.weight_decay, settings.adam_eps
    assert lr is not None, "selection biases are not planned here"
    assert decay is not None, "the same"
    assert eps is not None, "the same"
    return lr, decay, eps


def _entries(model: Description) -> Counter[str]:
    """Count the entries of all tensors of a role."""
    counts: Counter[str] = Counter()
    for tensor in model.tensors:
        counts[tensor.row.role] += math.prod(tensor.shape)
    return counts
