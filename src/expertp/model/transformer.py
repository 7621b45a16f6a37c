"""Decoder-only transformer with MoE (or dense) feed-forward layers.

    h <- h + c attention(LN(h)),   h <- h + c moe(LN(h)),   logits = m W_unembed LN(h)

The plan sets c, m and the factor on the sum over experts. Paper: Section 3.1.

Shapes: B sequences, S positions, N n_embd, L layers, E experts, V vocabulary.
"""

import re
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from expertp.model.attention import Attention
from expertp.model.cache import KeyValueCache, LayerCache
from expertp.model.empty import empty
from expertp.model.experts import BackendName, Experts
from expertp.model.loss import linear_cross_entropy
from expertp.model.router import Router
from expertp.plan import Forward
from expertp.spec import ModelSpec

# The name of a parameter determines its group in the plan; unknown names are errors.
PARAMETER_GROUPS = (
    (r"(token|position)\.weight", "embedding"),
    (r"head\.weight", "unembedding"),
    (r"blocks\.\d+\.(attn|ffn)_norm\.(weight|bias)", "norm"),
    (r"final_norm\.(weight|bias)", "final_norm"),
    (r"blocks\.\d+\.attn\.qk\.weight", "attn_qk"),
    (r"blocks\.\d+\.attn\.v\.weight", "attn_v"),
    (r"blocks\.\d+\.attn\.o\.weight", "attn_o"),
    (r"blocks\.\d+\.ffn\.up\.bias", "ffn_up_bias"),
    (r"blocks\.\d+\.(attn|ffn)\.\w+\.bias", "linear_bias"),
    (r"blocks\.\d+\.ffn\.router\.weight", "router"),
    (r"blocks\.\d+\.ffn\.experts\.up", "expert_up"),
    (r"blocks\.\d+\.ffn\.experts\.down", "expert_down"),
    (r"blocks\.\d+\.ffn\.up\.weight", "ffn_up"),
    (r"blocks\.\d+\.ffn\.down\.weight", "ffn_down"),
)


def group_of(name: str) -> str:
    """Return the parameter group of a parameter of the reference model.

    >>> group_of("blocks.3.ffn.experts.down")
    'expert_down'
    """
    for pattern, group in PARAMETER_GROUPS:
        if re.fullmatch(pattern, name):
            return group
    raise ValueError(f"parameter '{name}' belongs to no group of the plan; add it to PARAMETER_GROUPS")


class FFNOutput(NamedTuple):
    """Output, loads and balance loss of a feed-forward layer; a dense layer has no loads and a loss of 0."""

    y_BSN: Float[Tensor, "B S N"]
    load_E: Int[Tensor, "E"]
    auxiliary: Float[Tensor, ""]


class MoE(nn.Module):
    """MoE layer: f(h) = 1/n_act sum over active experts of g_i E_i(h). Paper: equation (1)."""

    def __init__(self, spec: ModelSpec, output: float, backend: BackendName, with_auxiliary: bool) -> None:
        super().__init__()
        self.output = output
        self.router = Router(spec.n_embd, spec.n_exp, spec.n_act, spec.gate, with_auxiliary)
        self.experts = Experts(spec.n_exp, spec.n_embd, spec.n_hid, backend)

    def forward(self, x_BSN: Float[Tensor, "B S N"], start: int = 0) -> FFNOutput:
        """Route the tokens, of which the first has position `start`, and apply the experts."""
        routing = self.router(x_BSN, start)
        routing = routing._replace(gate_TK=routing.gate_TK * self.output)
        y_TN = self.experts(x_BSN.flatten(0, 1), routing)
        return FFNOutput(y_TN.view_as(x_BSN), routing.load_E, routing.auxiliary)


