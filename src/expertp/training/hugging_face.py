"""A model of transformers as the model of a run: built from its configuration, with the settings of `adapt`."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from expertp.adapters.adapted import Adapted
from expertp.adapters.balance import Balancing, LoadCounter
from expertp.adapters.families import FAMILIES
from expertp.adapters.fit import Fit
from expertp.adapters.hub import training_config, with_weights
from expertp.adapters.precision import keep_routers_wide
from expertp.adapters.spec import HFModelSpec
from expertp.errors import InputError
from expertp.model.cache import KeyValueCache
from expertp.spec import RunSpec
from expertp.training.family_coordinates import FamilyProbe
from expertp.training.resolution import resolve_dtype
from expertp.training.run_model import BatchLoss, RunModel

AUXILIARY_KEY = "router_aux_loss_coef"


class HuggingFaceModel(RunModel):
    """A model of transformers with its plan.

    Args:
        run: the run.
        fit: its plan.
        device: "cpu" or "cuda".
    """

    def __init__(self, run: RunSpec, fit: Fit, device: str) -> None:
        assert isinstance(run.model, HFModelSpec), "a plan of tensors belongs to a model of transformers"
        self._run, self._adapted = run, Adapted(fit, FAMILIES[fit.family])
        dtype = resolve_dtype(run, device)
        module = with_weights(
            training_config(run.model.hf),
            run.train.seed,
            dtype=torch.float64 if dtype == "float64" else torch.float32,
            experts_implementation=_experts(run, dtype),
        )
        if run.train.activation_checkpointing:
            module.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        keep_routers_wide(module, self._adapted.family.rows)
        super().__init__(module.to(device).train())
        target, rows = fit.target, self._adapted.family.rows
        self._balancing = (
            Balancing(module, rows, target.n_exp, target.n_act, fit.bias_lr, run.train.balance)
            if fit.bias_lr is not None
            else None
        )
        self._counter = self._balancing or LoadCounter(module, rows, target.n_exp)

    @staticmethod
    def check(run: RunSpec, fit: Fit, device: str) -> None:
        """Check that the family has the wanted balancing method and implementation of experts."""
        assert isinstance(run.model, HFModelSpec), "a plan of tensors belongs to a model of transformers"
        has_auxiliary = hasattr(training_config(run.model.hf), AUXILIARY_KEY)
        rules = {"none", *(("proportional", "sign") if fit.bias_lr is not None else ())}
        rules |= {"aux_loss"} if has_auxiliary else set()
        if run.train.balance not in rules:
            raise InputError(
                f"train.balance={run.train.balance}: model_type '{fit.family}' has "
                f"{'no selection bias' if fit.bias_lr is None else 'no auxiliary loss'}; set train.balance="
                f"{' or '.join(sorted(rules))}"
            )
        _experts(run, resolve_dtype(run, device))

    def init_(self, seed: int) -> None:
        """Initialize every parameter in place according to the plan."""
        self._adapted.init_(self.module, seed)

    def param_groups(self) -> list[dict[str, Any]]:
        """Return torch parameter groups with the settings of the plan."""
        return self._adapted.param_groups(self.module)

    def group_of(self, name: str) -> str:
        """Return the parameter group of a parameter."""
        return self._adapted.role_of(name)

    def loss(self, tokens_BS: Tensor, targets_BS: Tensor) -> BatchLoss:
        """Return the loss of a batch; the auxiliary loss has the planned coefficient."""
        train = self._run.train
        wants_auxiliary = train.balance == "aux_loss"
        options = {"output_router_logits": True} if wants_auxiliary else {}
        self._counter.clear()
        out = self.module(input_ids=tokens_BS, use_cache=False, **options)
        logits_BSV = out.logits.to(torch.promote_types(out.logits.dtype, torch.float32))
        loss = F.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten().long())
        auxiliary = loss.new_zeros(())
        if wants_auxiliary:
            auxiliary = train.aux_weight * self._adapted.fit.aux_loss * out.aux_loss
        load_LE = torch.stack(list(self._counter.loads().values()))
        self._counter.clear()
        return BatchLoss(loss, load_LE, auxiliary)

    def next_logits(self, tokens_BS: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Return the logits of the token after the last one; all tokens are computed afresh."""
        assert cache is None, "a cache is of the reference model"
        logits: Tensor = self.module(input_ids=tokens_BS, use_cache=False).logits[:, -1]
        return logits

    def clip_(self, optimizer: Optimizer, max_norm: float) -> None:
        """Clip the gradients to a global norm in planned units."""
        self._adapted.clip_grad_norm_(optimizer, max_norm)

    def balance_(self, load_LE: Tensor) -> None:
        """Update the selection biases, if the family has them."""
        if self._balancing is not None:
            self._balancing.step(dict(zip(self._balancing.names, load_LE, strict=True)))

    def bias_ranges(self) -> Sequence[float]:
        """Return the largest minus the smallest selection bias per MoE layer; empty without them."""
        return self._balancing.bias_ranges() if self._balancing is not None else ()

    def probe(self, tokens_BS: Tensor) -> FamilyProbe:
        """Return a probe that compares the model with how it is now."""
        return FamilyProbe(self.module, self._adapted.fit, self._adapted.family.rows, tokens_BS)


def _experts(run: RunSpec, dtype: str) -> str:
    """Return the implementation of experts in transformers; its grouped matrix product takes float32 only."""
    wanted = run.train.expert_backend
    if wanted == "fused":
        raise InputError("train.expert_backend=fused is of the reference model; set auto, loop or grouped")
    if wanted == "grouped" and dtype != "float32":
        raise InputError(f"train.expert_backend=grouped does not support dtype={dtype} here; set loop")
    return "grouped_mm" if wanted == "grouped" or (wanted == "auto" and dtype == "float32") else "eager"
