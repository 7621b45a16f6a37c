"""A model of transformers in a run or study file: `{hf: {model_type: olmoe, ...}, context: 256}`.

It is one kind of `Model` beside the reference model. Reading and growing it needs neither torch nor transformers;
counting its parameters needs both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from expertp.adapters.keys import SIZE_KEYS, check_family, grown_keys, read_keys, size_of
from expertp.spec import Counts, Model

if TYPE_CHECKING:
    from expertp.adapters.description import Description


def _from_file(value: object) -> object:
    """Read the configuration of a file, without keys that transformers does not use."""
    if not isinstance(value, str):
        return value
    from expertp.adapters.hub import known_keys

    keys = read_keys(Path(value))
    known = known_keys(keys, value)
    return {key: each for key, each in keys.items() if key in known}


def _is_plain(keys: dict[str, Any]) -> dict[str, Any]:
    """Refuse values that a config.json could not have."""
    try:
        json.dumps(keys, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("has values that a config.json cannot have; give numbers, texts, lists and mappings") from None
    return keys


Configuration = Annotated[dict[str, Any], BeforeValidator(_from_file), AfterValidator(_is_plain)]


class HFModelSpec(Model):
    """A causal language model of transformers, by its configuration.

    >>> tiny = {"model_type": "olmoe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    ...         "intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 512}
    >>> base = HFModelSpec(hf=tiny, context=128)
    >>> base.n_embd, base.alpha_ffn, base.grown(n_embd=128).hf["num_attention_heads"]
    (64, 0.5, 8)
    """

    marker: ClassVar[str] = "hf"
    libraries: ClassVar[tuple[str, ...]] = ("transformers",)
    path_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {"hf": ()}

    hf: Configuration = Field(description="configuration of the model: keys and values, or the path of a config.json")
    context: int = Field(1024, gt=0, description="tokens per sequence")

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        check_family(self.hf.get("model_type"))
        for size in SIZE_KEYS:
            size_of(self.hf, size)
        if self.n_act > self.n_exp:
            raise ValueError(
                f"hf has {self.n_act} experts per token but only {self.n_exp} experts; give fewer or equal"
            )
        longest = self.hf.get("max_position_embeddings")
        if isinstance(longest, int) and longest < self.context:
            raise ValueError(f"context={self.context} is more than max_position_embeddings={longest}; make it shorter")
        return self

    def __hash__(self) -> int:
        return hash((json.dumps(self.hf, sort_keys=True), self.context))

    @property
    def model_type(self) -> str:
        """Name of the family."""
        return str(self.hf["model_type"])

    @property
    def n_embd(self) -> int:
        """Width of the residual stream."""
        return size_of(self.hf, "n_embd")

    @property
    def n_layer(self) -> int:
        """Depth."""
        return size_of(self.hf, "n_layer")

    @property
    def n_exp(self) -> int:
        """Experts per layer."""
        return size_of(self.hf, "n_exp")

    @property
    def n_act(self) -> int:
        """Experts per token."""
        return size_of(self.hf, "n_act")

    @property
    def n_hid(self) -> int:
        """Hidden units of one routed expert."""
        return size_of(self.hf, "n_hid")

    @property
    def alpha_ffn(self) -> float:
        """Hidden units of a routed expert divided by the width."""
        return self.n_hid / self.n_embd

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return size_of(self.hf, "vocab_size")

    @property
    def is_moe(self) -> bool:
        """All families have experts."""
        return True

    @property
    def variant(self) -> str:
        """Name of the family."""
        return self.model_type

    def grown(self, **sizes: Any) -> Self:
        """Return the model with other sizes: n_embd, n_layer, n_exp, n_act or alpha_ffn."""
        return self.replace(hf=grown_keys(self.hf, sizes))

    def described(self) -> Description:
        """Return the roles and shapes of all parameters; imports torch and transformers."""
        from expertp.adapters.hub import describe_keys

        return describe_keys(json.dumps(self.hf, sort_keys=True))

    def counts(self) -> Counts:
        """Count parameters; selection biases are not counted. The paper has no formula for other families."""
        return self.described().counts()

    def flops_per_token(self) -> int:
        """Return training FLOPs per token, forward and backward, as for the reference model."""
        return self.described().flops_per_token(self.context)
