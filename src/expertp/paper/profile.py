"""At what scale the paper's figures are made: one file a profile, with the studies that figures are drawn from.

A profile's `common` sections hold for all its studies; a study gives what differs. Text comes from corpora, by name: a
folder of that name in the directory that the environment variable EXPERTP_CORPORA gives, or a Hugging Face dataset.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from expertp.config import build, read_yaml
from expertp.errors import InputError, did_you_mean
from expertp.spec import Spec
from expertp.study import StudySpec

PROFILES = ("cpu", "paper")
CORPORA_VARIABLE = "EXPERTP_CORPORA"
BUILT_IN = "builtin"


class CorpusSpec(Spec):
    """Text, and how it is cut into tokens."""

    source: str = Field(min_length=1, description="a folder in EXPERTP_CORPORA, or hf:NAME[:CONFIG]")
    tokenizer: Literal["gpt2", "bytes", "bpe"] = Field("gpt2", description="as in `expertp prepare`")
    vocab_size: int | None = Field(None, description="ids of a bpe tokenizer")


class ProfileSpec(Spec):
    """A profile file."""

    name: str
    assumed: tuple[str, ...] = Field((), description="settings that the paper does not print")
    corpora: dict[str, CorpusSpec]
    common: dict[str, Any] = Field(description="sections that all studies share")
    studies: dict[str, dict[str, Any]] = Field(description="by name: `corpus`, and the sections that differ")

    def corpus_of(self, study: str) -> str:
        """Return the name of a study's corpus."""
        return str(self.studies[study]["corpus"])

    def study(self, name: str, data: str | Path) -> StudySpec:
        """Return a study on prepared data."""
        own = {key: value for key, value in self.studies[name].items() if key != "corpus"}
        tree = merged(self.common, {"name": name, **own})
        tree["train"] = {**tree["train"], "data": str(data)}
        return build(StudySpec, tree, f"profile {self.name}, {name}:")


def load_profile(name: str) -> ProfileSpec:
    """Return one of the profiles that come with the package."""
    if name not in PROFILES:
        raise InputError(f"no profile '{name}'; {did_you_mean(name, PROFILES)}")
    text = files("expertp").joinpath("configs", "figures", f"{name}.yaml").read_text(encoding="utf-8")
    return build(ProfileSpec, read_yaml(text), f"profile {name}:")


def merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections with others laid over them, key by key.

    >>> merged({"train": {"steps": 9, "seed": 1}, "seeds": [0]}, {"train": {"steps": 3}})
    {'train': {'steps': 3, 'seed': 1}, 'seeds': [0]}
    """
    tree = dict(common)
    for key, value in own.items():
        before = tree.get(key)
        tree[key] = {**before, **value} if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return tree


@dataclass(frozen=True)
class Source:
    """Where a corpus really comes from.

    Args:
        corpus: the name that the profile has for it.
        text: what `prepare` takes.
        name: the directory of its tokens; another text has another name.
        note: what a user should know; empty where it is what the profile asks for.
    """

    corpus: str
    text: str
    name: str
    note: str = ""

    @property
    def described(self) -> str:
        """Which text it is, in a few words."""
        return f"{self.name} in place of {self.corpus}" if self.note else self.name


def find_source(name: str, corpus: CorpusSpec) -> Source:
    """Return a corpus's text; the built-in one stands in for a folder that is not there."""
    size = f"-{corpus.vocab_size}" if corpus.vocab_size else ""
    if corpus.source.startswith("hf:"):
        return Source(name, corpus.source, f"{name}{size}")
    root = os.environ.get(CORPORA_VARIABLE)
    folder = Path(root) / corpus.source if root else None
    if folder is not None and folder.is_dir():
        return Source(name, str(folder), f"{name}{size}")
    missing = f"{folder} is not there" if folder else f"{CORPORA_VARIABLE} is not set"
    return Source(name, BUILT_IN, f"{BUILT_IN}{size}", f"{name}: {missing}; the built-in corpus takes its place")
