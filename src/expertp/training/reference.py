"""The reference model as the model of a run."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from expertp.model.balance import bias_update
from expertp.model.cache import KeyValueCache
from expertp.model.experts import Experts, choose_backend
from expertp.model.transformer import MoETransformer, group_of
from expertp.plan import Plan
from expertp.spec import Dtype, RunSpec
from expertp.training.coordinates import CoordinateProbe
from expertp.training.optim import init_parameters, param_groups
from expertp.training.parallel import clip_gradients_, shard_
from expertp.training.ranks import ALONE, Ranks
from expertp.training.resolution import resolve_dtype
from expertp.training.run_model import BatchLoss, RunModel


class ReferenceModel(RunModel):
    """The reference model with its plan.

    Args:
        run: the run.
        plan: its plan.
        device: "cpu" or "cuda".
        ranks: the processes that share the model.
    """

    module: MoETransformer

    def __init__(self, run: RunSpec, plan: Plan, device: str, ranks: Ranks = ALONE) -> None:
        self._run, self._plan, self._ranks = run, plan, ranks
        train, dtype = run.train, resolve_dtype(run, device)
        with torch.device("meta"):  # no rank needs memory for the whole model
            model = MoETransformer(
                plan.target,
                plan.forward,
                backend=choose_backend(train.expert_backend, device, plan.target, dtype),
                with_auxiliary=train.balance == "aux_loss",
                activation_checkpointing=train.activation_checkpointing,
            ).to(torch.float64 if dtype == "float64" else torch.float32)
        shard_(model, run.parallel, ranks, device, dtype)
        super().__init__(model.to_empty(device=device))

    @staticmethod
    def check(run: RunSpec, plan: Plan, device: str) -> None:
        """Check that the experts have an implementation."""
        choose_backend(run.train.expert_backend, device, plan.target, resolve_dtype(run, device))

    def init_(self, seed: int) -> None:
        """Initialize every parameter in place according to the plan, and the expert biases to 0."""
        for router in self.module.routers():
            router.bias.zero_()
        init_parameters(self.module, self._plan, seed)

    def param_groups(self) -> list[dict[str, Any]]:
        """Return torch parameter groups with the settings of the plan."""
        return param_groups(self.module, self._plan)

    def group_of(self, name: str) -> str:
        """Return the parameter group of a parameter."""
        return group_of(name)

    def loss(self, tokens_BS: Tensor, targets_BS: Tensor) -> BatchLoss:
        """Return the loss of a batch."""
        out = self.module(tokens_BS, targets_BS)
        return BatchLoss(out.loss, out.load_LE, self._run.train.aux_weight * out.auxiliary)

    def next_logits(self, tokens_BS: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Return the logits of the token after the last one; with a cache, the tokens follow those that it holds."""
        return self.module.logits(self.module.hidden(tokens_BS, cache).h_BSN[:, -1:])[:, 0]

    def empty_cache(self) -> KeyValueCache:
        """Return a cache that has room for the context."""
        return self.module.empty_cache()

    def prepare_generation(self, dtype: Dtype) -> None:
        """Round the weights of matrix products to bfloat16 once; autocast would do so at every token.

        The logits are the same. The router computes in float32.
        """
        if dtype == "bfloat16":
            for module in self.module.modules():
                if isinstance(module, nn.Linear | Experts):
                    module.to(torch.bfloat16)
        self.module.eval()

    def clip_(self, optimizer: Optimizer, max_norm: float) -> None:
        """Clip the gradients to a global norm."""
        del optimizer
        clip_gradients_(self.module.parameters(), max_norm, self._run.parallel, self._ranks)

    def balance_(self, load_LE: Tensor) -> None:
        """Update the expert biases; a dense model has none."""
        if load_LE.numel():
            rule, bias_lr = self._run.train.balance, self._run.hps.bias_lr
            self.module.shift_biases(bias_update(load_LE, self._plan.target.n_act, bias_lr, rule))

    def bias_ranges(self) -> Sequence[float]:
        """Return the largest minus the smallest expert bias per MoE layer."""
        return [(router.bias.max() - router.bias.min()).item() for router in self.module.routers()]

    def probe(self, tokens_BS: Tensor) -> CoordinateProbe:
        """Return a probe that compares the model with how it is now."""
        return CoordinateProbe(self.module, tokens_BS)
