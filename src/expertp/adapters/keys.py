"""Keys of a configuration of transformers that hold the sizes of a model, and how they change along an axis.

Sizes come from the keys here, so that a study can be laid out without transformers. When a run is planned, they are
compared with the shapes of the tensors.
"""

import json
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from expertp.adapters.families import FAMILIES, REFUSED
from expertp.errors import InputError, did_you_mean, shown
from expertp.util.records import read_bounded

CONFIG_FILE = "config.json"
LARGEST_CONFIG = 2**24
# Key of a multimodal model that holds its language model.
PART = "text_config"

Keys = Mapping[str, Any]

# Size of a model -> the keys that may hold it; the first one that a configuration has does.
SIZE_KEYS = {
    "n_embd": ("hidden_size",),
    "n_layer": ("num_hidden_layers",),
    "n_exp": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "n_act": ("num_experts_per_tok", "moe_k", "moe_topk"),
    "n_hid": ("moe_intermediate_size", "intermediate_size"),
    "vocab_size": ("vocab_size",),
}
# Keys that grow with the width: the number of heads, whose size is fixed, and hidden units, at fixed alpha_ffn.
HEAD_KEYS = ("num_attention_heads", "num_key_value_heads")
HIDDEN_KEYS = (
    *("intermediate_size", "moe_intermediate_size", "intermediate_size_mlp", "shared_intermediate_size"),
    *("shared_expert_intermediate_size", "dense_intermediate_size", "prefix_dense_intermediate_size"),
)


def refuse(model_type: str) -> None:
    """Raise an error for a family for which there can be no rules yet."""
    if model_type in REFUSED:
        raise InputError(f"model_type '{model_type}' is not supported: {REFUSED[model_type]}")


def check_family(model_type: object) -> str:
    """Return the `model_type` of a family that has rules; any other is an error."""
    if not isinstance(model_type, str):
        raise InputError(f"model_type must be the name of a family, such as olmoe, not {shown(model_type)}")
    refuse(model_type)
    if model_type not in FAMILIES:
        raise InputError(f"model_type {shown(model_type)} is not a known family; {did_you_mean(model_type, FAMILIES)}")
    return model_type


def read_keys(path: Path) -> dict[str, Any]:
    """Read a config.json, or the one in a directory; of a multimodal model, the part of the language model."""
    keys = _whole_keys(path)
    return keys[PART] if _has_part(keys) else keys


def part_of(path: Path) -> str | None:
    """Return the key that holds the language model in the configuration of a multimodal one; None in any other."""
    return PART if _has_part(_whole_keys(path)) else None


def _has_part(keys: Keys) -> bool:
    inner = keys.get(PART)
    return keys["model_type"] not in FAMILIES and isinstance(inner, dict) and inner.get("model_type") in FAMILIES


def _whole_keys(path: Path) -> dict[str, Any]:
    file = path / CONFIG_FILE if path.is_dir() else path
    if not file.exists():
        raise InputError(f"{file}: no such file; give a {CONFIG_FILE} or a directory with one")
    content = read_bounded(file, f"give a {CONFIG_FILE}, not a file of weights", LARGEST_CONFIG)
    try:
        keys = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON ({error}); give a {CONFIG_FILE} of a model") from None
    if not isinstance(keys, dict) or not isinstance(keys.get("model_type"), str):
        raise InputError(f"{file}: model_type is missing; give a {CONFIG_FILE} of a model")
    return keys


def size_of(keys: Keys, size: str) -> int:
    """Return a size of a model.

    >>> size_of({"hidden_size": 64}, "n_embd")
    64
    """
    value = keys[_key_of(keys, size)]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{_key_of(keys, size)} must be a whole number of at least 1, not {shown(value)}")
    return value


def grown_keys(keys: Keys, sizes: Mapping[str, float]) -> dict[str, Any]:
    """Return the keys of a model with other sizes: n_embd, n_layer, n_exp, n_act or alpha_ffn.

    With the width, the number of heads and all hidden units grow in proportion; other keys, such as the ranks of latent
    attention, stay.

    >>> base = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 32}
    >>> grown_keys(base, {"n_embd": 128})
    {'hidden_size': 128, 'num_attention_heads': 8, 'intermediate_size': 64}
    """
    grown = dict(keys)
    if "n_embd" in sizes:
        width = sizes["n_embd"]
        factor = Fraction(width).limit_denominator() / size_of(keys, "n_embd")
        grown[_key_of(keys, "n_embd")] = int(width)
        for key in (*HEAD_KEYS, *HIDDEN_KEYS):
            if isinstance(keys.get(key), int):
                grown[key] = _whole(keys[key] * factor, f"n_embd={width:g} needs {key}", "choose another width")
    for size in ("n_layer", "n_exp", "n_act"):
        if size in sizes:
            grown[_key_of(keys, size)] = int(sizes[size])
    if "alpha_ffn" in sizes:
        hidden = Fraction(sizes["alpha_ffn"]).limit_denominator(2**20) * size_of(grown, "n_embd")
        grown[_key_of(keys, "n_hid")] = _whole(
            hidden, f"alpha_ffn={sizes['alpha_ffn']:g} needs {_key_of(keys, 'n_hid')}", "choose another alpha_ffn"
        )
    return grown


def _key_of(keys: Keys, size: str) -> str:
    """Return the key that holds a size."""
    found = next((key for key in SIZE_KEYS[size] if key in keys), None)
    if found is None:
        raise InputError(f"{_or(SIZE_KEYS[size])} is missing; give all sizes of the model, not those of a default")
    return found


def _whole(value: Fraction, what: str, fix: str) -> int:
    if value.denominator != 1 or value < 1:
        raise InputError(f"{what}={float(value):g}, which is not a whole number of at least 1; {fix}")
    return int(value)


def _or(names: Iterable[str]) -> str:
    return " or ".join(names)
