"""Compare the experts of one MoE layer, forward and backward, with other implementations and a dense FFN.

    fused    the CPU backend of expertp
    loop     one expert after another with index_add, as Hugging Face's eager experts
    grouped  sort and F.grouped_mm, as torchtitan and Hugging Face's default
    bmm      capacity-padded batched products, as nanoMoE and OLMo-core
    dense    a dense FFN with the same active shape

With the extra [hf], also the Mixtral and OLMoE experts of Hugging Face (see hugging_face.py).

Shapes: T tokens, N n_embd, E experts, K active experts, H hidden units of an expert, C capacity of an expert.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from expertp.bench.hugging_face import hugging_face_experts
from expertp.bench.timing import interleaved
from expertp.model.experts import BACKENDS, ExpertFunction
from expertp.model.router import Routing


@dataclass(frozen=True)
class Shape:
    """Shape of the experts of one layer."""

    n_exp: int
    n_act: int
    alpha_ffn: float

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"E{self.n_exp}A{self.n_act} alpha {self.alpha_ffn:g}"


@dataclass(frozen=True)
class Case:
    """One row of the benchmark; `vs_dense` and `vs_best_peer` are ratios of times: below 1, fused is faster."""

    name: str
    n_embd: int
    tokens: int
    dtype: str
    threads: int
    ms: dict[str, float]
    vs_dense: float
    vs_best_peer: float


SHAPES = (
    Shape(4, 1, 1.0),
    Shape(16, 4, 1.0),
    Shape(48, 4, 1.0),
    Shape(64, 16, 0.25),
    Shape(16, 4, 0.25),
    Shape(64, 16, 1 / 16),
)
PEERS = ("loop", "grouped", "bmm")


def bmm_experts(
    x_TN: Float[Tensor, "T N"], routing: Routing, up_ENH: Float[Tensor, "E N H"], down_EHN: Float[Tensor, "E H N"]
) -> Float[Tensor, "T N"]:
    """Pad the tokens of all experts to the largest load, so that none is dropped, and use batched products."""
    visit_R, token_R = routing.sorted_visits()
    capacity = int(routing.load_E.max())
    first_E = routing.load_E.cumsum(0) - routing.load_E
    expert_R = routing.expert_TK.flatten()[visit_R]
    slot_R = expert_R * capacity + torch.arange(len(visit_R)) - first_E[expert_R]
    x_ECN = x_TN.new_zeros(len(up_ENH) * capacity, x_TN.shape[1]).index_copy(0, slot_R, x_TN[token_R])
    y_ECN = torch.bmm(F.gelu(torch.bmm(x_ECN.view(len(up_ENH), capacity, -1), up_ENH)), down_EHN)
    y_RN = y_ECN.flatten(0, 1)[slot_R] * routing.gate_TK.flatten()[visit_R, None].to(y_ECN.dtype)
    return torch.zeros_like(x_TN).index_add(0, token_R, y_RN)


def compare_experts(
    shape: Shape,
    n_embd: int = 256,
    tokens: int = 8192,
    dtype: Literal["float32", "bfloat16"] = "float32",
    rounds: int = 5,
) -> Case:
    """Time forward and backward passes of one shape for all contestants."""
    ms = interleaved(contestants(shape, n_embd, tokens, dtype), rounds)
    return make_case(shape, n_embd, tokens, dtype, ms, PEERS)


def contestants(
    shape: Shape, n_embd: int, tokens: int, dtype: Literal["float32", "bfloat16"] = "float32"
) -> dict[str, Callable[[], object]]:
    """Return functions by name that run the experts forward and backward on the same tokens and weights."""
    torch_dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    generator = torch.Generator().manual_seed(0)

    def weights(*size: int) -> Tensor:
        start = torch.randn(*size, generator=generator) / math.sqrt(size[-2])
        return start.to(torch_dtype).requires_grad_()

    n_hid = round(shape.alpha_ffn * n_embd)
    x_TN, dy_TN = weights(tokens, n_embd), weights(tokens, n_embd).detach()
    up_ENH, down_EHN = weights(shape.n_exp, n_embd, n_hid), weights(shape.n_exp, n_hid, n_embd)
    dense_up, dense_down = weights(n_embd, shape.n_act * n_hid), weights(shape.n_act * n_hid, n_embd)
    expert_TK = torch.rand(tokens, shape.n_exp, generator=generator).topk(shape.n_act).indices
    gate_TK = torch.rand(tokens, shape.n_act, generator=generator).requires_grad_()
    load_E = torch.bincount(expert_TK.flatten(), minlength=shape.n_exp)
    routing = Routing(expert_TK, gate_TK, load_E, torch.zeros(()))
    gated = hugging_face_experts(shape.n_exp, n_embd, n_hid, torch_dtype)
    leaves = [x_TN, gate_TK, up_ENH, down_EHN, dense_up, dense_down]
    leaves += [weight for module in gated.values() for weight in module.parameters()]

    def both_ways(forward: Callable[[], Tensor]) -> Callable[[], object]:
        def run() -> None:
            for leaf in leaves:
                leaf.grad = None
            out = forward()
            out.backward(dy_TN.to(out.dtype))

        return run

    def experts(function: ExpertFunction) -> Callable[[], object]:
        return both_ways(lambda: function(x_TN, routing, up_ENH, down_EHN))

    return {
        **{name: experts(function) for name, function in BACKENDS.items()},
        "bmm": experts(bmm_experts),
        **{name: both_ways(partial(module, x_TN, expert_TK, gate_TK)) for name, module in gated.items()},
        "dense": both_ways(lambda: F.gelu(x_TN @ dense_up) @ dense_down),
    }


def make_case(
    shape: Shape, n_embd: int, tokens: int, dtype: str, ms: Mapping[str, float], peers: Sequence[str]
) -> Case:
    """Return a row of the benchmark with its ratios."""
    return Case(
        name=shape.name,
        n_embd=n_embd,
        tokens=tokens,
        dtype=dtype,
        threads=torch.get_num_threads(),
        ms={name: round(value, 3) for name, value in ms.items()},
        vs_dense=round(ms["fused"] / ms["dense"], 3),
        vs_best_peer=round(ms["fused"] / min(ms[name] for name in peers), 3),
    )
