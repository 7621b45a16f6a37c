"""Tiny models of transformers in run and study files."""

from pathlib import Path
from typing import Any

from runs import VOCAB

from expertp.config import build
from expertp.spec import RunSpec

SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
KEYS: dict[str, dict[str, Any]] = {
    "olmoe": {"num_key_value_heads": 2, "intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {"num_key_value_heads": 1, "intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        **{"num_key_value_heads": 2, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8},
        **{"qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1, "intermediate_size": 32},
        **{"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
        **{"n_group": 1, "topk_group": 1},
    },
}
BALANCE = {"olmoe": "aux_loss", "mixtral": "aux_loss", "deepseek_v3": "proportional"}


def model_tree(model_type: str, **keys: Any) -> dict[str, Any]:
    """Return the section of a tiny model."""
    return {"hf": {"model_type": model_type, **SIZES, **KEYS[model_type], **keys}, "context": 16}


def run_tree(data: Path, model_type: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """Return the tree of a tiny run, with changes by section."""
    train = {"data": str(data), "steps": 6, "batch_tokens": 128, "eval_every": 3, "eval_tokens": 256}
    return {
        "model": sections.get("model", model_tree(model_type)),
        "base": sections.get("base", sections.get("model", model_tree(model_type))),
        "hps": {"lr": 0.01, "init_std": 0.05, "adam_eps": 1e-8, **sections.get("hps", {})},
        "train": {**train, "balance": BALANCE[model_type], **sections.get("train", {})},
    }


def hf_run(data: Path, model_type: str, **sections: dict[str, Any]) -> RunSpec:
    """Return a tiny run of a family."""
    return build(RunSpec, run_tree(data, model_type, **sections), "run")


def study_tree(data: Path, model_type: str = "olmoe") -> dict[str, Any]:
    """Return the tree of a tiny study: two axes and two arms."""
    tree = run_tree(data, model_type, train={"steps": 3, "eval_every": 3})
    return {
        "name": model_type,
        **{section: tree[section] for section in ("base", "hps", "train")},
        "axes": {
            "width": {"sizes": [32, 64], "sweep": ["log2_lr"]},
            "depth": {"sizes": [2, 4], "sweep": ["log2_lr"], "sweep_at": []},
        },
        "grids": {"log2_lr": [-8, -7, -6]},
        "seeds": [0, 1],
        "arms": {"native": {"axes": ["width"], "hps": {"init_std": 0.02}, "retune": {"width": [64]}}},
    }
