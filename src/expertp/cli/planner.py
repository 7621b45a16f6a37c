"""Write the planner: one self-contained page that shows the plan of a target while you change base, target and rules.

The page needs no network and no program: it holds the rule table as data. It shows init, lr, weight decay, eps and
forward multipliers of every parameter group with their formulas, parameter counts, FLOPs and memory, and it writes the
plan as YAML, JSON, PyTorch parameter groups or a link.

Without --base and --target it starts with the paper's smallest and largest model. Overrides are those of `plan`. With
--hf, it is the page of a model of Hugging Face transformers, whose table is computed here.
"""

import argparse
from pathlib import Path

from expertp.cli.browser import show_page
from expertp.config import load_base, load_target, split_overrides
from expertp.errors import InputError
from expertp.plan import plan
from expertp.spec import BaseHPs, ModelSpec
from expertp.util.files import write_atomically

EXAMPLES = """\
  expertp planner --open
  expertp planner --base configs/base.yaml --target configs/target.yaml --out plan.html hps.lr=0.01
"""
CONFIGS = Path(__file__).parents[1] / "configs"
# Steps and tokens per step with which the page starts.
STEPS, BATCH_SEQUENCES = 2000, 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="model.* of the target, hps.* of the base")
    parser.add_argument("--base", metavar="FILE", type=Path, help="YAML file with model: and hps:")
    parser.add_argument("--target", metavar="FILE", type=Path, help="YAML file with model:")
    parser.add_argument(
        "--hf",
        nargs=2,
        metavar=("BASE", "TARGET"),
        help="instead of --base and --target: two config.json of transformers, or directories with one",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        default=Path("planner.html"),
        help="path of the page (default: planner.html)",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="steps of the target's run, for hps.decay=tau")
    parser.add_argument("--open", action="store_true", help="show the page in the default browser")


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    from expertp.report.planner import MARK, planner_page

    out: Path = args.out
    if out.exists() and (not out.is_file() or MARK not in out.read_bytes()[:2000]):
        raise InputError(f"{out}: exists and is not a planner of expertp; choose another --out")
    if args.hf:
        page = _adapted_page(args)
    else:
        overrides = split_overrides(args.overrides, {"model": ModelSpec, "hps": BaseHPs})
        base, hps = load_base(args.base or CONFIGS / "base.yaml", overrides["hps"])
        target = load_target(args.target or CONFIGS / "target.yaml", overrides["model"])
        # Refuses other architectures; the page says other mistakes.
        plan(base, target, hps, steps=args.steps, allow_kappa_change=True)
        steps = args.steps or hps.tuned_steps or STEPS
        page = planner_page(base, target, hps, steps, BATCH_SEQUENCES * target.context)
    write_atomically(out, page.encode())
    print(f"planner: {out}")
    if args.open:
        show_page(out)
    return 0


def _adapted_page(args: argparse.Namespace) -> str:
    """Return the page of a model of transformers."""
    for flag in ("base", "target"):
        if getattr(args, flag):
            raise InputError(f"--{flag} does not go with --hf; leave it out")

    from expertp.cli.plan_hf import adapt_files
    from expertp.report.planner_adapted import adapted_page

    return adapted_page(adapt_files(args, args.steps), args.hf, args.overrides, args.steps)
