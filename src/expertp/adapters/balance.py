"""Balance of the loads of models of others: hooks on routers count tokens, and selection biases follow.

A hook runs again when activations are recomputed in the backward pass; only the first run counts. Counts add up over
micro-batches and ranks until `step` uses them, once per optimizer step. The biases stay in float32.

Shapes: E experts.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from expertp.adapters.roles import SELECTION_BIAS, RoleRow, clean_name, pattern_of
from expertp.errors import InputError
from expertp.model.balance import bias_update, load_deviation
from expertp.model.sharded import whole, write_
from expertp.spec import Balance

OUTSIDE_BACKWARD = -1


class LoadCounter:
    """Tokens per expert of every router of a model, in the order of layers.

    Args:
        model: the model; hooks stay on its routers until `close`.
        rows: roles of its parameters.
        n_exp: experts per router.
    """

    def __init__(self, model: nn.Module, rows: Sequence[RoleRow], n_exp: int) -> None:
        routers = _routers(model, rows)
        self.names = list(routers)
        self._counts: dict[str, Tensor] = {}
        self._handles = [router.register_forward_hook(self._hook(name, n_exp)) for name, router in routers.items()]

    def _hook(self, name: str, n_exp: int) -> Any:
        """Return a forward hook that counts the tokens per expert."""

        def count(module: nn.Module, inputs: Any, output: Any) -> None:
            del inputs
            if not module.training or torch._C._current_graph_task_id() != OUTSIDE_BACKWARD:
                return
            chosen = _chosen(output, name)
            counts_E = torch.zeros(n_exp, dtype=torch.int64, device=chosen.device)
            counts_E.scatter_add_(0, chosen.flatten().long(), torch.ones_like(chosen, dtype=torch.int64).flatten())
            self._counts[name] = self._counts[name] + counts_E if name in self._counts else counts_E

        return count

    def loads(self) -> Mapping[str, Tensor]:
        """Return the tokens per expert since the last step, by router, summed over ranks."""
        missing = [name for name in self.names if name not in self._counts]
        if missing:
            raise InputError(
                f"{missing[0]} saw no token since the last step; run the model in training mode before it, and with "
                "torch.compile enter balancing before the first compiled step"
            )
        stacked = torch.stack([self._counts[name] for name in self.names])
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(stacked)
        return dict(zip(self.names, stacked, strict=True))

    def clear(self) -> None:
        """Forget the loads since the last step, for a step that the optimizer skipped."""
        self._counts = {}

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


class Balancing(LoadCounter):
    """Loads of the routers of a model, and updates of their selection biases.

    Args:
        model: the model; hooks stay on its routers until `close`.
        rows: roles of its parameters.
        n_exp: experts per router.
        n_act: experts per token.
        lr: learning rate of the biases.
        rule: balancing method.
    """

    def __init__(
        self,
        model: nn.Module,
        rows: Sequence[RoleRow],
        n_exp: int,
        n_act: int,
        lr: float,
        rule: Balance = "proportional",
    ) -> None:
        super().__init__(model, rows, n_exp)
        self._n_act, self._lr, self._rule = n_act, lr, rule
        self._biases = list(selection_biases(model, rows).values())
        if len(self.names) != len(self._biases):
            raise InputError(f"the model has {len(self.names)} routers but {len(self._biases)} selection biases")
        keep_biases_in_float32(model, rows)
        self._last: dict[str, float] = {}

    @torch.no_grad()
    def step(self, loads: Mapping[str, Tensor] | None = None) -> None:
        """Update the selection biases; call it once per optimizer step.

        Args:
            loads: tokens per expert by router; None: those since the last step.
        """
        loads = self.loads() if loads is None else loads
        for (name, load_E), (module, bias) in zip(loads.items(), self._biases, strict=True):
            tensor = getattr(module, bias)
            change = bias_update(load_E, self._n_act, self._lr, self._rule)
            write_(tensor, whole(tensor) + change.reshape(tensor.shape).to(tensor.dtype))
            self._last[name] = float(load_deviation(load_E, self._n_act).abs().max())
        self.clear()

    def bias_ranges(self) -> list[float]:
        """Return the largest minus the smallest selection bias of every router."""
        found = [whole(getattr(*place)) for place in self._biases]
        return [float(bias.max() - bias.min()) for bias in found]

    @property
    def max_deviation(self) -> float:
        """Largest |Load - kappa| over experts and layers, at the last step."""
        return max(self._last.values(), default=0.0)


@contextmanager
def balancing(
    model: nn.Module, rows: Sequence[RoleRow], n_exp: int, n_act: int, lr: float, rule: Balance
) -> Iterator[Balancing]:
    """Count loads inside the `with` block."""
    balance = Balancing(model, rows, n_exp, n_act, lr, rule)
    try:
        yield balance
    finally:
        balance.close()


def selection_biases(model: nn.Module, rows: Sequence[RoleRow]) -> dict[str, tuple[nn.Module, str]]:
    """Return the module and the attribute of every selection bias, be it a buffer or a parameter, by clean name."""
    patterns = {row.pattern for row in rows if row.role == SELECTION_BIAS}
    return {
        clean_name(f"{name}.{own}"): (module, own)
        for name, module in model.named_modules()
        for own, _ in (*module.named_buffers(recurse=False), *module.named_parameters(recurse=False))
        if pattern_of(clean_name(f"{name}.{own}")) in patterns
    }


def keep_biases_in_float32(model: nn.Module, rows: Sequence[RoleRow]) -> None:
    """Cast selection biases to float32 before they get values: bfloat16 would round their updates away."""
    for module, name in selection_biases(model, rows).values():
        bias = getattr(module, name)
        if bias.dtype in (torch.float32, torch.float64):
            continue
        if isinstance(bias, nn.Parameter):
            bias.data = bias.data.float()
        else:
            setattr(module, name, bias.float())


def _routers(model: nn.Module, rows: Sequence[RoleRow]) -> dict[str, nn.Module]:
    """Return the modules that choose experts: the nearest module around a router's weight that knows n_act."""
    patterns = {row.pattern for row in rows if row.role == "router"}
    modules = {clean_name(name): module for name, module in model.named_modules()}
    routers = {}
    for name, _ in model.named_parameters():
        place, _, _ = clean_name(name).rpartition(".")
        if pattern_of(clean_name(name)) in patterns:
            around, _, _ = place.rpartition(".")
            inner = modules[place]
            knows = hasattr(inner, "top_k") or not hasattr(modules[around], "top_k")
            place = place if knows else around
            routers[place] = modules[place]
    return routers


def _chosen(output: Any, name: str) -> Tensor:
    """Return the chosen experts in the output of a router: its only tensor of integers."""
    several = output if isinstance(output, tuple | list) else (output,)
    found: list[Tensor] = [each for each in several if _is_integer(each)]
    if len(found) != 1:
        raise InputError(
            f"{name} returns {len(found)} tensors of integers, not one with the chosen experts; let it return one"
        )
    return found[0]


def _is_integer(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.dtype.is_floating_point and value.dtype != torch.bool
