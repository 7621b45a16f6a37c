"""OLMoE under the Trainer of transformers, with settings tuned on a smaller OLMoE; run it again to resume."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, OlmoeConfig, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from expertp import BaseHPs, adapt


def config(width: int) -> OlmoeConfig:
    heads = width // 16  # heads of 16 channels at every width
    return OlmoeConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=width // 2,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        num_experts=8,
        num_experts_per_tok=2,
    )


def main(out: Path, steps: int) -> None:
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    data = [{"input_ids": row, "labels": row} for row in text.unfold(0, 64, 16)]

    model = AutoModelForCausalLM.from_config(config(width=128))
    hps = BaseHPs(lr=2**-8, init_std=0.05, adam_eps=1e-8, weight_decay=0.1)
    adapted = adapt(model, base=config(width=64), hps=hps)
    checkpoint = get_last_checkpoint(out) if out.exists() else None
    if checkpoint is None:
        adapted.init_(model, seed=0)
    else:
        adapted.load_(model, checkpoint)  # the Trainer alone would leave the experts at their init

    args = TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=8,
        lr_scheduler_type="cosine",
        max_grad_norm=0,  # the callback clips, in planned units
        logging_steps=5,
        save_steps=5,
        report_to=[],
    )
    Trainer(
        model=model,
        args=args,
        train_dataset=data,
        optimizer_cls_and_kwargs=(adapted.trainer_optimizer, {}),
        callbacks=[adapted.callback(clip=1.0)],
    ).train(resume_from_checkpoint=checkpoint)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "hf-trainer"), steps=int(sys.argv[2]) if len(sys.argv) > 2 else 20)
