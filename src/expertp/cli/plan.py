"""Print the settings of every parameter group of a target model, given a base model and its hyperparameters.

The base file has the sections `model:` and `hps:`, the target file has `model:` only. Overrides `model.KEY=VALUE`
change the target, `hps.KEY=VALUE` the hyperparameters of the base. hps.lr is linear, not log2.

The rules carry hyperparameters over to larger models at the same number of steps. The optimal learning rate depends on
the number of steps, too, and the rules do not say how: tune the base at the steps of the target's run.

With --hf, base and target are models of Hugging Face transformers, given by their config.json; no weights are needed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from fractions import Fraction

from expertp.cli.text import describe_multipliers, output_width, text_table
from expertp.config import load_base, load_target, split_overrides
from expertp.errors import InputError
from expertp.plan import Group, Plan, named_constants, place_in_paper, plan
from expertp.rules import RULE_SETS
from expertp.spec import BaseHPs, ModelSpec

EXAMPLES = """\
  expertp plan --base configs/base.yaml --target configs/target.yaml
  expertp plan --hf base/config.json target/config.json hps.lr=0.01 hps.init_std=0.02
"""

# Width of the output, in characters, from which one table holds a whole plan.
WIDE = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="model.* of the target, hps.* of the base")
    parser.add_argument("--base", metavar="FILE", help="YAML file with model: and hps:")
    parser.add_argument("--target", metavar="FILE", help="YAML file with model:")
    parser.add_argument(
        "--hf",
        nargs=2,
        metavar=("BASE", "TARGET"),
        help="instead of --base and --target: two config.json of transformers, or directories with one",
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="steps of the target's run, for hps.decay=tau and a warning if hps.tuned_steps differs",
    )
    parser.add_argument(
        "--allow-kappa-change",
        action="store_true",
        help="permit a sparsity other than the base's (default: error)",
    )
    parser.add_argument("--roles-file", metavar="FILE", help="with --hf: a roles text, for a family without one")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument("--roles", action="store_true", help="with --hf: print the role and axes of every parameter")
    output.add_argument(
        "--export",
        choices=("torchtitan", "automodel"),
        help="with --hf: print settings per name pattern for another program",
    )


def run(args: argparse.Namespace) -> int:
    """Plan the target and print the plan."""
    _check_files(args)
    if args.hf:
        from expertp.cli.plan_hf import run_hf

        _warn_about_steps(args.steps, run_hf(args))
        return 0
    overrides = split_overrides(args.overrides, {"model": ModelSpec, "hps": BaseHPs})
    base, hps = load_base(args.base, overrides["hps"])
    target = load_target(args.target, overrides["model"])
    planned = plan(base, target, hps, steps=args.steps, allow_kappa_change=args.allow_kappa_change)
    if args.json:
        print(json.dumps(planned.to_dict(), indent=2))
    else:
        print_plan(planned)
    if target.kappa != base.kappa:
        print(
            f"expertp: warning: kappa={target.kappa} in the target but {base.kappa} in the base; "
            "learning rates do not transfer",
            file=sys.stderr,
        )
    _warn_about_steps(args.steps, hps)
    return 0


def _warn_about_steps(steps: int | None, hps: BaseHPs) -> None:
    """Warn if the base was tuned at another number of steps."""
    if None not in (steps, hps.tuned_steps) and steps != hps.tuned_steps:
        print(
            f"expertp: warning: {steps} steps in the target but hps.tuned_steps={hps.tuned_steps} in the base; "
            f"learning rates do not transfer to another number of steps, tune the base at {steps}",
            file=sys.stderr,
        )


def _check_files(args: argparse.Namespace) -> None:
    """Either --hf, or --base and --target."""
    given = {"--base": args.base, "--target": args.target}
    if args.hf:
        wrong = [flag for flag, value in given.items() if value]
        wrong += ["--allow-kappa-change"] if args.allow_kappa_change else []
        if wrong:
            raise InputError(f"{wrong[0]} does not go with --hf; leave it out")
        return
    if missing := [flag for flag, value in given.items() if not value]:
        raise InputError(f"the following arguments are required: {', '.join(missing)} (see 'expertp plan --help')")
    of_hf = {"--roles": args.roles, "--export": args.export, "--roles-file": args.roles_file}
    if wrong := [flag for flag, value in of_hf.items() if value]:
        raise InputError(f"{wrong[0]} needs --hf BASE TARGET")


def print_plan(planned: Plan) -> None:
    """Print a plan as text: sizes, one row per group, forward multipliers."""
    base, target, hps = planned.base, planned.target, planned.hps
    print(f"rules   {hps.rules}, eps {hps.eps_rule}, residual {hps.residual}, decay {hps.decay}")
    print(
        f"hps     lr {hps.lr:g}, init_std {hps.init_std:g}, adam_eps {hps.adam_eps:g}, "
        f"weight_decay {hps.weight_decay:g}, bias_lr {hps.bias_lr:g}, gamma {hps.gamma:g}"
    )
    print(f"consts  {_constants(hps)}")
    for label, model in (("base  ", base), ("target", target)):
        print(f"{label}  {model.describe()}")
    print(describe_multipliers(planned.multipliers), end="\n\n")

    at_base = plan(base, base, hps)
    settings: list[tuple[str, ...]] = [("group", "init std", "lr", "weight decay", "Adam eps")]
    factors: list[tuple[str, ...]] = [("relative to base:", "init std", "lr", "weight decay", "Adam eps")]
    places = ["paper (init, lr)"]
    for name, group in planned.groups.items():
        if group.lr is not None:
            *cells, eps = (_number(value) for value in _settings(group))
            settings.append((name, *cells, eps + _eps_mark(name, hps)))
            factors.append((name, *_factors(group, at_base.groups[name])))
            places.append(place_in_paper(name, hps.rules))
    print(_table(settings, factors, places), end="\n\n")

    forward = planned.forward
    moe = "" if forward.moe_output is None else f", sum over active experts x {forward.moe_output:g}"
    print(
        f"forward: block outputs x {forward.residual:.4g}, logits x {forward.logits:.4g}, "
        f"attention scores q.k x {forward.attention_scale:.4g}{moe}"
    )
    bias = "; the expert bias is not an Adam parameter" if target.ffn == "moe" else ""
    if any("*" in row[-1] for row in settings):
        print("* differs from the eps in the paper; hps.eps_rule=paper uses the paper's")
    print(f"norms are initialized with gain 1 and bias 0{bias}")
    print("learning rates hold at the base's number of steps; for longer training, tune the base at the target's steps")


def _eps_mark(group: str, hps: BaseHPs) -> str:
    """Return a mark for an eps that differs from the paper."""
    row = RULE_SETS[hps.rules].rows[group]
    return "*" if row.adam_eps(hps.eps_rule) != row.eps_paper else ""


def _constants(hps: BaseHPs) -> str:
    """List the constant multipliers; the values in the table include them, the factors do not."""
    if hps.constants == "ones":
        return hps.constants
    named = named_constants(hps.constants).items()
    preset = "of the paper: " if hps.constants == "paper" else ""
    return preset + ", ".join(f"{name} {Fraction(value).limit_denominator(10**6)}" for name, value in named)


def _settings(group: Group) -> tuple[float | None, ...]:
    return group.init_std, group.lr, group.weight_decay, group.adam_eps


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _factors(group: Group, base: Group) -> tuple[str, ...]:
    """Return the ratios of the settings to those of the base; "-" for settings that are absent or 0."""
    pairs = zip(_settings(group), _settings(base), strict=True)
    return tuple(f"x{ours / theirs:.4g}" if ours and theirs else "-" for ours, theirs in pairs)


def _table(settings: Sequence[tuple[str, ...]], factors: Sequence[tuple[str, ...]], places: Sequence[str]) -> str:
    """Return settings and factors side by side where the output is wide enough, otherwise below each other."""
    if output_width() >= WIDE:
        beside = [
            "relative to base: init, lr, wd, eps",
            *("  ".join(f"{each:<8}" for each in row[1:]) for row in factors[1:]),
        ]
        return text_table(
            [(*row, each.rstrip(), place) for row, each, place in zip(settings, beside, places, strict=True)]
        )
    return (
        f"{text_table([(*row, place) for row, place in zip(settings, places, strict=True)])}\n\n{text_table(factors)}"
    )
