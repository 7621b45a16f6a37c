"""Looks into training without changing it: sizes of activations, of their updates and of gradients, by module or group.

Shapes: B sequences, S positions, T = B S tokens, N n_embd, K active experts.
"""

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from expertp.data import Dataset
from expertp.fits import fit_slope
from expertp.loop import TrainingLoop, deterministic, resolve_device
from expertp.model.router import Routing
from expertp.model.transformer import Block, FFNOutput, MoE, MoETransformer, group_of
from expertp.spec import RunSpec

Quantity = Literal["size", "effective", "propagated"]


def gradient_rms(model: MoETransformer) -> dict[str, float]:
    """Return the root mean square of the gradient's entries, by parameter group."""
    squares: dict[str, float] = defaultdict(float)
    sizes: dict[str, int] = defaultdict(int)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        group = group_of(name)
        squares[group] += parameter.grad.double().square().sum().item()
        sizes[group] += parameter.numel()
    return {group: math.sqrt(squares[group] / sizes[group]) for group in squares}


def mean_gradient_rms(run: RunSpec, dataset: Dataset, first_step: int, last_step: int) -> dict[str, float]:
    """Train in memory and return each group's gradient RMS, averaged over steps first..last (geometric mean)."""
    logs: dict[str, list[float]] = defaultdict(list)

    def remember(model: MoETransformer) -> None:
        if loop.steps_done >= first_step:
            for group, size in gradient_rms(model).items():
                if size == 0:
                    raise ArithmeticError(f"the gradient of group '{group}' is zero; there is no scale to measure")
                logs[group].append(math.log(size))

    device = resolve_device(run.train)
    loop = TrainingLoop(run, dataset, device, on_gradients=remember)
    with deterministic(device):
        for step in range(last_step + 1):
            if loop.step().diverged:
                raise ArithmeticError(f"the run diverged at step {step}; its gradients say nothing about scale")
    return {group: math.exp(sum(values) / len(values)) for group, values in logs.items()}


