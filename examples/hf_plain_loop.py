"""DeepSeek-V3 in a loop of your own, with init, learning rates, eps, weight decay and balance of the plan."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config

from expertp import BaseHPs, adapt

SHAPE = {"vocab_size": 256, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
HEADS = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "q_lora_rank": 32, "kv_lora_rank": 16}


def config(width: int, layers: int, experts: int) -> DeepseekV3Config:
    return DeepseekV3Config(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 16,
        intermediate_size=2 * width,
        moe_intermediate_size=width // 2,
        n_routed_experts=experts,
        num_experts_per_tok=experts // 4,
        **SHAPE,
        **HEADS,
    )


def main(out: Path) -> None:
    model = AutoModelForCausalLM.from_config(config(width=128, layers=4, experts=16))
    # The hyperparameters were tuned on the base.
    hps = BaseHPs(lr=2**-8, init_std=0.05, adam_eps=1e-8, weight_decay=0.1, bias_lr=0.05)
    adapted = adapt(model, base=config(width=64, layers=2, experts=8), hps=hps)
    adapted.init_(model, seed=0)
    optimizer = torch.optim.AdamW(adapted.param_groups(model), lr=hps.lr)
    # A schedule multiplies the learning rate of every group; it does not set one for all.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()

    with adapted.balancing(model) as balance:
        for step in range(20):
            places = torch.randint(len(text) - 64, (8, 1), generator=torch.Generator().manual_seed(step))
            tokens = text[places + torch.arange(64)]
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            adapted.clip_grad_norm_(optimizer, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            balance.step()
            if step % 5 == 0 or step == 19:
                print(f"step {step:2} loss {loss.item():.3f} max |Load - kappa| {balance.max_deviation:.3f}")
    adapted.save(out / "expertp.json", model)
    adapted.verify(model, optimizer, saved=out / "expertp.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
