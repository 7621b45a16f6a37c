"""Sampling: a trained run -> a stream of tokens, through the same logits path and compute type as training."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from expertp.data import Tokenizer, load_tokenizer
from expertp.data.tokenizers import load_gpt2
from expertp.errors import InputError
from expertp.loop import autocast, build_model, plan_run, resolve_dtype
from expertp.model.transformer import MoETransformer
from expertp.spec import Dtype
from expertp.store import RunDirectory, read_run


class LoadedModel(NamedTuple):
    """A trained model on the CPU, its tokenizer, and the type it was trained in."""

    model: MoETransformer
    tokenizer: Tokenizer
    dtype: Dtype


def load_model(out: str | Path) -> LoadedModel:
    """Return a run's model with the newest checkpoint's weights."""
    directory = read_run(out)
    weights = directory.newest_weights()
    if weights is None:
        raise InputError(f"{out}: has no checkpoint to sample from; train it, and past its first checkpoint")
    tokenizer = _tokenizer(directory)
    model = build_model(directory.run, plan_run(directory.run), "cpu")
    model.load_state_dict(weights)
    return LoadedModel(model.eval(), tokenizer, resolve_dtype(directory.run, "cpu"))


def _tokenizer(directory: RunDirectory) -> Tokenizer:
    """Return the run's tokenizer; data of nanoGPT and llm.c does not name one, and it is gpt2's by custom."""
    if directory.tokenizer is not None:
        return load_tokenizer(directory.tokenizer, directory.path)
    gpt2, rows = load_gpt2(), directory.run.model.vocab_size
    if rows < gpt2.vocab_size:
        raise InputError(
            f"{directory.path}: its data names no tokenizer and vocab_size={rows} is too small for gpt2's; train on "
            "data from `expertp prepare` to sample from it"
        )
    return gpt2


@torch.no_grad()
def next_logits(loaded: LoadedModel, ids: Sequence[int]) -> Float[Tensor, "V"]:
    """Return the logits of what follows the last `context` of some ids."""
    window_BS = torch.tensor([ids[-loaded.model.spec.context :]])
    with autocast(loaded.dtype, "cpu"):
        h_BSN = loaded.model.hidden(window_BS).h_BSN
        logits: Tensor = loaded.model.logits(h_BSN[:, -1:])[0, 0]
    return logits


def generate(
    loaded: LoadedModel,
    prompt: Sequence[int],
    count: int,
    *,
    temperature: float = 0.8,
    top_k: int | None = 50,
    seed: int = 0,
) -> Iterator[int]:
    """Yield `count` token ids that follow the prompt; padding rows of the vocabulary are never drawn.

    Positions are learned, so a window that slides is computed afresh.

    Args:
        loaded: a trained model.
        prompt: at least one token id.
        count: how many ids to draw.
        temperature: divides logits; 0 takes the most likely id.
        top_k: draw among this many likeliest ids only; None: among all.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = list(prompt)
    for _ in range(count):
        logits_V = next_logits(loaded, ids)[: loaded.tokenizer.vocab_size].double()
        if temperature == 0:
            chosen = int(logits_V.argmax())
        else:
            if top_k is not None and top_k < len(logits_V):
                logits_V[logits_V < logits_V.topk(top_k).values[-1]] = -torch.inf
            # Shifted first, so that a tiny temperature cannot overflow.
            probability_V = ((logits_V - logits_V.max()) / temperature).softmax(-1)
            chosen = int(torch.multinomial(probability_V, 1, generator=generator))
        ids.append(chosen)
        yield chosen
