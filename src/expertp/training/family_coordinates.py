"""Coordinates of a model of transformers: RMS of activations and of their updates, by the roles of its tensors.

Sizes are those before folding: what a folded tensor computes is divided by its fold, so that they compare with those of
the reference model and with the expected slopes.

Shapes: B sequences, S positions, T = B S tokens, K active experts.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from expertp.adapters.fit import Fit
from expertp.adapters.roles import RoleRow, clean_name, pattern_of
from expertp.training.coordinates import Matrix, RootMeanSquares
from expertp.training.run_model import Measured

ExpertFunction = Callable[[Mapping[str, Tensor], Tensor], Tensor]
# Roles of linear maps -> names in the table of expected slopes.
MAPS = {
    **{role: role for role in ("attn_v", "attn_o", "latent_down", "latent_up", "router", "shared_gate")},
    "attn_qk": "attn_q",
    "ffn_up": "dense_up",
    "ffn_down": "dense_down",
}
# An axis of a map -> its name, where a role has several.
NAMES_BY_AXIS = {("attn_qk", "KV"): "attn_k", ("ffn_up", "S"): "shared_up", ("ffn_down", "S"): "shared_down"}


@dataclass(frozen=True)
class _Map:
    """A linear map of a model: its name in the table, its module, the name of its weight, and its fold."""

    label: str
    module: str
    weight: str
    fold: float


@dataclass(frozen=True)
class _Experts:
    """The routed experts of a layer: their module, names of up and down, folds, and the layout of up."""

    module: str
    up: str
    down: str
    fold: float
    is_in_out: bool


@dataclass(frozen=True)
class _Seen:
    """Activations of a model: inputs of maps and experts, outputs of experts, and the residual stream."""

    inputs: Mapping[str, Tensor]
    chosen: Mapping[str, Tensor]
    routed: Mapping[str, Tensor]
    embedded: Tensor
    stream: Tensor
    readout: Tensor


class FamilyProbe:
    """Measure on a fixed batch the size of activations and of their changes since the probe was made.

    Args:
        model: a model of transformers; it is not changed.
        fit: its plan.
        rows: roles of its parameters.
        tokens_BS: the batch.
    """

    def __init__(self, model: nn.Module, fit: Fit, rows: tuple[RoleRow, ...], tokens_BS: Tensor) -> None:
        self._model, self._tokens_BS = model, tokens_BS
        self._gates = fit.forward.moe_output or 1.0  # folded into experts, and part of the sum over them
        by_pattern = {row.pattern: row for row in rows}
        self._maps, self._experts = [], []
        for tensor in fit.tensors:
            row = by_pattern[pattern_of(tensor.name)]
            module, _, _ = tensor.name.rpartition(".")
            if tensor.role in MAPS and len(tensor.shape) == 2:
                self._maps.append(_Map(_label(row), module, tensor.name, tensor.fold))
            elif tensor.role == "expert_down" and len(tensor.shape) == 3:
                up = next(
                    each.name for each in fit.tensors if each.role == "expert_up" and each.name.startswith(f"{module}.")
                )
                self._experts.append(_Experts(module, up, tensor.name, tensor.fold, str(row.axes[-1]) == "N"))
        self._initial = {name: value.detach().clone() for name, value in self._values().items()}
        self._before = self._look()

    @torch.no_grad()
    def measure(self) -> Measured:
        """Return sizes by module and quantity."""
        now, before, values = self._look(), self._before, self._values()
        sizes = RootMeanSquares()
        sizes.add("embedding", "size", now.embedded)
        sizes.add("embedding", "effective", now.embedded - before.embedded)
        for each in self._maps:
            pair = (_matrix(values, each.weight), _matrix(self._initial, each.weight))
            _add(sizes, each.label, pair, (now.inputs[each.module], before.inputs[each.module]), each.fold)
        for experts in self._experts:
            self._add_experts(sizes, experts, now)
            sizes.add("moe_output", "size", now.routed[experts.module] * self._gates / experts.fold)
        head = self._head()
        pair = (Matrix(values[head]), Matrix(self._initial[head]))
        _add(sizes, "logits", pair, (now.readout, before.readout), 1.0)
        sizes.add("block_sum", "size", now.stream - now.embedded)
        sizes.add("stream", "size", now.stream)
        return sizes.roots()

    def _add_experts(self, sizes: RootMeanSquares, experts: _Experts, now: _Seen) -> None:
        """Add the maps of routed experts, on the tokens that visit them now."""
        x, x_0 = now.inputs[experts.module], self._before.inputs[experts.module]
        chosen_TK, values, initial = now.chosen[experts.module], self._values(), self._initial
        for expert in range(len(values[experts.up])):
            is_visited = (chosen_TK == expert).any(-1)
            pair = (_expert_up(values, experts, expert), _expert_up(initial, experts, expert))
            _add(sizes, "expert_up", pair, (x[is_visited], x_0[is_visited]), 1.0)
        downs = [name for name in values if name.startswith(experts.down)]  # the weight, and its bias
        change = {name: values[name] - initial[name] for name in downs}
        first = {name: initial[name] for name in downs}
        for chosen_T1 in chosen_TK.split(1, dim=-1):
            apply = self._expert_function(experts, chosen_T1)
            sizes.add("expert_down", "size", apply(values, x) / experts.fold)
            sizes.add("expert_down", "effective", apply({**values, **change}, x) / experts.fold)
            propagated = apply({**values, **first}, x) - apply(initial, x_0)
            sizes.add("expert_down", "propagated", propagated / experts.fold)

    def _expert_function(
        self, experts: _Experts, chosen_T1: Tensor
    ) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
        """Return a function from weights and inputs to the output of one expert per token, with a gate of 1."""
        module, prefix = self._model.get_submodule(experts.module), f"{experts.module}."

        def apply(values: Mapping[str, Tensor], x: Tensor) -> Tensor:
            own = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
            gate_T1 = torch.ones_like(chosen_T1, dtype=x.dtype)
            output: Tensor = functional_call(module, own, (x, chosen_T1, gate_T1))
            return output

        return apply

    def _values(self) -> dict[str, Tensor]:
        return {clean_name(name): parameter.detach() for name, parameter in self._model.named_parameters()}

    def _head(self) -> str:
        """Return the name of the tensor that makes the logits; a tied one has the name of the embedding."""
        weight = self._model.get_output_embeddings().weight  # type: ignore[operator]
        return next(clean_name(name) for name, each in self._model.named_parameters() if each is weight)

    @torch.no_grad()
    def _look(self) -> _Seen:
        """Run the model on the batch."""
        inputs: dict[str, Tensor] = {}
        chosen: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        experts = {each.module for each in self._experts}

        def keep(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
                del module
                given = (*args, *kwargs.values())
                inputs[name] = given[0].flatten(0, -2)
                if name in experts:
                    chosen[name], outputs[name] = given[1].flatten(0, -2), output.flatten(0, -2)

            return hook

        streams: dict[str, Tensor] = {}
        inner: Any = self._model.model
        with _hooked(self._model, {name: keep(name) for name in {*(each.module for each in self._maps), *experts}}):
            handles = [
                inner.layers[0].register_forward_pre_hook(_keep_input(streams, "embedded"), with_kwargs=True),
                inner.norm.register_forward_pre_hook(_keep_input(streams, "stream"), with_kwargs=True),
                self._model.get_output_embeddings().register_forward_pre_hook(  # type: ignore[operator]
                    _keep_input(streams, "readout"), with_kwargs=True
                ),
            ]
            try:
                self._model(input_ids=self._tokens_BS, use_cache=False)
            finally:
                for handle in handles:
                    handle.remove()
        return _Seen(inputs, chosen, outputs, **streams)


def _add(
    sizes: RootMeanSquares, label: str, matrices: tuple[Matrix, Matrix], x: tuple[Tensor, Tensor], fold: float
) -> None:
    """Add the size of a map and the two parts of its change; of pairs, the second is that of init."""
    (now, first), (x_now, x_first) = matrices, x
    sizes.add(label, "size", now.apply(x_now) / fold)
    sizes.add(label, "effective", now.minus(first).apply(x_now) / fold)
    sizes.add(label, "propagated", Matrix(first.weight).apply(x_now - x_first) / fold)


def _label(row: RoleRow) -> str:
    """Return the name of a map in the table of expected slopes."""
    symbols = {symbol for axis in row.axes for symbol in axis.symbols}
    return next(
        (NAMES_BY_AXIS[row.role, each] for each in symbols if (row.role, each) in NAMES_BY_AXIS), MAPS[row.role]
    )


def _matrix(values: Mapping[str, Tensor], weight: str) -> Matrix:
    return Matrix(values[weight], values.get(f"{weight.removesuffix('weight')}bias"))


def _expert_up(values: Mapping[str, Tensor], experts: _Experts, expert: int) -> Matrix:
    weight, bias = values[experts.up][expert], values.get(f"{experts.up}_bias")
    return Matrix(weight.T if experts.is_in_out else weight, None if bias is None else bias[expert])


def _keep_input(into: dict[str, Tensor], name: str) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        del module
        into[name] = next(iter((*args, *kwargs.values()))).flatten(0, -2)

    return hook


@contextmanager
def _hooked(model: nn.Module, hooks: Mapping[str, Callable[..., None]]) -> Iterator[None]:
    """Call hooks after the forward pass of modules, by name, inside the `with` block."""
    handles = [model.get_submodule(name).register_forward_hook(hook, with_kwargs=True) for name, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
