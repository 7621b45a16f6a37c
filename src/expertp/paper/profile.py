"""A profile: the scale at which the findings are made, and the sections that its studies share.

The modules of the findings hold what differs from these sections. A corpus is a folder in the directory that the
environment variable EXPERTP_CORPORA names, or a Hugging Face dataset.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from expertp.config import build
from expertp.paper.catalogue import STUDIES
from expertp.paper.listing import check_profile
from expertp.search.design import first_choice
from expertp.spec import Spec
from expertp.study.spec import StudySpec
from expertp.util.plain_yaml import read_yaml

CORPORA_VARIABLE = "EXPERTP_CORPORA"
BUILT_IN = "builtin"
# Grids in octaves from the study's own learning rate or init std.
OCTAVES = {"lr_octaves": ("log2_lr", "lr"), "init_octaves": ("log2_init_std", "init_std")}
# Settings of a study of the paper that are no sections of a study file.
OUTSIDE = ("corpus", *OCTAVES)


class CorpusSpec(Spec):
    """Text, and its tokenizer."""

    source: str = Field(min_length=1, description="a folder in EXPERTP_CORPORA, or hf:NAME[:CONFIG]")
    tokenizer: Literal["gpt2", "bytes", "bpe"] = Field("gpt2", description="as in `expertp prepare`")
    vocab_size: int | None = Field(None, description="ids of a bpe tokenizer")


class ProfileSpec(Spec):
    """A profile file."""

    name: str
    assumed: tuple[str, ...] = Field((), description="settings that the paper does not print")
    corpora: dict[str, CorpusSpec] = Field(min_length=1, description="by name; the first is that of most studies")
    minutes: float | None = Field(None, gt=0, description="time for each adaptive study; null: all cells are trained")
    common: dict[str, Any] = Field(description="sections that all studies share")

    def corpus_of(self, study: str) -> str:
        """Return the name of a study's corpus."""
        return str(self._settings(study).get("corpus", next(iter(self.corpora))))

    def study(self, name: str, data: str | Path) -> StudySpec:
        """Return a study by its name, on prepared data; an adaptive study has the cells that it begins with."""
        settings = self._settings(name)
        tree = merged(self.common, {"name": name, **{key: settings[key] for key in settings if key not in OUTSIDE}})
        tree["train"] = {**tree["train"], "data": str(data)}
        study = build(StudySpec, tree, f"profile {self.name}, {name}:")
        for setting, (grid, hp) in OCTAVES.items():
            if setting in settings:
                centre = math.log2(getattr(study.hps, hp))
                values = [centre + octaves for octaves in settings[setting]]
                study = study.replace(grids=study.grids.replace(**{grid: values}))
        return first_choice(study) if self.is_adaptive(name) else study

    def is_adaptive(self, study: str) -> bool:
        """Return whether only the cells of a study that decide its verdicts are trained."""
        return STUDIES[study].is_adaptive and self.minutes is not None

    def _settings(self, name: str) -> dict[str, Any]:
        study = STUDIES[name]
        return merged(study.both, study.cpu if self.name == "cpu" else study.paper)


def load_profile(name: str) -> ProfileSpec:
    """Return one of the profiles that come with the package."""
    check_profile(name)
    text = files("expertp").joinpath("configs", "paper", f"{name}.yaml").read_text(encoding="utf-8")
    return build(ProfileSpec, read_yaml(text), f"profile {name}:")


def merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections updated with others, key by key.

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
    """The text that is used for a corpus.

    Args:
        corpus: name of the corpus in the profile.
        text: argument of `prepare`.
        name: name of the directory of its tokens; another text has another name.
        note: what a user should know; empty where the text is that of the profile.
    """

    corpus: str
    text: str
    name: str
    note: str = ""

    @property
    def described(self) -> str:
        """The text, in a few words."""
        return f"{self.name} in place of {self.corpus}" if self.note else self.name


def find_source(name: str, corpus: CorpusSpec) -> Source:
    """Return the text of a corpus; the built-in corpus replaces a folder that does not exist."""
    size = f"-{corpus.vocab_size}" if corpus.vocab_size else ""
    if corpus.source == BUILT_IN or corpus.source.startswith("hf:"):
        return Source(name, corpus.source, f"{name}{size}")
    root = os.environ.get(CORPORA_VARIABLE)
    folder = Path(root) / corpus.source if root else None
    if folder is not None and folder.is_dir():
        return Source(name, str(folder), f"{name}{size}")
    missing = f"{folder} does not exist" if folder else f"{CORPORA_VARIABLE} is not set"
    return Source(name, BUILT_IN, f"{BUILT_IN}{size}", f"{name}: {missing}; the built-in corpus is used instead")
