"""Configurations of transformers, and models without weights made from them; needs the extra [hf]."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from expertp.adapters.families import FAMILIES, REFUSED
from expertp.errors import InputError, how_to_install, one_line, shown

CONFIG_FILE = "config.json"
LARGEST_CONFIG = 2**24
# Keys that say how weights are stored, not what the model is.
NOT_ARCHITECTURE = ("quantization_config", "auto_map")


def read_config(path: Path) -> Any:
    """Read a config.json, or the one in a directory, as a configuration of transformers."""
    file = path / CONFIG_FILE if path.is_dir() else path
    if not file.exists():
        raise InputError(f"{file}: no such file; give a {CONFIG_FILE} or a directory with one")
    if file.stat().st_size > LARGEST_CONFIG:
        raise InputError(f"{file}: larger than {LARGEST_CONFIG >> 20} MiB; give a {CONFIG_FILE}, not a file of weights")
    try:
        keys = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON ({error}); give a {CONFIG_FILE} of a model") from None
    if not isinstance(keys, dict) or not isinstance(keys.get("model_type"), str):
        raise InputError(f"{file}: model_type is missing; give a {CONFIG_FILE} of a model")
    return make_config(_language_model(keys), str(file))


def make_config(keys: dict[str, Any], where: str) -> Any:
    """Return the configuration of transformers for plain values; `where` names their place in errors."""
    try:
        from transformers import AutoConfig
    except ImportError:
        raise InputError(f"{where}: transformers is not installed; {how_to_install('hf')}") from None
    model_type = keys["model_type"]
    if model_type in REFUSED:
        raise InputError(f"{where}: model_type '{model_type}' is not supported: {REFUSED[model_type]}")
    if model_type not in FAMILIES:
        raise InputError(
            f"{where}: model_type {shown(model_type)} is not a known family; build the model and give adapt roles"
        )
    try:
        return AutoConfig.for_model(**{key: value for key, value in keys.items() if key not in NOT_ARCHITECTURE})
    except Exception as error:  # transformers validates with errors of several types
        raise InputError(f"{where}: transformers rejects it: {one_line(str(error))}") from None


def on_meta(config: Any) -> nn.Module:
    """Return the causal language model of a configuration, without weights."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: nn.Module = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # sizes that do not fit each other fail in many ways
        raise InputError(f"transformers cannot build the model of this config: {one_line(str(error))}") from None
    return model


def _language_model(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the language model's part of the configuration of a multimodal model."""
    inner = keys.get("text_config")
    if keys["model_type"] not in FAMILIES and isinstance(inner, dict) and inner.get("model_type") in FAMILIES:
        return inner
    return keys
