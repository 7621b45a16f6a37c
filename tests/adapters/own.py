"""A module of a user: a small MoE transformer without transformers, and its roles."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from expertp.adapters.adapted import Adapted, adapt
from expertp.spec import BaseHPs

HPS = BaseHPs(lr=0.01, init_std=0.1, adam_eps=1e-8, bias_lr=0.1)
ROLES = """
gate: sum
selection: sigmoid
embed.weight            | embedding     | V N
blocks.#.norm.weight    | norm          | N
blocks.#.qkv.weight     | attn_qk       | 3Q N
blocks.#.out.weight     | attn_o +      | N Q
blocks.#.moe_norm.weight | norm         | N
blocks.#.router.weight  | router        | E N
blocks.#.router.bias    | expert_bias   | E
blocks.#.up             | expert_up     | E N H
blocks.#.down           | expert_down + | E H N
final.weight            | final_norm    | N
head.weight             | unembedding   | V N
"""


class Router(nn.Module):
    def __init__(self, width: int, n_exp: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.weight = nn.Parameter(torch.empty(n_exp, width))
        self.register_buffer("bias", torch.zeros(n_exp))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gates = F.linear(x, self.weight).sigmoid()
        chosen = (gates.detach() + self.bias).topk(self.top_k, dim=-1).indices
        return gates.gather(-1, chosen), chosen


class Block(nn.Module):
    def __init__(self, width: int, heads: int, n_exp: int, top_k: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.moe_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.router = Router(width, n_exp, top_k)
        self.up = nn.Parameter(torch.empty(n_exp, width, hidden))
        self.down = nn.Parameter(torch.empty(n_exp, hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.moe_norm(x)
        gates, chosen = self.router(y)
        everything = torch.einsum("bseh,ehn->bsen", F.gelu(torch.einsum("bsn,enh->bseh", y, self.up)), self.down)
        picked = everything.gather(2, chosen[..., None].expand(*chosen.shape, y.shape[-1]))
        return x + (gates[..., None] * picked).sum(2)


class Mine(nn.Module):
    def __init__(self, width: int = 32, depth: int = 2, n_exp: int = 4, top_k: int = 2, hidden: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, width // 8, n_exp, top_k, hidden) for _ in range(depth))
        self.final, self.head = nn.RMSNorm(width), nn.Linear(width, 64, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.final(x)).flatten(0, 1), tokens[:, 1:].flatten())


def mine() -> tuple[Mine, Adapted]:
    """Return a model with 8 experts that is its own base, initialized."""
    model = Mine(n_exp=8, top_k=2)
    fitted = adapt(model, Mine(n_exp=8, top_k=2), HPS, roles=ROLES)
    fitted.init_(model)
    return model, fitted


def batch(seed: int, rows: int = 8) -> Tensor:
    return torch.randint(0, 64, (rows, 17), generator=torch.Generator().manual_seed(seed))
