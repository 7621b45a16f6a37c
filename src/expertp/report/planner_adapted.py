"""The page of an adapted model: its settings by role, which Python has computed from tensor shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from expertp.adapters.adapted import Adapted
from expertp.adapters.axes import SYMBOLS
from expertp.adapters.description import Sizes
from expertp.adapters.fit import Fit, TensorPlan, alike
from expertp.adapters.keys import part_of
from expertp.adapters.roles import pattern_of
from expertp.report.elements import Listing, Table
from expertp.report.pages import fill
from expertp.rules import RULE_SETS
from expertp.spec import BaseHPs
from expertp.util.text import command, count

# What the sizes of base and target are, by the names of fields of a model and of axes of tensors.
SIZES = {"n_embd": "width", "n_layer": "depth", "n_exp": "experts", "n_act": "active experts", **SYMBOLS}


@dataclass(frozen=True)
class AdaptedPage:
    """The contents of the page."""

    title: str
    lead: str
    facts: tuple[tuple[str, str], ...]
    sizes: Table
    settings: Table
    notes: tuple[str, ...]
    listings: tuple[Listing, ...]
    written_by: str


def adapted_page(adapted: Adapted, models: Sequence[str], overrides: Sequence[str], steps: int | None = None) -> str:
    """Return the HTML of the page of an adapted model.

    Args:
        adapted: the model's settings.
        models: the paths of base and target that the user gave, for the commands on the page.
        overrides: the overrides that the user gave.
        steps: the steps of the target's run that the user gave.
    """
    fit, hps = adapted.fit, adapted.hps
    words = ("--hf", *models, *(() if steps is None else ("--steps", str(steps))), *overrides)
    page = AdaptedPage(
        title=f"Plan of a {fit.family} model",
        lead="The settings of every tensor of the target, from the hyperparameters that are tuned on the base. Sizes "
        "come from the shapes of the tensors, and forward multipliers are folded into them: the model stays as it is.",
        facts=(
            ("parameters", count(fit.total_parameters)),
            ("active per token", count(fit.active_parameters)),
            ("rule set", f"{hps.rules}, eps {hps.eps_rule}"),
            ("lr", f"{hps.lr:g}"),
            ("init std", f"{hps.init_std:g}"),
            ("weight decay", f"{hps.weight_decay:g}"),
            ("Adam eps", f"{hps.adam_eps:g}"),
        ),
        sizes=_sizes(fit),
        settings=_settings(fit),
        notes=_notes(adapted),
        listings=(
            Listing("as-python", "PyTorch", _python(models, hps, steps)),
            Listing("as-json", "Settings by role, as JSON", json.dumps(_by_role(fit), indent=2), is_folded=True),
            Listing("as-command", "Settings of every tensor, as JSON", command("plan", *words, "--json")),
        ),
        written_by=f"Written by expertp {version('expertp')}, `{command('planner', *words)}`",
    )
    return fill("planner_adapted.html", page=page)


def _sizes(fit: Fit) -> Table:
    """Return the sizes of base and target."""

    def named(sizes: Sizes) -> dict[str, float]:
        whole = {"n_embd": sizes.n_embd, "n_layer": sizes.n_layer, "n_exp": sizes.n_exp, "n_act": sizes.n_act}
        return {**whole, **{symbol: size for symbol, size in sizes.axes.items() if symbol not in ("E", "N")}}

    base, target = named(fit.base), named(fit.target)
    rows = tuple(
        (
            name,
            SIZES[name],
            f"{base[name]:g}",
            f"{target[name]:g}",
            f"×{target[name] / base[name]:.4g}" if base[name] else "–",
        )
        for name in target
        if name in base
    )
    return Table("Sizes", ("size", "of", "base", "target", "ratio"), rows, numeric=3)


def _settings(fit: Fit) -> Table:
    """Return the settings by role, with the rules before folding."""
    head = ("role", "such as", "rule: init, lr, eps", "tensors", "init", "lr", "weight decay", "Adam eps", "fold")
    rows = tuple(
        (
            one.role,
            pattern_of(one.name).removeprefix("model.layers.#."),
            _rule(one.role, fit),
            str(len(group)),
            *numbers,
        )
        for group in alike(fit.tensors)
        for one in group[:1]
        for numbers in (_numbers(one),)
    )
    return Table("Settings of the target by role, after folding", head, rows, numeric=6)


def _numbers(tensor: TensorPlan) -> tuple[str, ...]:
    init = f"{tensor.init_std:.4g}" if tensor.init_std else f"={tensor.start:.4g}"
    return (init, *(f"{each:.4g}" for each in (tensor.lr, tensor.weight_decay, tensor.adam_eps, tensor.fold)))


def _rule(role: str, fit: Fit) -> str:
    row = RULE_SETS[fit.hps.rules].rows[role]
    init, eps = (str(rule) if rule is not None else "–" for rule in (row.init, row.adam_eps(fit.hps.eps_rule)))
    return f"{init}; {row.lr}; {eps}"


def _notes(adapted: Adapted) -> tuple[str, ...]:
    fit = adapted.fit
    forward = fit.forward
    auxiliary = (
        f"the coefficient of an auxiliary loss is the base's times {fit.aux_loss:.4g}"
        if adapted.family.auxiliary_loss
        else "it has no auxiliary loss"
    )
    balance = (
        "The family has no selection bias" if fit.bias_lr is None else f"Selection bias: bias_lr {fit.bias_lr:.4g}"
    )
    return (
        f"Folded into the tensors: block outputs × {forward.residual:.4g}, logits × {forward.logits:.4g}, sum over "
        f"active experts × {forward.moe_output:.4g}.",
        f"{balance}; {auxiliary}.",
        "Init is a standard deviation; '=' is the value at which a norm starts.",
    )


def _by_role(fit: Fit) -> list[dict[str, object]]:
    names = ("role", "start", "init_std", "lr", "weight_decay", "adam_eps", "fold")
    return [
        {**{name: getattr(group[0], name) for name in names}, "tensors": [tensor.name for tensor in group]}
        for group in alike(fit.tensors)
    ]


def _python(models: Sequence[str], hps: BaseHPs, steps: int | None) -> str:
    """Return code that trains the target with these settings."""
    base, target = models
    given = ", ".join(
        f"{name}={_literal(getattr(hps, name))}" for name in BaseHPs.model_fields if name in hps.model_fields_set
    )
    length = "" if steps is None else f", steps={steps}"
    part = part_of(Path(target))
    config = f"AutoConfig.from_pretrained({target!r}){f'.{part}' if part else ''}"
    return (
        "from torch.optim import AdamW\n"
        "from transformers import AutoConfig, AutoModelForCausalLM\n\n"
        "from expertp import BaseHPs, adapt\n\n"
        f"model = AutoModelForCausalLM.from_config({config})\n"
        f"adapted = adapt(model, base={base!r}, hps=BaseHPs({given}){length})\n"
        "adapted.init_(model)\n"
        "optimizer = AdamW(adapted.param_groups(model))\n"
    )


def _literal(value: object) -> str:
    """Return a value as Python code, which has no name for infinity."""
    return f'float("{value}")' if isinstance(value, float) and math.isinf(value) else repr(value)
