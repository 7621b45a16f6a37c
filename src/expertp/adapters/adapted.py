"""adapt(model, base, hps) -> Adapted: the plan's settings for a model of others, whose forward pass stays as it is."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from expertp.adapters.balance import Balancing, balancing, keep_biases_in_float32, selection_biases
from expertp.adapters.describe import describe, family_from, family_of
from expertp.adapters.family import Family
from expertp.adapters.fit import Apply, Fit, TensorPlan, fit
from expertp.adapters.hub import fill_buffers_, on_meta, read_config, with_weights
from expertp.adapters.precision import keep_routers_wide
from expertp.adapters.roles import clean_name
from expertp.adapters.trainer import load_weights_, make_callback, unwrapped
from expertp.adapters.verify import (
    Fingerprint,
    check_groups,
    check_parameters,
    check_saved,
    fingerprint,
    read_saved,
)
from expertp.errors import InputError, shown
from expertp.model.seeding import draw_normal_
from expertp.model.sharded import fill_, whole, write_
from expertp.rules import RULE_SETS
from expertp.spec import Balance, BaseHPs
from expertp.util.records import read_text, write_record

CLIP_EPS = 1e-6


@dataclass(frozen=True)
class Adapted:
    """The settings of a target and how they reach its model and its optimizer.

    Args:
        fit: settings of every tensor.
        family: roles of the parameters.
    """

    fit: Fit
    family: Family
    _loaded: list[Path] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def loaded_from(self) -> Path | None:
        """The checkpoint that `load_` has loaded last."""
        return self._loaded[-1] if self._loaded else None

    @property
    def hps(self) -> BaseHPs:
        """Hyperparameters of the base."""
        return self.fit.hps

    @property
    def balances(self) -> bool:
        """Whether the model has selection biases, which `balancing` updates."""
        return self.fit.bias_lr is not None

    @cached_property
    def _planned(self) -> dict[str, TensorPlan]:
        return {tensor.name: tensor for tensor in self.fit.tensors}

    def role_of(self, name: str) -> str:
        """Return the role of a parameter."""
        return self._planned[clean_name(name)].role

    def init_(self, model: nn.Module, seed: int = 0) -> None:
        """Initialize every parameter in place, before or after sharding; selection biases start at 0.

        Values depend on the seed and the name of a parameter only. They are drawn in float32. With `hps.rules: native`
        they are those of the family's own init, with `initializer_range` at `hps.init_std`. A model that was built on
        the meta device and got memory by `to_empty` gets its other buffers, such as rotary frequencies, as well.
        """
        is_native = RULE_SETS[self.hps.rules].is_native
        native = self._native_values(model, seed) if is_native else {}
        if lost := next((name for name, parameter in _clean(model) if parameter.is_meta), None):
            raise InputError(f"{lost} is on the meta device; call model.to_empty(device=...) before init_")
        fill_buffers_(unwrapped(model))
        for tensor, parameter in self._parameters(model):
            if is_native:
                write_(parameter, native[tensor.name])
            elif tensor.init_std:
                draw_normal_(parameter, tensor.init_std, seed, tensor.name)
            else:
                fill_(parameter, tensor.start)
        keep_biases_in_float32(model, self.family.rows)
        for module, name in selection_biases(model, self.family.rows).values():
            fill_(getattr(module, name), 0.0)

    def _native_values(self, model: nn.Module, seed: int) -> dict[str, nn.Parameter]:
        """Return the parameters of a new model, which the code of the family has initialized."""
        config = getattr(unwrapped(model), "config", None)
        if config is None:
            raise InputError("hps.rules=native needs a model of transformers; this module has no init of a family")
        config = copy.deepcopy(config)
        config.initializer_range = self.hps.init_std
        return dict(with_weights(config, seed).named_parameters())

    def param_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return torch parameter groups for Adam: one per role and settings.

        A group has `name`, `params`, `param_names`, `lr`, `initial_lr` (multiplied by schedules), `weight_decay`, `eps`
        and `betas`. Selection biases are in no group.
        """
        groups: dict[tuple[object, ...], dict[str, Any]] = {}
        for tensor, parameter in self._parameters(model):
            key = (tensor.role, tensor.lr, tensor.weight_decay, tensor.adam_eps)
            alike = sum(group["role"] == tensor.role for group in groups.values())
            group = groups.setdefault(
                key,
                {
                    "name": tensor.role if not alike else f"{tensor.role}-{alike + 1}",
                    "role": tensor.role,
                    "params": [],
                    "param_names": [],
                    "lr": tensor.lr,
                    "initial_lr": tensor.lr,
                    "weight_decay": tensor.weight_decay,
                    "eps": tensor.adam_eps,
                    "betas": self.hps.betas,
                },
            )
            group["params"].append(parameter)
            group["param_names"].append(tensor.name)
        return list(groups.values())

    @torch.no_grad()
    def clip_grad_norm_(self, optimizer: Optimizer, max_norm: float) -> Tensor:
        """Clip gradients to a global norm in planned units, and return that norm.

        Gradients are divided by their planned size, and the number of entries of a role counts as in the base. For the
        base, the norm is that of `torch.nn.utils.clip_grad_norm_`; folding does not change it.
        """
        if not max_norm > 0:
            raise InputError(f"max_norm={max_norm:g} is not positive; give the largest norm, or do not clip")
        gradients, norms = [], []
        for group in optimizer.param_groups:
            if not self._planned.keys() >= set(group.get("param_names", [""])):
                raise InputError(
                    "the optimizer has a group that is not of this plan; make the optimizer with param_groups(model)"
                )
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                if parameter.grad is not None:
                    gradients.append(parameter.grad)
                    norm = whole(torch.linalg.vector_norm(parameter.grad))
                    norms.append(norm * self._planned[name].clip_factor)
        if not norms:
            return torch.zeros(())
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        factor = (max_norm / (total + CLIP_EPS)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
        return total

    def balancing(self, model: nn.Module, rule: Balance = "proportional") -> AbstractContextManager[Balancing]:
        """Return a context in which loads are counted; call `step` of its value after every optimizer step."""
        if self.fit.bias_lr is None:
            has, remedy = (
                ("no selection bias", "balance it with its auxiliary loss")
                if self.family.auxiliary_loss
                else ("no selection bias and no auxiliary loss", "add an auxiliary loss of your own to its loss")
            )
            raise InputError(f"'{self.fit.family}' has {has}; {remedy}")
        target = self.fit.target
        return balancing(model, self.family.rows, target.n_exp, target.n_act, self.fit.bias_lr, rule)

    def save(self, path: str | Path, model: nn.Module) -> None:
        """Write the plan and the fingerprints of all weights as JSON, beside a checkpoint."""
        prints = {name: asdict(each) for name, each in self._fingerprints(model).items()}
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            write_record(Path(path), {**self.fit.to_dict(), "fingerprints": prints})

    def verify(self, model: nn.Module, optimizer: Optimizer | None = None, saved: str | Path | None = None) -> None:
        """Raise an error unless the model, the optimizer and the weights are as planned.

        Args:
            model: the model, in any wrapper; its parameters must be those of the plan.
            optimizer: each parameter must be in exactly one group with its planned settings.
            saved: file of `save`: the plan and the values of all weights must be those that were saved.
        """
        check_parameters(model, self.fit, frozenset(selection_biases(model, self.family.rows)))
        if optimizer is not None:
            check_groups(model, optimizer, self.fit)
        if saved is not None:
            check_saved(read_saved(Path(saved)), self.fit, self._fingerprints(model), Path(saved))

    def load_(self, model: nn.Module, checkpoint: str | Path) -> None:
        """Load all weights of a checkpoint of transformers; call it before the Trainer resumes from the checkpoint."""
        keep_biases_in_float32(model, self.family.rows)
        load_weights_(model, Path(checkpoint))
        self._loaded.append(Path(checkpoint))

    def trainer_optimizer(self) -> Callable[..., AdamW]:
        """Return a function from a model to AdamW, for `optimizer_cls_and_kwargs=(adapted.trainer_optimizer, {})`."""

        def make(model: nn.Module, **options: Any) -> AdamW:
            # The default lr is the denominator of min_lr in schedules of the Trainer.
            return AdamW(self.param_groups(model), lr=self.hps.lr, **options)

        return make

    def callback(self, clip: float | None = None) -> Any:
        """Return a callback for the Trainer.

        It verifies, clips in planned units to the norm `clip` (default: that of the hyperparameters), balances, saves
        fingerprints, and keeps routers in float32 where the Trainer computes in another dtype.
        """
        return make_callback(self, self.hps.clip if clip is None else clip)

    def keep_routers_wide(self, model: nn.Module) -> None:
        """Let routers compute in the dtype of their weights under autocast, which would round logits and gates."""
        keep_routers_wide(unwrapped(model), self.family.rows)

    def _parameters(self, model: nn.Module) -> Iterator[tuple[TensorPlan, nn.Parameter]]:
        """Yield planned parameters; a model with other parameters is an error."""
        found = dict(_clean(model))
        missing = self._planned.keys() - found.keys()
        if missing:
            raise InputError(f"{sorted(missing)[0]} is planned but the model does not have it; adapt this model")
        for name, parameter in found.items():
            if name in self._planned:
                yield self._planned[name], parameter

    def _fingerprints(self, model: nn.Module) -> dict[str, Fingerprint]:
        """Return the fingerprints of parameters and selection biases."""
        biases = selection_biases(model, self.family.rows)
        return {
            **{name: fingerprint(parameter) for name, parameter in _clean(model)},
            **{name: fingerprint(getattr(*place)) for name, place in biases.items()},
        }


def adapt(
    model: nn.Module,
    base: Any,
    hps: BaseHPs,
    *,
    roles: str | Path | None = None,
    apply: Apply = "fold",
    n_act: int | None = None,
    base_n_act: int | None = None,
    steps: int | None = None,
) -> Adapted:
    """Return the settings of a model, given a base and the base's hyperparameters.

    Args:
        model: the model to train: a causal language model of transformers, or any module with `roles`.
        base: the model on which `hps` were tuned: a module, a configuration of transformers, or the path of a
            config.json.
        hps: the base's hyperparameters, the rule set and its options.
        roles: a roles text, or the path of a file that has it, for a module of your own.
        apply: "fold" puts forward multipliers into the tensors; "config" expects them in the configuration.
        n_act: experts per token; None: the router has it.
        base_n_act: the same for the base.
        steps: optimizer steps of the run, used by `hps.decay: tau`.
    """
    if not isinstance(hps, BaseHPs):
        raise InputError(f"hps is a {type(hps).__name__}; give a BaseHPs, such as BaseHPs(lr=0.01, init_std=0.02)")
    if isinstance(roles, str) and _is_file_name(roles):
        raise InputError(f"roles={shown(roles)} is the name of a file, not a text; pass Path({shown(roles)})")
    base_model = _base_model(base)
    inner = unwrapped(model)
    if roles is None:
        family, base_family = family_of(inner), family_of(base_model)
    else:
        remedy = "give a text with one row per parameter, NAME | ROLE | AXES"
        text = read_text(roles, remedy) if isinstance(roles, Path) else roles
        family = base_family = family_from(text, inner)
    planned = fit(
        describe(base_model, base_family, base_n_act), describe(inner, family, n_act), hps, apply=apply, steps=steps
    )
    return Adapted(planned, family)


def _base_model(base: Any) -> nn.Module:
    """Return the base as a module, without weights unless it is one already."""
    if isinstance(base, nn.Module):
        return unwrapped(base)
    return on_meta(read_config(Path(base)) if isinstance(base, str | Path) else base)


def _is_file_name(text: str) -> bool:
    """Return whether a text is the name of a file rather than rows."""
    return "|" not in text and len(text.splitlines()) == 1 and (text.endswith(".txt") or Path(text).is_file())


def _clean(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in model.named_parameters():
        yield clean_name(name), parameter
