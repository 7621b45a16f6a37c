"""The anatomy of a model: its weights by block, and the bytes that its forward pass keeps for the backward pass.

Weights and kept bytes of the reference model are exact; tests compare them with the model. Kept bytes of a model of
transformers are an estimate from the shapes of its tensors.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from expertp.adapters.description import ROUTED, Tensor
from expertp.adapters.planned import PlannedModelSpec
from expertp.adapters.spec import HFModelSpec
from expertp.capacity.job import JobSpec
from expertp.spec import Model, ModelSpec

# matrix: computes in the compute dtype; wide: in float32 at least; expert: a matrix that may be spread over devices.
Kind = Literal["matrix", "wide", "expert"]
# Logits that the reference model computes at a time; tests compare it with expertp.model.loss.
CHUNK_LOGITS = 2**23
# Roles of tensors of transformers that compute in float32 at least.
WIDE_ROLES = ("router", "router_bias", "norm", "qk_norm", "latent_norm", "attn_sink")
# The number of a layer in the name of a tensor.
NUMBER = r"(?<![^.])\d+(?![^.])"
ATTENTION_ROLES = ("attn_qk", "attn_v", "latent_down", "latent_up")


@dataclass(frozen=True)
class Weight:
    """One tensor: its name, shape and kind."""

    name: str
    shape: tuple[int, ...]
    kind: Kind

    @property
    def numel(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Block:
    """Equal blocks in a row.

    Args:
        weights: the weights of one of them; `#` in their names stands for the number of the block.
        kept: bytes per token that the forward pass of one of them keeps for the backward pass.
        count: how many there are.
    """

    weights: tuple[Weight, ...]
    kept: int
    count: int


@dataclass(frozen=True)
class Anatomy:
    """A model as layouts see it.

    Args:
        root: weights outside the blocks.
        blocks: the blocks in their order, equal ones together.
        kept: bytes per token that the root keeps for the backward pass.
        logits: bytes per token while the loss is computed.
        logit_tokens: tokens whose logits are computed at a time; None: all of a micro-batch.
        is_exact: whether `kept` of the blocks is exact.
        flops: training FLOPs per token, without recomputation.
    """

    root: tuple[Weight, ...]
    blocks: tuple[Block, ...]
    kept: int
    logits: int
    logit_tokens: int | None
    is_exact: bool
    flops: int

    @property
    def numel(self) -> int:
        """Number of parameters."""
        return sum(times * weight.numel for weight, times in self.weights())

    def weights(self) -> Iterator[tuple[Weight, int]]:
        """Yield all weights, with how often there are such."""
        yield from ((weight, 1) for weight in self.root)
        yield from ((weight, block.count) for block in self.blocks for weight in block.weights)


def anatomy(job: JobSpec) -> Anatomy:
    """Return the anatomy of the model of a job."""
    match job.model:
        case ModelSpec() as model:
            return _reference(model, job)
        case HFModelSpec() | PlannedModelSpec() as model:
            return _family(model, job)
        case _:
            raise AssertionError("a kind of model without anatomy")


def _reference(model: ModelSpec, job: JobSpec) -> Anatomy:
    n, vocabulary = model.n_embd, model.vocab_size
    root: dict[str, tuple[int, ...]] = {"token.weight": (vocabulary, n), "position.weight": (model.context, n)}
    root |= {"final_norm.weight": (n,), "final_norm.bias": (n,)}
    if not model.tied_embeddings:
        root["head.weight"] = (vocabulary, n)
    wide = job.weight_bytes
    return Anatomy(
        root=tuple(Weight(name, shape, "wide") for name, shape in root.items()),
        blocks=(Block(tuple(_reference_block(model)), _reference_kept(model, job), model.n_layer),),
        kept=2 * wide * n + 2 * wide + 8,
        logits=3 * wide * vocabulary,
        logit_tokens=max(1, CHUNK_LOGITS // vocabulary),
        is_exact=True,
        flops=model.flops_per_token(),
    )


def _reference_block(model: ModelSpec) -> list[Weight]:
    n, h, n_exp = model.n_embd, model.n_hid, model.n_exp
    norms = [
        Weight(f"blocks.#.{place}_norm.{part}", (n,), "wide")
        for place in ("attn", "ffn")
        for part in ("weight", "bias")
    ]
    linear = {"attn.qk": (2 * n, n), "attn.v": (n, n), "attn.o": (n, n)}
    linear |= {} if model.is_moe else {"ffn.up": (h, n), "ffn.down": (n, h)}
    matrices = [Weight(f"blocks.#.{name}.weight", shape, "matrix") for name, shape in linear.items()]
    if model.linear_bias:
        matrices += [Weight(f"blocks.#.{name}.bias", shape[:1], "matrix") for name, shape in linear.items()]
    if not model.is_moe:
        return norms + matrices
    experts = {"up": (n_exp, n, h), "down": (n_exp, h, n)}
    return [
        *norms,
        *matrices,
        Weight("blocks.#.ffn.router.weight", (n_exp, n), "wide"),
        *(Weight(f"blocks.#.ffn.experts.{name}", shape, "expert") for name, shape in experts.items()),
    ]


# Bytes that a block of the reference model keeps per token: per n_embd, per active expert and n_embd, and per active
# expert and hidden unit; in float32, and in bfloat16. They were measured, and tests measure them again.
_KEPT = {
    "fused": ((32, 0, 4), (26, 0, 2)),
    "grouped": ((32, 8, 8), (24, 6, 4)),
    "loop": ((32, 12, 8), (24, 8, 4)),
    "dense": ((32, 0, 8), (22, 0, 4)),
}


def _reference_kept(model: ModelSpec, job: JobSpec) -> int:
    """Return the bytes per token that a block keeps; float64 keeps twice the floats of float32."""
    backend = "dense" if not model.is_moe else job.train.expert_backend.replace("auto", "grouped")
    per_n, per_kn, per_kh = _KEPT[backend][job.dtype == "bfloat16"]
    n, k, wide = model.n_embd, model.n_act, job.weight_bytes // 4
    kept = wide * (per_n * n + per_kn * k * n + per_kh * k * model.n_hid + 4 * model.n_head + 16)
    if model.is_moe:
        kept += wide * (4 * model.n_exp + 4 * k) + 24 * k  # gates, and indices of visits
    return kept


def _family(model: HFModelSpec | PlannedModelSpec, job: JobSpec) -> Anatomy:
    described = model.described()
    root: list[Tensor] = []
    blocks: dict[int, list[Tensor]] = {}
    for tensor in described.tensors:
        layer = re.search(NUMBER, tensor.name) if "#" in tensor.row.pattern else None
        (root if layer is None else blocks.setdefault(int(layer[0]), [])).append(tensor)
    c, n = job.compute_bytes, model.n_embd
    return Anatomy(
        root=tuple(Weight(each.name, each.shape, "wide") for each in root),
        blocks=tuple(
            Block(weights, kept, len(list(equal)))
            for (weights, kept), equal in groupby(
                (tuple(map(_family_weight, tensors)), _family_kept(tensors, model, job))
                for _, tensors in sorted(blocks.items())
            )
        ),
        kept=3 * job.weight_bytes * n,
        logits=2 * (c + job.weight_bytes) * model.vocab_size,
        logit_tokens=None,
        is_exact=False,
        flops=model.flops_per_token(),
    )


def _family_weight(tensor: Tensor) -> Weight:
    role = tensor.row.role
    kind: Kind = "expert" if role in ROUTED else "wide" if role in WIDE_ROLES else "matrix"
    return Weight(re.sub(NUMBER, "#", tensor.name, count=1), tensor.shape, kind)


def _family_kept(tensors: Sequence[Tensor], model: Model, job: JobSpec) -> int:
    """Estimate the bytes per token that a block of a family keeps.

    Norms keep their input, the normalized stream and its product, in float32; projections of attention keep their
    outputs twice (before and after rotation or norm), attention its output; gated FFNs keep gate, up, the activation
    and the product; experts also the gathered inputs and the outputs of visits.
    """
    n, k = model.n_embd, model.n_act
    projections = sum(each.shape[0] for each in tensors if each.row.role in ATTENTION_ROLES and len(each.shape) > 1)
    output = sum(each.shape[1] for each in tensors if each.row.role == "attn_o")
    dense = sum(each.numel // n for each in tensors if each.row.role == "ffn_up")
    routed = sum(each.numel // n // model.n_exp for each in tensors if each.row.role == "expert_up")
    sinks = sum(each.numel for each in tensors if each.row.role == "attn_sink")
    visits = k * (2 * routed + 2 * n) + model.n_exp if routed else 0
    numbers = 2 * projections + output + 2 * dense + visits + 2 * sinks * model.context
    return job.compute_bytes * numbers + 6 * job.weight_bytes * n