def scaling_exponents(multipliers: Sequence[float], sizes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return per group the slope of log size against log multiplier, by least squares.

    >>> scaling_exponents([1, 2, 4], [{"router": 8.0}, {"router": 4.0}, {"router": 2.0}])
    {'router': -1.0}
    """
    return {
        group: round(fit_slope((m, entry[group]) for m, entry in zip(multipliers, sizes, strict=True)), 9)
        for group in sizes[0]
    }


class Matrix(NamedTuple):
    """y = x W^T + b."""

    weight: Tensor
    bias: Tensor | None = None

    def apply(self, x: Tensor) -> Tensor:
        """Return y."""
        return F.linear(x, self.weight, self.bias)

    def minus(self, other: "Matrix") -> "Matrix":
        """Return the difference of two maps."""
        bias = None if self.bias is None or other.bias is None else self.bias - other.bias
        return Matrix(self.weight - other.weight, bias)


@dataclass(frozen=True)
class BlockActivations:
    """What one block saw and gave: inputs of its maps, each token's experts (none when dense), the FFN's output."""

    attn_TN: Tensor
    o_TN: Tensor
    ffn_TN: Tensor
    expert_TK: Tensor | None
    output_TN: Tensor


@dataclass(frozen=True)
class Activations:
    """What a model saw of a batch: the stream at both ends, what the unembedding gets, and block by block."""

    embedded_TN: Tensor
    blocks: tuple[BlockActivations, ...]
    stream_TN: Tensor
    readout_TN: Tensor


@torch.no_grad()
def activations(model: MoETransformer, tokens_BS: Tensor) -> Activations:
    """Run a batch through a model, in the type of its weights, and return what it saw; the model stays as it is."""
    inputs: dict[nn.Module, Tensor] = {}
    outputs: dict[nn.Module, Any] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        inputs[module], outputs[module] = args[0].flatten(0, 1), output

    blocks = blocks_of(model)
    watched = [module for block in blocks for module in (block, block.attn, block.attn.o, block.ffn)]
    hooks = [module.register_forward_hook(keep) for module in (*watched, *model.routers())]
    try:
        stream_BSN = model.hidden(tokens_BS).h_BSN
    finally:
        for hook in hooks:
            hook.remove()

    def seen_by(block: Block) -> BlockActivations:
        ffn: FFNOutput = outputs[block.ffn]
        routing: Routing | None = outputs[block.ffn.router] if isinstance(block.ffn, MoE) else None
        return BlockActivations(
            attn_TN=inputs[block.attn],
            o_TN=inputs[block.attn.o],
            ffn_TN=inputs[block.ffn],
            expert_TK=None if routing is None else routing.expert_TK,
            output_TN=ffn.y_BSN.flatten(0, 1),
        )

    return Activations(
        embedded_TN=inputs[blocks[0]],
        blocks=tuple(seen_by(block) for block in blocks),
        stream_TN=stream_BSN.flatten(0, 1),
        readout_TN=model.unembedding(stream_BSN)[0].flatten(0, 1),
    )


class CoordinateProbe:
    """Measures on a fixed batch how large the activations of a model are and how far training has moved them.

    A map y = W x has come from W_0 x_0 to W_t x_t by two parts, whose sizes are measured apart:

        W_t x_t - W_0 x_0  =  (W_t - W_0) x_t  +  W_0 (x_t - x_0)
                                 effective           propagated

    Sizes are root mean squares over tokens, entries and layers. Experts are compared on the tokens that visit them
    now: what another choice of experts changes is no update of a map.

    Args:
        model: at its init; a copy is kept, the model itself is never changed.
        tokens_BS: the batch.
    """

    def __init__(self, model: MoETransformer, tokens_BS: Tensor) -> None:
        self.tokens_BS = tokens_BS
        self.initial = copy.deepcopy(model)
        self.before = activations(model, tokens_BS)

    @torch.no_grad()
    def measure(self, model: MoETransformer) -> dict[tuple[str, Quantity], float]:
        """Return sizes by module and quantity; all updates are 0 at init."""
        now, before = activations(model, self.tokens_BS), self.before
        sizes = _RootMeanSquares()
        sizes.add("embedding", "size", now.embedded_TN)
        sizes.add("embedding", "effective", now.embedded_TN - before.embedded_TN)
        routes = [block.expert_TK for block in now.blocks]
        pairs = zip(_maps(model, now, routes), _maps(self.initial, before, routes), strict=True)
        for (module, matrix, x), (_, matrix_0, x_0) in pairs:
            sizes.add(module, "size", matrix.apply(x))
            sizes.add(module, "effective", matrix.minus(matrix_0).apply(x))
            sizes.add(module, "propagated", Matrix(matrix_0.weight).apply(x - x_0))
        for block in now.blocks:
            sizes.add("ffn_output" if block.expert_TK is None else "moe_output", "size", block.output_TN)
        sizes.add("block_sum", "size", now.stream_TN - now.embedded_TN)
        sizes.add("stream", "size", now.stream_TN)
        return sizes.roots()


class _RootMeanSquares:
    """Root mean squares of entries that come in parts."""

    def __init__(self) -> None:
        self._squares: dict[tuple[str, Quantity], float] = defaultdict(float)
        self._counts: dict[tuple[str, Quantity], int] = defaultdict(int)

    def add(self, module: str, quantity: Quantity, values: Tensor) -> None:
        """Take one part; a sum in float64 does not depend on how many parts there are."""
        self._squares[module, quantity] += values.double().square().sum().item()
        self._counts[module, quantity] += values.numel()

    def roots(self) -> dict[tuple[str, Quantity], float]:
        """Return the root mean squares."""
        return {key: math.sqrt(total / self._counts[key]) for key, total in self._squares.items()}


def _maps(
    model: MoETransformer, seen: Activations, routes: Sequence[Tensor | None]
) -> Iterator[tuple[str, Matrix, Tensor]]:
    """Yield every map of a model with the name of its module and its input, each expert with its tokens in `routes`."""
    for block, inputs, expert_TK in zip(blocks_of(model), seen.blocks, routes, strict=True):
        q, k = _halves(block.attn.qk)
        yield "attn_q", q, inputs.attn_TN
        yield "attn_k", k, inputs.attn_TN
        yield "attn_v", _matrix(block.attn.v), inputs.attn_TN
        yield "attn_o", _matrix(block.attn.o), inputs.o_TN
        if isinstance(block.ffn, MoE):
            assert expert_TK is not None, "a router has chosen experts"
            yield "router", Matrix(block.ffn.router.weight), inputs.ffn_TN
            experts = block.ffn.experts
            for expert, (up_NH, down_HN) in enumerate(zip(experts.up, experts.down, strict=True)):
                x = inputs.ffn_TN[(expert_TK == expert).any(1)]
                up = Matrix(up_NH.T)
                yield "expert_up", up, x
                yield "expert_down", Matrix(down_HN.T), F.gelu(up.apply(x))
        else:
            up = _matrix(block.ffn.up)
            yield "ffn_up", up, inputs.ffn_TN
            yield "ffn_down", _matrix(block.ffn.down), F.gelu(up.apply(inputs.ffn_TN))
    weight_VN = model.token.weight if model.head is None else model.head.weight
    yield "logits", Matrix(weight_VN), seen.readout_TN


def blocks_of(model: MoETransformer) -> list[Block]:
    """Return the blocks, in order."""
    return [block for block in model.blocks if isinstance(block, Block)]


def _matrix(linear: nn.Linear) -> Matrix:
    return Matrix(linear.weight, linear.bias)


def _halves(qk: nn.Linear) -> tuple[Matrix, Matrix]:
    """Return the maps to queries and to keys, which share one tensor."""
    q, k = qk.weight.chunk(2)
    q_bias, k_bias = (None, None) if qk.bias is None else qk.bias.chunk(2)
    return Matrix(q, q_bias), Matrix(k, k_bias)
