"""The planner: one self-contained page that plans a target while its reader moves the sizes.

The page evaluates what `formulas()` exports, so it has no copy of the rules. The page of an adapted model shows a table
that Python has computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic.functional_validators import BeforeValidator

from expertp.plan import constant_names
from expertp.report.formulas import formulas
from expertp.report.pages import fill
from expertp.rules import CONSTANT_FAMILIES, PAPER_CONSTANTS, REFERENCE_RULES
from expertp.spec import BaseHPs, ModelSpec, RuleSetName, TrainSpec

# The mark of a page, so that no other file is overwritten.
MARK = b'<meta name="expertp-planner"'
POWERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True)
class Size:
    """A size that base and target have: its label, its multiplier in the rules, and the stops of its slider."""

    label: str
    multiplier: str
    stops: tuple[str, ...]


def _stops(*numbers: int) -> tuple[str, ...]:
    return tuple(map(str, numbers))


SIZES = {
    "n_embd": Size("width", "m_N", _stops(*(64 * each for each in (*POWERS, 192, 256)))),
    "n_layer": Size("depth", "m_L", _stops(*POWERS)),
    "n_exp": Size("experts", "m_E", _stops(*POWERS, 192, 256, 384, 512)),
    "n_act": Size("active experts", "", _stops(*POWERS)),
    "alpha_ffn": Size("expert size", "m_a", ("1/16", "1/8", "1/4", "1/2", "3/4", "1", "3/2", "2", "3", "4", "8")),
    "vocab_size": Size(
        "vocabulary", "", _stops(256, 512, 1024, 4096, 8192, 16384, 32000, 50304, 65536, 100352, 131072)
    ),
    "context": Size("context", "", _stops(*(2**power for power in range(6, 18)))),
}
SHARED = ("ffn", "d_head", "gate", "tied_embeddings", "linear_bias")
TUNED = ("lr", "init_std", "weight_decay", "adam_eps", "bias_lr", "gamma")
CONVENTIONS = ("rules", "eps_rule", "residual", "decay", "tuned_steps")
TRAINING = ("steps", "batch_tokens")
LABELS = {
    "ffn": "feed-forward layer",
    "d_head": "head size",
    "tied_embeddings": "tied embeddings",
    "linear_bias": "biases",
    "lr": "learning rate η",
    "init_std": "init std σ",
    "weight_decay": "weight decay λ",
    "adam_eps": "Adam ε",
    "bias_lr": "expert bias lr",
    "gamma": "router init γ",
    "rules": "rule set",
    "eps_rule": "Adam eps",
    "residual": "block outputs",
    "decay": "weight decay",
    "tuned_steps": "steps of the base",
    "steps": "steps",
    "batch_tokens": "tokens per step",
}
RULE_SET_TITLES: dict[RuleSetName, str] = {
    "expertp": "expertp: the paper's rules",
    "sp": "sp: standard parametrization",
    "mup": "mup: width only",
    "completep": "completep: width and depth",
    "fan_in_down": "fan_in_down: down projections by fan-in",
    "no_depth": "no_depth: control without 1/m_L",
    "no_mean": "no_mean: control without 1/n_act",
    "no_alpha": "no_alpha: control without m_a",
    "fan_in_stack": "fan_in_stack: control with a fan-in over all experts",
}


@dataclass(frozen=True)
class Field:
    """An input of the page: the key of its value, its label, and what it may contain."""

    key: str
    label: str
    description: str
    kind: str
    choices: tuple[tuple[str, str], ...] = ()
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A size of base and target, side by side."""

    base: Field
    target: Field
    label: str
    multiplier: str


@dataclass(frozen=True)
class PlannerPage:
    """The contents of the page."""

    title: str
    rows: tuple[Row, ...]
    shared: tuple[Field, ...]
    tuned: tuple[Field, ...]
    conventions: tuple[Field, ...]
    training: tuple[Field, ...]
    data: dict[str, Any]
    written_by: str


