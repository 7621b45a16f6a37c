"""Coordinates of the reference model: RMS of activations and of their updates, without changing training.

Shapes: B sequences, S positions, T = B S tokens, N n_embd, K active experts.
"""

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from expertp.model.router import Routing
from expertp.model.transformer import Block, FFNOutput, MoE, MoETransformer
from expertp.training.run_model import Measured, Quantity


class Matrix(NamedTuple):
    """A linear map y = x W^T + b."""

    weight: Tensor
    bias: Tensor | None = None

    def apply(self, x: Tensor) -> Tensor:
        """Return y."""
        return F.linear(x, self.weight, self.bias)

    def minus(self, other: "Matrix") -> "Matrix":
        """Return the difference of two linear maps."""
        bias = None if self.bias is None or other.bias is None else self.bias - other.bias
        return Matrix(self.weight - other.weight, bias)


@dataclass(frozen=True)
class BlockActivations:
    """Activations of one block: inputs of its linear maps, experts of each token (None if dense), FFN output."""

    attn_TN: Tensor
    o_TN: Tensor
    ffn_TN: Tensor
    expert_TK: Tensor | None
    output_TN: Tensor


@dataclass(frozen=True)
class Activations:
    """Activations of a model: first and last residual stream, input of the unembedding, and all blocks."""

    embedded_TN: Tensor
    blocks: tuple[BlockActivations, ...]
    stream_TN: Tensor
    readout_TN: Tensor


@torch.no_grad()
def activations(model: MoETransformer, tokens_BS: Tensor) -> Activations:
    """Return the activations of a model on a batch, in the dtype of its weights."""
    inputs: dict[nn.Module, Tensor] = {}
    outputs: dict[nn.Module, Any] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
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
    """Measure on a fixed batch the size of activations and of their changes since init.

    The change of a linear map y = W x since init has two parts, which are measured separately:

        W_t x_t - W_0 x_0  =  (W_t - W_0) x_t  +  W_0 (x_t - x_0)
                                 effective           propagated

    Sizes are root mean squares over tokens, entries and layers. Both terms of an expert use the tokens routed to it at
    step t, so that changes of the routing do not count as updates.

    Args:
        model: the model at init; it is not changed.
        tokens_BS: the batch.
    """

    def __init__(self, model: MoETransformer, tokens_BS: Tensor) -> None:
        self.model, self.tokens_BS = model, tokens_BS
        self.initial = copy.deepcopy(model)
        self.before = activations(model, tokens_BS)

    @torch.no_grad()
    def measure(self) -> Measured:
        """Return sizes by module and quantity."""
        now, before = activations(self.model, self.tokens_BS), self.before
        sizes = RootMeanSquares()
        sizes.add("embedding", "size", now.embedded_TN)
        sizes.add("embedding", "effective", now.embedded_TN - before.embedded_TN)
        routes = [block.expert_TK for block in now.blocks]
        pairs = zip(_maps(self.model, now, routes), _maps(self.initial, before, routes), strict=True)
        for (module, matrix, x), (_, matrix_0, x_0) in pairs:
            sizes.add(module, "size", matrix.apply(x))
            sizes.add(module, "effective", matrix.minus(matrix_0).apply(x))
            sizes.add(module, "propagated", Matrix(matrix_0.weight).apply(x - x_0))
        for block in now.blocks:
            sizes.add("ffn_output" if block.expert_TK is None else "moe_output", "size", block.output_TN)
        sizes.add("block_sum", "size", now.stream_TN - now.embedded_TN)
        sizes.add("stream", "size", now.stream_TN)
        return sizes.roots()


class RootMeanSquares:
    """Accumulator of root mean squares."""

    def __init__(self) -> None:
        self._squares: dict[tuple[str, Quantity], float] = defaultdict(float)
        self._counts: dict[tuple[str, Quantity], int] = defaultdict(int)

    def add(self, module: str, quantity: Quantity, values: Tensor) -> None:
        """Add values, summed in float64."""
        self._squares[module, quantity] += values.double().square().sum().item()
        self._counts[module, quantity] += values.numel()

    def roots(self) -> dict[tuple[str, Quantity], float]:
        """Return the root mean squares."""
        return {key: math.sqrt(total / self._counts[key]) for key, total in self._squares.items()}


def _maps(
    model: MoETransformer, seen: Activations, routes: Sequence[Tensor | None]
) -> Iterator[tuple[str, Matrix, Tensor]]:
    """Yield module name, linear map and input for all maps of a model; experts get the tokens given by `routes`."""
    for block, inputs, expert_TK in zip(blocks_of(model), seen.blocks, routes, strict=True):
        q, k = _halves(block.attn.qk)
        yield "attn_q", q, inputs.attn_TN
        yield "attn_k", k, inputs.attn_TN
        yield "attn_v", _matrix(block.attn.v), inputs.attn_TN
        yield "attn_o", _matrix(block.attn.o), inputs.o_TN
        if isinstance(block.ffn, MoE):
            assert expert_TK is not None, "a MoE layer has a routing"
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
    """Return the blocks in order."""
    return [block for block in model.blocks if isinstance(block, Block)]


def _matrix(linear: nn.Linear) -> Matrix:
    return Matrix(linear.weight, linear.bias)


def _halves(qk: nn.Linear) -> tuple[Matrix, Matrix]:
    """Return the query and key maps, which share one tensor."""
    q, k = qk.weight.chunk(2)
    q_bias, k_bias = (None, None) if qk.bias is None else qk.bias.chunk(2)
    return Matrix(q, q_bias), Matrix(k, k_bias)
