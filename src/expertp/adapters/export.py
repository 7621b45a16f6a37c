"""A plan for other training programs: regular expressions for names, with multipliers on lr and weight decay.

These programs take neither eps nor init per parameter, nor clipping in planned units; the text says so.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from expertp.adapters.fit import Fit, TensorPlan
from expertp.adapters.roles import pattern_of

Program = Literal["torchtitan", "automodel"]


@dataclass(frozen=True)
class _Keys:
    """Names of a program's settings."""

    section: str
    lr: str
    weight_decay: str
    where: str


PROGRAMS: Mapping[Program, _Keys] = {
    "torchtitan": _Keys(
        "param_groups", "lr_multiplier", "weight_decay_multiplier", "torchtitan, optimizer config of pull request 2859"
    ),
    "automodel": _Keys(
        "param_group_overrides", "lr_mult", "wd_mult", "NeMo Automodel, optimizer section, pull request 3046"
    ),
}


@dataclass(frozen=True)
class Override:
    """Multipliers of the parameters whose name matches a pattern."""

    pattern: str
    lr: float
    weight_decay: float


def overrides(fit: Fit) -> tuple[Override, ...]:
    """Return the multipliers on the base's lr and weight decay per name pattern, where they are not 1."""
    found = (
        Override(pattern, tensor.lr / fit.hps.lr, _ratio(tensor.weight_decay, fit.hps.weight_decay))
        for pattern, tensor in _patterns(fit)
    )
    return tuple(each for each in found if (each.lr, each.weight_decay) != (1.0, 1.0))


def export(fit: Fit, program: Program) -> str:
    """Return the settings as YAML for a program, with comments on what the program cannot take."""
    keys = PROGRAMS[program]
    lines = [
        f"# {keys.where}",
        f"# lr: {fit.hps.lr!r}, weight_decay: {fit.hps.weight_decay!r}; names are those of transformers",
        "# Not taken by this program: init (init_ of the adapted model), Adam eps per parameter, clipping in planned",
        "# units. Without them the plan is incomplete: use a small eps, turn clipping off, and initialize the weights",
        f"# with `adapt(...).init_(model)`. Forward multipliers are {_places(fit)}.",
        f"{keys.section}:",
    ]
    for each in overrides(fit):
        lines.append(f"  - pattern: {json.dumps(each.pattern)}")
        lines.append(f"    {keys.lr}: {each.lr!r}")
        lines.append(f"    {keys.weight_decay}: {each.weight_decay!r}")
    return "\n".join(lines)


def _patterns(fit: Fit) -> Iterator[tuple[str, TensorPlan]]:
    """Yield a regular expression per name pattern, with the settings that its tensors share."""
    seen: set[str] = set()
    for tensor in fit.tensors:
        pattern = pattern_of(tensor.name)
        if pattern not in seen:
            seen.add(pattern)
            yield f"^{re.escape(pattern).replace(re.escape('#'), '[0-9]+')}$", tensor


def _ratio(ours: float, theirs: float) -> float:
    """Return a multiplier; without weight decay there is nothing to multiply."""
    return ours / theirs if theirs else 1.0


def _places(fit: Fit) -> str:
    return "folded into the weights" if fit.apply == "fold" else "in the configuration"
