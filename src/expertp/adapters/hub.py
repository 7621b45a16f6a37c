"""Configurations of transformers, and models without weights made from them; needs the extra [hf]."""

import difflib
import importlib
import inspect
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from expertp.adapters.describe import describe, family_of
from expertp.adapters.description import Description
from expertp.adapters.families import FAMILIES
from expertp.adapters.keys import CONFIG_FILE, Keys, check_family, read_keys, refuse, size_of
from expertp.errors import LONGEST_VALUE, InputError, how_to_install, one_line, shortened, shown

# Keys that say how weights are stored or computed, not what the model is. Some make transformers fetch code.
NOT_ARCHITECTURE = re.compile(r"quantization_config|auto_map|_.*|.*_implementation|use_kernels")
# Keys of earlier versions of transformers, which it still reads.
EARLIER_KEYS = frozenset({"rope_theta", "rope_scaling", "torch_dtype"})
# Tokens of another vocabulary than that of the data; a padding token would have no gradient.
SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
# transformers builds a model layer by layer, also without weights: 1,000 layers take some seconds.
MOST_LAYERS = 1000


def read_config(path: Path) -> Any:
    """Read a config.json, or the one in a directory, as a configuration of transformers."""
    return make_config(read_keys(path), str(path / CONFIG_FILE if path.is_dir() else path))


def make_config(keys: Keys, where: str) -> Any:
    """Return the configuration of transformers for plain values; `where` names their place in errors.

    It may be of a family without rules that transformers knows: its roles can be filled in.
    """
    try:
        from transformers import CONFIG_MAPPING, AutoConfig
    except ImportError:
        raise InputError(f"{where}: transformers is not installed; {how_to_install('hf')}") from None
    try:
        refuse(keys["model_type"])
        if keys["model_type"] not in CONFIG_MAPPING:
            check_family(keys["model_type"])
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    try:
        return AutoConfig.for_model(**{key: value for key, value in keys.items() if _is_architecture(key)})
    except Exception as error:  # transformers validates with errors of several types
        raise InputError(f"{where}: transformers rejects it: {one_line(str(error))}") from None


def known_keys(keys: Keys, where: str) -> frozenset[str]:
    """Return the keys of a configuration that its family uses; transformers keeps others without a warning.

    Those are the attributes of its configuration, and names that the code of the family reads beside them.
    """
    default = make_config({"model_type": keys["model_type"]}, where)
    words = EARLIER_KEYS | _words_of(type(default).__module__)
    return frozenset(key for key in keys if (hasattr(default, key) or key in words) and _is_architecture(key))


@lru_cache(maxsize=64)
def _words_of(configuration: str) -> frozenset[str]:
    """Return the words in the code of a family, given the module of its configuration."""
    places = (configuration, configuration.replace(".configuration_", ".modeling_"))
    code = "".join(inspect.getsource(importlib.import_module(place)) for place in places)
    return frozenset(re.findall(r"\w+", code))


def _is_architecture(key: str) -> bool:
    return NOT_ARCHITECTURE.fullmatch(key) is None


def training_config(keys: Keys) -> Any:
    """Return a configuration for training on any data: without dropout, special tokens and cache.

    An unknown key is an error. So is a key that makes training draw random numbers: runs could not be resumed.
    """
    for key in keys.keys() - known_keys(keys, "hf"):
        near = difflib.get_close_matches(key, make_config({"model_type": keys["model_type"]}, "hf").to_dict(), n=1)
        fix = f"did you mean '{near[0]}'?" if near else "remove it"
        raise InputError(
            f"hf.{shortened(key, LONGEST_VALUE)}: model_type '{keys['model_type']}' has no such key; {fix}"
        )
    if why := FAMILIES[keys["model_type"]].no_run:
        raise InputError(f"hf: model_type '{keys['model_type']}': {why}; use adapt in a loop of your own")
    config = make_config({**keys, **dict.fromkeys(SPECIAL_TOKENS), "use_cache": False}, "hf")
    for key, value in config.to_dict().items():
        if key.endswith(("dropout", "jitter_noise")) and value:
            raise InputError(f"hf.{key}={value} draws random numbers, so that a run could not be resumed; set it to 0")
    return config


@lru_cache(maxsize=256)
def describe_keys(text: str) -> Description:
    """Return the description of the model of a configuration, given as JSON."""
    keys = json.loads(text)
    model = on_meta(training_config(keys))
    found = describe(model, family_of(model))
    axes = found.sizes.axes
    seen = {"n_embd": axes["N"], "n_layer": found.sizes.n_layer, "n_exp": axes["E"], "n_act": found.sizes.n_act}
    for size, value in {**seen, "n_hid": axes["H"], "vocab_size": axes["V"]}.items():
        if value != size_of(keys, size):
            raise InputError(
                f"hf: {size} is {value} by the tensors of the model but {size_of(keys, size)} by its configuration; "
                "give the sizes of routed experts, and of a model in which all layers are alike"
            )
    return found


def with_weights(config: Any, seed: int, **options: Any) -> nn.Module:
    """Return the causal language model of a configuration with its family's own init, which the seed determines."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = AutoModelForCausalLM.from_config(config, **options)
    return model


def on_meta(config: Any) -> nn.Module:
    """Return the causal language model of a configuration, without weights."""
    from transformers import AutoModelForCausalLM

    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise InputError(f"num_hidden_layers={shown(layers)}: more than {MOST_LAYERS:,} layers; give a smaller model")
    try:
        with torch.device("meta"):
            model: nn.Module = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # sizes that do not fit each other fail in many ways
        raise InputError(f"transformers cannot build the model of this config: {one_line(str(error))}") from None
    return model


def fill_buffers_(model: nn.Module) -> None:
    """Compute the buffers that checkpoints do not have, such as rotary frequencies, by the code of the family."""
    fill = getattr(model, "_init_weights", None)
    if fill is None:  # a module of a user
        return
    with torch.random.fork_rng(devices=[]):
        for module in model.modules():
            if module._non_persistent_buffers_set:
                fill(module)
