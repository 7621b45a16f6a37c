"""Compare generation with a key-value cache, and with a window that is computed afresh for every token."""

from dataclasses import dataclass
from functools import partial

import torch

from expertp.bench.timing import interleaved
from expertp.data.tokenizers import load_bytes
from expertp.spec import BaseHPs, Dtype, ModelSpec, RunSpec, TrainSpec
from expertp.training.build import build_model
from expertp.training.generate import LoadedModel, Sampling, generate, next_logits

GREEDY = Sampling(temperature=0)


@dataclass(frozen=True)
class Text:
    """A model, and how many tokens it appends to a prompt that leaves room for just these."""

    name: str
    model: ModelSpec
    tokens: int


def _medium(name: str, n_embd: int, n_layer: int, tokens: int) -> Text:
    model = ModelSpec(n_embd=n_embd, n_layer=n_layer, n_exp=16, n_act=4, vocab_size=512, context=1024)
    return Text(name, model, tokens)


# The sizes of the finding medium, at the scale of the profile cpu and at that of the paper.
TEXTS = (_medium("medium, profile cpu", 256, 4, tokens=64), _medium("medium, profile paper", 1024, 24, tokens=16))


@dataclass(frozen=True)
class GenerationCase:
    """One row of the benchmark; the times are those of the whole text, with the prompt."""

    name: str
    context: int
    tokens: int
    dtype: str
    threads: int
    ms: dict[str, float]
    vs_afresh: float


def compare_generation(text: Text, dtype: Dtype = "float32", rounds: int = 3) -> GenerationCase:
    """Time the last tokens of a full context, with the cache and without."""
    loaded = untrained(text.model, dtype)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(0, 256, (text.model.context - text.tokens,), generator=generator).tolist()

    ms = interleaved(
        {
            "cached": lambda: list(generate(loaded, prompt, text.tokens, GREEDY)),
            "afresh": partial(generate_afresh, loaded, prompt, text.tokens),
        },
        rounds,
        warm_up=0,
    )
    return GenerationCase(
        name=text.name,
        context=text.model.context,
        tokens=text.tokens,
        dtype=dtype,
        threads=torch.get_num_threads(),
        ms={name: round(value, 3) for name, value in ms.items()},
        vs_afresh=round(ms["cached"] / ms["afresh"], 3),
    )


def untrained(model: ModelSpec, dtype: Dtype) -> LoadedModel:
    """Return a model with random weights, ready to generate bytes."""
    train = TrainSpec(data="none", steps=1, batch_tokens=model.context, dtype=dtype)
    built = build_model(RunSpec(model=model, base=model, hps=BaseHPs(lr=0.01), train=train), "cpu")
    built.init_(seed=0)
    built.prepare_generation(dtype)
    return LoadedModel(built, load_bytes(), dtype, model.context)


def generate_afresh(loaded: LoadedModel, prompt: list[int], count: int) -> list[int]:
    """Return the most likely next ids, with all activations computed for every one of them."""
    ids_1S = torch.tensor([prompt])
    for _ in range(count):
        logits_1V = next_logits(loaded, ids_1S)[:, : loaded.tokenizer.vocab_size]
        ids_1S = torch.cat([ids_1S, logits_1V.argmax(-1, keepdim=True)], dim=1)
    new: list[int] = ids_1S[0, len(prompt) :].tolist()
    return new