class DenseFFN(nn.Module):
    """Two-layer perceptron: the dense counterpart of a MoE layer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.up = empty(nn.Linear, spec.n_embd, spec.n_hid, bias=spec.linear_bias)
        self.down = empty(nn.Linear, spec.n_hid, spec.n_embd, bias=spec.linear_bias)

    def forward(self, x_BSN: Float[Tensor, "B S N"], start: int = 0) -> FFNOutput:
        """Apply the layer, which is the same at every position."""
        del start
        y_BSN = self.down(F.gelu(self.up(x_BSN)))
        return FFNOutput(y_BSN, x_BSN.new_zeros(0, dtype=torch.int64), x_BSN.new_zeros(()))


class Block(nn.Module):
    """Pre-LayerNorm attention and feed-forward layers, both scaled by the residual multiplier."""

    def __init__(self, spec: ModelSpec, forward: Forward, backend: BackendName, with_auxiliary: bool) -> None:
        super().__init__()
        self.residual = forward.residual
        self.attn_norm = nn.LayerNorm(spec.n_embd)
        self.attn = Attention(spec.n_embd, spec.d_head, forward.attention_scale, spec.linear_bias)
        self.ffn_norm = nn.LayerNorm(spec.n_embd)
        self.ffn: MoE | DenseFFN
        if spec.ffn == "moe":
            assert forward.moe_output is not None, "the plan of a MoE has an output multiplier"
            self.ffn = MoE(spec, forward.moe_output, backend, with_auxiliary)
        else:
            self.ffn = DenseFFN(spec)

    def forward(self, h_BSN: Float[Tensor, "B S N"], cache: LayerCache | None = None) -> FFNOutput:
        """Return the residual stream after this block, and the loads of the feed-forward layer."""
        start = 0 if cache is None else cache.length
        h_BSN = h_BSN.add(self.attn(self.attn_norm(h_BSN), cache), alpha=self.residual)
        ffn: FFNOutput = self.ffn(self.ffn_norm(h_BSN), start)
        return ffn._replace(y_BSN=h_BSN.add(ffn.y_BSN, alpha=self.residual))


class Hidden(NamedTuple):
    """Final residual stream, loads per layer, and the balance loss summed over layers."""

    h_BSN: Float[Tensor, "B S N"]
    load_LE: Int[Tensor, "L E"]
    auxiliary: Float[Tensor, ""]


class Loss(NamedTuple):
    """Mean cross-entropy, loads per layer, and the balance loss summed over layers."""

    loss: Float[Tensor, ""]
    load_LE: Int[Tensor, "L E"]
    auxiliary: Float[Tensor, ""]


class MoETransformer(nn.Module):
    """The reference model. Call `optim.init_parameters` to initialize its weights, which are empty before.

    Args:
        spec: shape of the model.
        forward: forward multipliers of the plan.
        backend: implementation of the experts.
        with_auxiliary: compute the auxiliary balance loss.
        activation_checkpointing: recompute blocks in the backward pass.
    """

    def __init__(
        self,
        spec: ModelSpec,
        forward: Forward,
        backend: BackendName = "loop",
        with_auxiliary: bool = False,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.spec, self.multipliers = spec, forward
        self.activation_checkpointing = activation_checkpointing
        self.token = empty(nn.Embedding, spec.vocab_size, spec.n_embd)
        self.position = empty(nn.Embedding, spec.context, spec.n_embd)
        self.blocks = nn.ModuleList(Block(spec, forward, backend, with_auxiliary) for _ in range(spec.n_layer))
        self.final_norm = nn.LayerNorm(spec.n_embd)
        self.head = None if spec.tied_embeddings else empty(nn.Linear, spec.n_embd, spec.vocab_size, bias=False)

    def hidden(self, tokens_BS: Int[Tensor, "B S"], cache: KeyValueCache | None = None) -> Hidden:
        """Run all blocks; with a cache, the tokens follow those that it holds, and are added to it."""
        start = 0 if cache is None else cache.length
        layers = [None] * len(self.blocks) if cache is None else cache.layers
        h_BSN = self.token(tokens_BS) + self.position.weight[start : start + tokens_BS.shape[1]]
        loads, auxiliary = [], h_BSN.new_zeros(())
        for block, layer in zip(self.blocks, layers, strict=True):
            if self.activation_checkpointing and torch.is_grad_enabled():
                out: FFNOutput = checkpoint(block, h_BSN, use_reentrant=False)
            else:
                out = block(h_BSN, layer)
            h_BSN = out.y_BSN
            loads.append(out.load_E)
            auxiliary = auxiliary + out.auxiliary
        return Hidden(h_BSN, torch.stack(loads), auxiliary)

    def empty_cache(self) -> KeyValueCache:
        """Return a cache for `hidden` that has room for the context."""
        return KeyValueCache(tuple(LayerCache(self.spec.context) for _ in self.blocks))

    def unembedding(self, h_BSN: Float[Tensor, "B S N"]) -> tuple[Float[Tensor, "B S N"], Float[Tensor, "V N"]]:
        """Return the two factors of the logits, for training and generation."""
        weight_VN = self.token.weight if self.head is None else self.head.weight
        return self.final_norm(h_BSN) * self.multipliers.logits, weight_VN

    def logits(self, h_BSN: Float[Tensor, "B S N"]) -> Float[Tensor, "B S V"]:
        """Return the logits."""
        return F.linear(*self.unembedding(h_BSN))

    def forward(self, tokens_BS: Int[Tensor, "B S"], targets_BS: Int[Tensor, "B S"]) -> Loss:
        """Return the mean next-token cross-entropy of a batch."""
        hidden = self.hidden(tokens_BS)
        h_BSN, weight_VN = self.unembedding(hidden.h_BSN)
        loss = linear_cross_entropy(h_BSN.flatten(0, 1), weight_VN, targets_BS.flatten())
        return Loss(loss, hidden.load_LE, hidden.auxiliary)

    def shift_biases(self, change_LE: Float[Tensor, "L E"]) -> None:
        """Add a balance update to the expert biases of each layer."""
        for router, change_E in zip(self.routers(), change_LE, strict=True):
            router.bias.add_(change_E)

    def routers(self) -> list[Router]:
        """Return the routers in layer order; a dense model has none."""
        return [module for module in self.modules() if isinstance(module, Router)]
