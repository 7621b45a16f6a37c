"""A plan for other training programs: regular expressions for names of parameters, with their settings.

torchtitan takes all settings of AdamW per pattern, NeMo Automodel multipliers on lr and weight decay. Neither takes
init per parameter nor clipping in planned units; the text says so.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from expertp.adapters.fit import Fit, TensorPlan
from expertp.adapters.programs import TITAN_FUSED, TITAN_SEPARATE, TITLES, Program, implements, names_in
from expertp.adapters.roles import pattern_of

# torchtitan matches the names of the model that it trains, in which activation checkpointing wraps blocks.
TITAN_WRAPPER = r"(?:_checkpoint_wrapped_module\.)?"


@dataclass(frozen=True)
class Match:
    """The settings of the parameters whose name matches a pattern."""

    pattern: str
    lr: float
    weight_decay: float
    adam_eps: float


def matches(fit: Fit, program: Program) -> tuple[Match, ...]:
    """Return a pattern for every name of a tensor in a program, with the planned settings."""
    return tuple(
        Match(_regex(names, program), tensor.lr, tensor.weight_decay, tensor.adam_eps)
        for names, tensor in _named(fit, program)
    )


def export(fit: Fit, program: Program) -> str:
    """Return the settings as text for a program, with comments on what the program cannot take."""
    return "\n".join(_torchtitan(fit) if program == "torchtitan" else _automodel(fit))


def _torchtitan(fit: Fit) -> Iterator[str]:
    """Yield the lines of a Python module for a configuration of torchtitan."""
    yield "# The optimizer of a torchtitan configuration, as of August 2026 (since its pull request 3269)."
    yield from _names_are(fit, "torchtitan")
    yield from _not_here(fit, "init", "training.max_norm=1e9")
    yield "# A pattern without parameters is an error in torchtitan, also in a stage of pipeline parallelism."
    if implements("torchtitan", fit.family) and not _can_fuse(fit):
        yield "# q, k and v have different settings: build the model with fuse_qkv=False."
    yield "from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig"
    yield ""
    yield "optimizer = OptimizersContainer.Config("
    yield "    param_groups=["
    for each in matches(fit, "torchtitan"):
        yield "        ParamGroupConfig("
        yield f'            pattern=r"{each.pattern}",'
        yield '            optimizer_name="AdamW",'
        yield f'            optimizer_kwargs={{"lr": {each.lr!r}, "weight_decay": {each.weight_decay!r},'
        yield f'                              "eps": {each.adam_eps!r}, "betas": {fit.hps.betas!r}}},'
        yield "        ),"
    yield "    ],"
    yield ")"


def _automodel(fit: Fit) -> Iterator[str]:
    """Yield the lines of YAML for the optimizer section of NeMo Automodel."""
    yield "# The optimizer section of NeMo Automodel, as of August 2026 (since its pull request 3046)."
    yield f"# Its lr: {_yaml(fit.hps.lr)}, weight_decay: {_yaml(fit.hps.weight_decay)}, betas: {list(fit.hps.betas)!r}."
    yield from _names_are(fit, "automodel")
    yield from _not_here(fit, "init, eps per parameter", "clip_grad_norm.max_norm: 1.0e+9")
    yield "# Use an eps far below all gradients. For a pattern without parameters, the log has only a warning."
    yield "param_group_overrides:"
    for each in matches(fit, "automodel"):
        lr, weight_decay = each.lr / fit.hps.lr, _ratio(each.weight_decay, fit.hps.weight_decay)
        if (lr, weight_decay) != (1.0, 1.0):
            yield f"  - pattern: {json.dumps(each.pattern)}"
            yield f"    lr_mult: {_yaml(lr)}"
            yield f"    wd_mult: {_yaml(weight_decay)}"


def _names_are(fit: Fit, program: Program) -> Iterator[str]:
    """Say whose names the patterns match."""
    title = TITLES[program]
    if implements(program, fit.family):
        also = "" if program == "torchtitan" else " and of that of transformers"
        yield f"# Names are those of {title}'s own {fit.family}{also}."
    elif program == "automodel":
        yield f"# Names are those of transformers, whose {fit.family} it trains: it had none of its own."
    else:
        yield f"# WARNING: names are those of transformers. torchtitan had no {fit.family} of its own: change every"
        yield "# pattern to the names of the model that you train there."


def _not_here(fit: Fit, what: str, clipping: str) -> Iterator[str]:
    """Say what a program cannot take, and what to do about it."""
    place = "folded into the weights" if fit.apply == "fold" else "in the configuration"
    bias = "" if fit.bias_lr is None else "; selection biases have the update of the program"
    yield f"# Not taken by this program: {what}, clipping in planned units{bias}. Without them the plan is"
    yield f"# incomplete: turn clipping off ({clipping}), initialize the model of transformers with"
    yield f"# `adapt(...).init_(model)` and start from its checkpoint. Forward multipliers are {place}."


def _named(fit: Fit, program: Program) -> Iterator[tuple[tuple[str, ...], TensorPlan]]:
    """Yield the names of parameters in a program, `#` for numbers, with the settings that they share."""
    found: dict[tuple[str, ...], TensorPlan] = {}
    for tensor in fit.tensors:
        found.setdefault(names_in(program, fit.family, pattern_of(tensor.name)), tensor)
    for names, tensor in found.items():
        parts = _separate(names) if program == "torchtitan" and _can_fuse(fit) else ()
        if not parts:
            yield names, tensor
        elif names == parts[:1]:  # the first of the three stands for all
            yield (*parts, names[0].replace(f".{TITAN_SEPARATE[0]}.", f".{TITAN_FUSED}.")), tensor


def _separate(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of query, key and value projections, given one of them; else nothing."""
    [name, *_] = names
    for each in TITAN_SEPARATE:
        if f".qkv_linear.{each}." in name:
            return tuple(name.replace(f".{each}.", f".{other}.") for other in TITAN_SEPARATE)
    return ()


