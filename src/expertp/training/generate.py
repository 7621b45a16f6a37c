"""Sampling from a trained run, with the same logits and compute dtype as in training."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from expertp.data import TextStream, Tokenizer, TokenizerIdentity, load_tokenizer
from expertp.data.tokenizers import load_gpt2
from expertp.errors import DamagedError, InputError
from expertp.model.cache import KeyValueCache
from expertp.model.seeding import generator_of
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
    other = DamagedError(f"{out}/run.json: damaged (its model is not that of the weights); {directory.remedy}")
    if directory.run.model.counts().total > sum(value.numel() for value in weights.values()):
        raise other  # before a model of any size is built
    model = build_model(directory.run, "cpu")
    try:
        model.restore(weights)
    except RuntimeError:
        raise other from None
    dtype = resolve_dtype(directory.run, "cpu")
    model.prepare_generation(dtype)
    return LoadedModel(model, tokenizer, dtype, directory.run.model.context)


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


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from its logits.

    Args:
        temperature: divides the logits; 0: always the most likely id.
        top_k: choose from the `top_k` most likely ids, of equally likely ones the lower; None: from all ids.
        top_p: of these, choose from the most likely ids that together have at least this probability; 1: from all.
        seed: seed of the sampling. A sample depends on it and on the number of the sample only.
    """

    temperature: float = 0.8
    top_k: int | None = 50
    top_p: float = 1.0
    seed: int = 0

    def probabilities(self, logits_V: Float[Tensor, "V"]) -> Float[Tensor, "V"]:
        """Return the probabilities of the ids, in float64.

        >>> logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
        >>> [round(p, 3) for p in Sampling(temperature=1, top_p=0.7).probabilities(logits).tolist()]
        [0.625, 0.375, 0.0, 0.0]
        """
        logits_V = logits_V.double()
        if self.temperature == 0:
            return F.one_hot(logits_V.argmax(), len(logits_V)).double()
        if self.top_k is not None and self.top_k < len(logits_V):
            least = logits_V.topk(self.top_k).values[-1]
            above_V, tied_V = logits_V > least, logits_V == least
            kept_V = above_V | (tied_V & (tied_V.cumsum(-1) <= self.top_k - above_V.sum()))
            logits_V = logits_V.masked_fill(~kept_V, -torch.inf)
        # Subtract the maximum first, so that a tiny temperature cannot overflow.
        probability_V = ((logits_V - logits_V.max()) / self.temperature).softmax(-1)
        if self.top_p < 1:
            sorted_V, order_V = probability_V.sort(descending=True, stable=True)
            before_V = sorted_V.cumsum(-1) - sorted_V
            probability_V[order_V[before_V >= self.top_p]] = 0
        return probability_V / probability_V.sum()


@torch.no_grad()
def next_logits(
    loaded: LoadedModel, ids_BS: Int[Tensor, "B S"], cache: KeyValueCache | None = None
) -> Float[Tensor, "B V"]:
    """Return the logits of the next token, given the last `context` ids of each sequence.

    With a cache, only the ids that it does not hold are computed. Positions are learned: beyond the context every id
    has another position at each step, so the cache is of no use and all ids are computed afresh.
    """
    if ids_BS.shape[1] > loaded.context:
        ids_BS, cache = ids_BS[:, -loaded.context :], None
    new_BS = ids_BS if cache is None else ids_BS[:, cache.length :]
    with autocast(loaded.dtype, "cpu"):
        return loaded.model.next_logits(new_BS, cache)


def generate(
    loaded: LoadedModel, prompt: Sequence[int], count: int, sampling: Sampling | None = None, samples: int = 1
) -> Iterator[tuple[int, ...]]:
    """Yield `count` times the next token id of every sample; padding rows of the vocabulary are never sampled.

    Args:
        loaded: a trained model.
        prompt: at least one token id.
        count: number of ids to sample.
        sampling: how ids are chosen (default: `Sampling()`).
        samples: number of continuations, which are computed together.
    """
    sampling = sampling or Sampling()
    generators = [generator_of(sampling.seed, f"sample {number}") for number in range(samples)]
    cache = loaded.model.empty_cache()
    ids_BS = torch.tensor([list(prompt)])
    for step in range(count):
        logits_BV = next_logits(loaded, ids_BS, cache)[:, : loaded.tokenizer.vocab_size]
        if step == 0:  # the samples part ways
            logits_BV, ids_BS = logits_BV.expand(samples, -1), ids_BS.expand(samples, -1)
            cache = None if cache is None else cache.repeated(samples)
        chosen = tuple(
            int(torch.multinomial(sampling.probabilities(logits_V), 1, generator=generator))
            for logits_V, generator in zip(logits_BV, generators, strict=True)
        )
        ids_BS = torch.cat([ids_BS, torch.tensor(chosen)[:, None]], dim=1)
        yield chosen


def generate_text(
    loaded: LoadedModel, prompt: str, count: int, sampling: Sampling | None = None, samples: int = 1
) -> Iterator[tuple[str, ...]]:
    """Yield, token by token, the text that each sample adds to the prompt, until all have ended or `count` tokens.

    A sample ends with the end-of-text token. An empty prompt starts a new document.
    """
    tokenizer = loaded.tokenizer
    streams = [TextStream(tokenizer) for _ in range(samples)]
    is_open = [True] * samples
    for ids in generate(loaded, encode_prompt(tokenizer, prompt), count, sampling, samples):
        is_open = [before and token != tokenizer.eot for before, token in zip(is_open, ids, strict=True)]
        yield tuple(
            stream.push(token) if still else "" for stream, token, still in zip(streams, ids, is_open, strict=True)
        )
        if not any(is_open):
            break
    yield tuple(stream.finish() for stream in streams)


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the ids of a prompt; an empty prompt is the end of the document before."""
    return tokenizer.encode(prompt) or [tokenizer.eot]
