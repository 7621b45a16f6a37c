"""Sampling from a trained run, with the same logits and compute dtype as in training."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from expertp.data import Tokenizer, TokenizerIdentity, load_tokenizer
from expertp.data.tokenizers import load_gpt2
from expertp.errors import DamagedError, InputError
from expertp.spec import Dtype
from expertp.training.build import build_model
from expertp.training.checkpoints import newest_weights
from expertp.training.loop import autocast
from expertp.training.resolution import resolve_dtype
from expertp.training.run_model import RunModel
from expertp.training.store import RunDirectory, TokenizerRecord, read_run


class LoadedModel(NamedTuple):
    """A trained model on CPU, its tokenizer and its compute dtype."""

    model: RunModel
    tokenizer: Tokenizer
    dtype: Dtype
    context: int


def load_model(out: str | Path) -> LoadedModel:
    """Return the model of a run with the weights of its newest checkpoint."""
    directory = read_run(out)
    weights = newest_weights(directory)
    if weights is None:
        raise InputError(f"{out}: has no checkpoint to sample from; train the run up to its first checkpoint")
    tokenizer = _tokenizer(directory)
    model = build_model(directory.run, "cpu")
    try:
        model.restore(weights)
    except RuntimeError:
        raise DamagedError(
            f"{out}/run.json: damaged (its model is not that of the weights); {directory.remedy}"
        ) from None
    model.module.eval()
    return LoadedModel(model, tokenizer, resolve_dtype(directory.run, "cpu"), directory.run.model.context)


def _tokenizer(directory: RunDirectory) -> Tokenizer:
    """Return the tokenizer of a run; nanoGPT and llm.c do not store it, so gpt2 is assumed for their data."""
    if directory.tokenizer is not None:
        return load_tokenizer(_identity(directory.tokenizer, directory), directory.path)
    gpt2, rows = load_gpt2(), directory.run.model.vocab_size
    if rows < gpt2.vocab_size:
        raise InputError(
            f"{directory.path}: its data stores no tokenizer, and vocab_size={rows} is too small for gpt2; train "
            "on data written by `expertp prepare`"
        )
    return gpt2


def _identity(record: TokenizerRecord, directory: RunDirectory) -> TokenizerIdentity:
    try:
        return TypeAdapter(TokenizerIdentity).validate_python(asdict(record))
    except ValidationError:
        raise DamagedError(f"{directory.path}/run.json: damaged (unknown tokenizer); {directory.remedy}") from None


@torch.no_grad()
def next_logits(loaded: LoadedModel, ids: Sequence[int]) -> Float[Tensor, "V"]:
    """Return the logits of the next token, given the last `context` ids."""
    window_BS = torch.tensor([ids[-loaded.context :]])
    with autocast(loaded.dtype, "cpu"):
        return loaded.model.next_logits(window_BS)[0]


def generate(
    loaded: LoadedModel,
    prompt: Sequence[int],
    count: int,
    *,
    temperature: float = 0.8,
    top_k: int | None = 50,
    seed: int = 0,
) -> Iterator[int]:
    """Yield `count` sampled token ids; padding rows of the vocabulary are never sampled.

    Positions are learned, so all activations are recomputed for every token.

    Args:
        loaded: a trained model.
        prompt: at least one token id.
        count: number of ids to sample.
        temperature: divides the logits; 0: always the most likely id.
        top_k: sample from the `top_k` most likely ids; None: from all ids.
        seed: seed of the sampling.
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
            # Subtract the maximum first, so that a tiny temperature cannot overflow.
            probability_V = ((logits_V - logits_V.max()) / temperature).softmax(-1)
            chosen = int(torch.multinomial(probability_V, 1, generator=generator))
        ids.append(chosen)
        yield chosen