def _can_fuse(fit: Fit) -> bool:
    """Return whether query, key and value projections have the same settings, so that one tensor may hold them."""
    settings: dict[str, set[tuple[float, float, float]]] = {}
    for tensor in fit.tensors:
        for what in ("weight", "bias"):
            if re.search(rf"\.self_attn\.[qkv]_proj\.{what}$", tensor.name):
                settings.setdefault(what, set()).add((tensor.lr, tensor.weight_decay, tensor.adam_eps))
    return all(len(each) == 1 for each in settings.values())


def _regex(names: tuple[str, ...], program: Program) -> str:
    """Return a regular expression for whole names; what they have in common is written once.

    >>> _regex(("layers.#.wq.weight", "layers.#.wk.weight"), "automodel")
    '^layers\\\\.[0-9]+\\\\.(?:wq|wk)\\\\.weight$'
    """
    parts = [name.split(".") for name in names]
    start = _shared(parts)
    parts = [each[len(start) :] for each in parts]
    end = _shared([each[::-1] for each in parts])[::-1]
    rest = [_escaped(each[: len(each) - len(end)]) for each in parts]
    middle = rest[:1] if len(rest) == 1 else [f"(?:{'|'.join(rest)})"]
    regex = r"\.".join(filter(None, (_escaped(start), *middle, _escaped(end))))
    if program == "torchtitan":
        regex = regex.replace(r"layers\.[0-9]+\.", rf"layers\.[0-9]+\.{TITAN_WRAPPER}")
    return f"^{regex}$"


def _shared(parts: list[list[str]]) -> list[str]:
    """Return the first components that all names have; the last component of a name does not count."""
    shared: list[str] = []
    for components in zip(*(each[:-1] for each in parts), strict=False):
        if len(set(components)) > 1:
            break
        shared.append(components[0])
    return shared


def _escaped(parts: list[str]) -> str:
    return re.escape(".".join(parts)).replace(re.escape("#"), "[0-9]+")


def _ratio(ours: float, theirs: float) -> float:
    """Return a multiplier; without weight decay there is nothing to multiply."""
    return ours / theirs if theirs else 1.0


def _yaml(number: float) -> str:
    """Return a number that YAML reads as one, with all digits.

    >>> _yaml(1e-05), _yaml(0.25)
    ('1.0e-05', '0.25')
    """
    digits, exponent, power = repr(number).partition("e")
    return f"{digits}{'.0' if exponent and '.' not in digits else ''}{exponent}{power}"
