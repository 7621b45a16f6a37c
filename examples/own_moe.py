"""A MoE of your own: one row per parameter says its role and axes; `+`: its output is added to the residual stream."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from expertp import BaseHPs, adapt

ROLES = """
gate: sum
embed.weight            | embedding     | V N
blocks.#.norm_1.weight  | norm          | N
blocks.#.c_attn.weight  | attn_qk       | 3Q N
blocks.#.c_proj.weight  | attn_o +      | N Q
blocks.#.norm_2.weight  | norm          | N
blocks.#.router.weight  | router        | E N
blocks.#.up             | expert_up     | E N H
blocks.#.down           | expert_down + | E H N
norm.weight             | final_norm    | N
"""


class Block(nn.Module):
    def __init__(self, width: int, n_exp: int, top_k: int) -> None:
        super().__init__()
        self.heads, self.top_k = width // 16, top_k
        self.norm_1, self.norm_2, sizes = nn.RMSNorm(width), nn.RMSNorm(width), (3 * width, width, n_exp)
        self.c_attn, self.c_proj, self.router = (nn.Linear(width, each, bias=False) for each in sizes)
        self.up, self.down = (nn.Parameter(torch.empty(n_exp, width, width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        gates = self.router(y := self.norm_2(x)).sigmoid()
        gates = gates * (gates >= gates.topk(self.top_k).values[..., -1:])
        hidden = F.gelu(torch.einsum("bsn,enh->bseh", y, self.up))
        return x + torch.einsum("bseh,ehn,bse->bsn", hidden, self.down, gates)


class Model(nn.Module):
    def __init__(self, width: int, depth: int, n_exp: int, top_k: int) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(64, width), nn.RMSNorm(width)
        self.blocks = nn.Sequential(*(Block(width, n_exp, top_k) for _ in range(depth)))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.norm(self.blocks(self.embed(tokens))), self.embed.weight)


model, base = Model(width=128, depth=4, n_exp=8, top_k=4), Model(width=64, depth=2, n_exp=4, top_k=2)
adapted = adapt(model, base=base, hps=BaseHPs(lr=0.01, init_std=0.1, adam_eps=1e-8), roles=ROLES)
adapted.init_(model)
optimizer = torch.optim.AdamW(adapted.param_groups(model))
tokens = torch.randint(0, 64, (8, 33), generator=torch.Generator().manual_seed(0))
for _ in range(20):
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f} after 20 steps")