def planner_page(base: ModelSpec, target: ModelSpec, hps: BaseHPs, steps: int, batch_tokens: int) -> str:
    """Return the HTML of a planner that starts with the given base, target and hyperparameters."""
    fields = {
        **{f"{side}.{name}": ModelSpec.model_fields[name] for side in ("base", "target") for name in SIZES},
        **{f"model.{name}": ModelSpec.model_fields[name] for name in SHARED},
        **{f"hps.{name}": BaseHPs.model_fields[name] for name in (*TUNED, *CONVENTIONS)},
        **{f"train.{name}": TrainSpec.model_fields[name] for name in TRAINING},
    }
    values = {"base": base, "target": target, "model": target, "hps": hps}
    state = {
        key: _text(getattr(values[section], name), _limits(field)["kind"])
        for key, field in fields.items()
        for section, _, name in (key.partition("."),)
        if section in values
    }
    state |= {"train.steps": str(steps), "train.batch_tokens": str(batch_tokens), "allow_kappa_change": "false"}
    state["hps.constants"] = hps.constants if isinstance(hps.constants, str) else "custom"
    if isinstance(hps.constants, dict):
        state |= {f"constants.{name}": _text(value, "ratio") for name, value in hps.constants.items()}
    page = PlannerPage(
        title="Plan a Mixture-of-Experts model",
        rows=tuple(
            Row(_field(f"base.{name}", ModelSpec), _field(f"target.{name}", ModelSpec), size.label, size.multiplier)
            for name, size in SIZES.items()
        ),
        shared=tuple(_field(f"model.{name}", ModelSpec) for name in SHARED),
        tuned=tuple(_field(f"hps.{name}", BaseHPs) for name in TUNED),
        conventions=tuple(_field(f"hps.{name}", BaseHPs) for name in CONVENTIONS),
        training=tuple(_field(f"train.{name}", TrainSpec) for name in TRAINING),
        data={
            **formulas(),
            "state": state,
            "fields": {key: _limits(field) for key, field in fields.items()},
            "choices": {
                **{
                    key: [value for value, _ in _choices(key.partition(".")[2], field)]
                    for key, field in fields.items()
                    if _limits(field)["kind"] == "choice"
                },
                "hps.constants": ["ones", "paper", "custom"],
                "allow_kappa_change": ["true", "false"],
            },
            "betas": hps.betas,
            "clip": hps.clip,
            "constants": {
                "names": constant_names(),
                "families": CONSTANT_FAMILIES,
                "paper": PAPER_CONSTANTS,
            },
        },
        written_by=f"Written by expertp {version('expertp')}, `expertp planner`",
    )
    return fill("planner.html", page=page)


def _field(key: str, spec: type[ModelSpec | BaseHPs | TrainSpec]) -> Field:
    name = key.partition(".")[2]
    field = spec.model_fields[name]
    kind = _limits(field)["kind"]
    return Field(
        key=key,
        label=LABELS.get(name, name),
        description=field.description or "",
        kind=kind,
        choices=_choices(name, field) if kind == "choice" else (),
        stops=SIZES[name].stops if name in SIZES else (),
    )


def _choices(name: str, field: FieldInfo) -> tuple[tuple[str, str], ...]:
    """Return what a field with choices may contain, each with its title."""
    if name == "rules":
        return tuple((rules, RULE_SET_TITLES[rules]) for rules in REFERENCE_RULES)
    if field.annotation is bool:
        return (("true", "yes"), ("false", "no"))
    titles = {"moe": "mixture of experts"}
    return tuple((value, titles.get(value, value)) for value in map(str, get_args(field.annotation)))


def _limits(field: FieldInfo) -> dict[str, Any]:
    """Return what a field may contain."""
    annotation = field.annotation
    limits = {
        name: getattr(each, name) for each in field.metadata for name in ("gt", "ge", "lt") if hasattr(each, name)
    }
    if annotation is float:
        takes_fractions = any(isinstance(each, BeforeValidator) for each in field.metadata)
        return {"kind": "ratio" if takes_fractions else "number", **limits}
    is_whole = annotation is int or int in get_args(annotation)
    return {"kind": "whole" if is_whole else "choice", "optional": type(None) in get_args(annotation), **limits}


def _text(value: object, kind: str) -> str:
    """Return a value as a reader would type it.

    >>> _text(0.25, "ratio"), _text(0.25, "number"), _text(1.0, "ratio"), _text(True, "choice"), _text(None, "whole")
    ('1/4', '0.25', '1', 'true', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, float) and kind == "ratio" and math.isfinite(value):
        fraction = Fraction(value)
        return str(fraction) if fraction.denominator <= 2**10 else repr(value)
    return str(value)
