"""Sampling: a trained run -> a stream of tokens, through the same logits path as training."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from expertp.data import Tokenizer, load_tokenizer
from expertp.data.tokenizers import load_gpt2
from expertp.errors import InputError
from expertp.loop import build_model, plan_run
from expertp.model.transformer import MoETransformer
from expertp.store import read_run


def load_model(out: str | Path) -> tuple[MoETransformer, Tokenizer]:
    """Return a run's model with the newest checkpoint's weights, on the CPU, and its tokenizer.

    Data of other projects (nanoGPT, llm.c) does not name its tokenizer; there it is gpt2's by custom.
    """
    directory = read_run(out)
    checkpoint = directory.latest_checkpoint()
    if checkpoint is None:
        raise InputError(f"{out}: has no checkpoint yet; let `expertp train` go on for a while")
    model = build_model(directory.run, plan_run(directory.run), "cpu")
    model.load_state_dict(checkpoint.weights)
    if directory.tokenizer is not None:
        return model.eval(), load_tokenizer(directory.tokenizer, directory.path)
    if directory.run.model.vocab_size < (gpt2 := load_gpt2()).vocab_size:
        raise InputError(
            f"{out}: its data names no tokenizer and vocab_size={directory.run.model.vocab_size} is too small for "
            "gpt2's; train on data from `expertp prepare` to sample from it"
        )
    return model.eval(), gpt2


@torch.no_grad()
def generate(
    model: MoETransformer,
    prompt: Sequence[int],
    count: int,
    *,
    n_ids: int,
    temperature: float = 0.8,
    top_k: int | None = 50,
    seed: int = 0,
) -> Iterator[int]:
    """Yield `count` token ids that follow the prompt.

    Each id is drawn from the logits at the last position of the last `context` tokens; positions are learned, so a
    window that slides is computed afresh.

    Args:
        model: a trained model.
        prompt: at least one token id.
        count: how many ids to draw.
        n_ids: ids below this one exist in the tokenizer; padding rows of the vocabulary are never drawn.
        temperature: divides logits; 0 takes the most likely id.
        top_k: draw among this many likeliest ids only; None: among all.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = list(prompt)
    for _ in range(count):
        window_BS = torch.tensor([ids[-model.spec.context :]])
        logits_V = model.logits(model.hidden(window_BS).h_BSN[:, -1:])[0, 0, :n_ids].double()
        if temperature == 0:
            chosen = int(logits_V.argmax())
        else:
            if top_k is not None and top_k < n_ids:
                logits_V[logits_V < logits_V.topk(top_k).values[-1]] = -torch.inf
            chosen = int(torch.multinomial((logits_V / temperature).softmax(-1), 1, generator=generator))
        ids.append(chosen)
        yield chosen
