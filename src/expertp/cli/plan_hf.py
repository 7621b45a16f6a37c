"""`expertp plan --hf`: the plan of a model of transformers, from two configurations and without weights."""

import argparse
import json
from pathlib import Path

from expertp.adapters.adapted import Adapted, adapt
from expertp.adapters.describe import roles_of
from expertp.adapters.export import export
from expertp.adapters.hub import on_meta, read_config
from expertp.adapters.roles import UnknownParametersError
from expertp.adapters.summary import HEADER, rows
from expertp.cli.text import output_width, text_table
from expertp.config import hps_from_overrides, split_overrides
from expertp.spec import BaseHPs
from expertp.util.text import count

# Width of the output, in characters, from which the table names a parameter of every row.
WIDE = 110
OFF = "that loss is off unless output_router_logits=True"
BIAS_NAMES = {"sigmoid": "sigmoid gates", "softmax": "softmax gates", "logit": "router logits"}


def run_hf(args: argparse.Namespace) -> BaseHPs:
    """Plan the target and print the plan; return the base's hyperparameters."""
    adapted = adapt_files(args, args.steps, None if args.roles_file is None else Path(args.roles_file))
    if args.json:
        print(json.dumps(adapted.fit.to_dict(), indent=2))
    elif args.export:
        print(export(adapted.fit, args.export))
    elif args.roles:
        print(roles_of(on_meta(read_config(Path(args.hf[1]))), adapted.family))
    else:
        _print(adapted)
    return adapted.hps


def adapt_files(args: argparse.Namespace, steps: int | None = None, roles: Path | None = None) -> Adapted:
    """Return the settings for the two configurations of --hf; print the roles text of a model that needs one."""
    base, target = map(Path, args.hf)
    hps = hps_from_overrides(split_overrides(args.overrides, {"hps": BaseHPs})["hps"])
    try:
        return adapt(on_meta(read_config(target)), base, hps, roles=roles, steps=steps)
    except UnknownParametersError as error:
        print(error.roles)
        raise


def _print(adapted: Adapted) -> None:
    fit = adapted.fit
    hps = fit.hps
    print(f"family  {fit.family}; rules {hps.rules}, eps {hps.eps_rule}")
    print(
        f"hps     lr {hps.lr:g}, init_std {hps.init_std:g}, adam_eps {hps.adam_eps:g}, "
        f"weight_decay {hps.weight_decay:g}, bias_lr {hps.bias_lr:g}, gamma {hps.gamma:g}"
    )
    for label, sizes in (("base  ", fit.base), ("target", fit.target)):
        axes = ", ".join(f"{symbol} {size}" for symbol, size in sizes.axes.items() if symbol not in ("E", "N"))
        print(f"{label}  n_embd {sizes.n_embd}, n_layer {sizes.n_layer}, E{sizes.n_exp}A{sizes.n_act}; {axes}")
    print(
        f"        {count(fit.total_parameters)} parameters, {count(fit.active_parameters)} active (without the input "
        "embedding and idle experts)",
        end="\n\n",
    )
    columns = len(HEADER) if output_width() >= WIDE else len(HEADER) - 1
    print(text_table([row[:columns] for row in (HEADER, *rows(fit.tensors))]), end="\n\n")
    forward = fit.forward
    print(
        f"forward multipliers, folded into the tensors: block outputs x {forward.residual:.4g}, logits x "
        f"{forward.logits:.4g}, sum over active experts x {forward.moe_output:.4g}"
    )
    print(_balance(adapted))
    print("init: standard deviation; '=' the value at which a norm starts. Names: --roles; per tensor: --json")


def _balance(adapted: Adapted) -> str:
    """Say how the loads are balanced."""
    fit, family = adapted.fit, adapted.family
    factor = f"multiply the base's auxiliary-loss coefficient by {fit.aux_loss:.4g}; {OFF}"
    if family.selection is None:
        if not family.auxiliary_loss:
            return "balance: the family has neither selection bias nor auxiliary loss"
        return f"balance: the family has no selection bias; {factor}"
    auxiliary = f"with an auxiliary loss, {factor}" if family.auxiliary_loss else "it has no auxiliary loss"
    return f"balance: selection bias on {BIAS_NAMES[family.selection]}, bias_lr {fit.bias_lr:.4g}; {auxiliary}"
