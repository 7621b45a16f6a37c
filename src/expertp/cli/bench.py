"""Measure speed side by side: contestants run interleaved in one process and are compared by ratios.

experts  the fused expert backend, a loop over experts, sort + grouped_mm, capacity-padded bmm, and a dense FFN of the
         same active shape; with expertp[hf] also the Mixtral and OLMoE experts of Hugging Face
step     a training step with each expert backend, and with a dense model
data     `expertp prepare` and a plain tiktoken loop
study    a sweep on one worker per core and on one worker
generate text with a key-value cache, and with a window that is computed afresh for every token; the larger model takes
         minutes

"vs dense" and "vs best peer" (the best of loop, grouped_mm and bmm) are ratios of times: below 1, fused is faster.
"vs afresh" is the same for the cache.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from expertp.cli.arguments import at_least_one
from expertp.cli.progress import Reporter
from expertp.cli.text import text_table
from expertp.errors import InputError, did_you_mean

EXAMPLES = """\
  expertp bench experts
  expertp bench experts --only "E64A16 alpha 0.25" --dtype bfloat16 --json
"""
CASES = ("experts", "step", "data", "study", "generate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("what", choices=CASES, metavar="|".join(CASES), help="benchmark to run")
    parser.add_argument("--only", metavar="NAME", help="run one case, by its name in the table")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="dtype of experts, step and generate (default: float32)",
    )
    parser.add_argument(
        "--rounds",
        type=at_least_one,
        default=5,
        metavar="N",
        help="number of rounds; times are medians over rounds (default: 5)",
    )
    parser.add_argument(
        "--source", default="builtin", metavar="SOURCE", help="source of texts for data (default: builtin)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Measure and print the results."""
    from expertp.bench.timing import describe_machine

    todo = _cases(args)
    if args.only is not None:
        if args.only not in todo:
            raise InputError(f"--only '{args.only}': no such case; {did_you_mean(args.only, todo)}")
        todo = {args.only: todo[args.only]}
    cases: list[dict[str, Any]] = []
    with Reporter("bench", total=len(todo)) as reporter:
        for name, measure in todo.items():
            reporter.update(len(cases), name)
            cases.append(asdict(measure()))
    machine = asdict(describe_machine())
    if args.json:
        print(json.dumps({"machine": machine, "cases": cases}, indent=2))
    else:
        print(", ".join(f"{name} {value}" for name, value in machine.items()), end="\n\n")
        print(text_table(_table(cases)))
    return 0


def _cases(args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    from expertp.bench import data, experts, generation, step, study

    if args.what == "experts":
        compare = partial(experts.compare_experts, dtype=args.dtype, rounds=args.rounds)
        return {shape.name: partial(compare, shape) for shape in experts.SHAPES}
    if args.what == "step":
        compare = partial(step.compare_steps, dtype=args.dtype, rounds=args.rounds)
        return {shape.name: partial(compare, shape) for shape in step.SHAPES}
    if args.what == "generate":
        compare_texts = partial(generation.compare_generation, dtype=args.dtype, rounds=args.rounds)
        return {text.name: partial(compare_texts, text) for text in generation.TEXTS}
    if args.what == "study":
        return {"study": partial(study.compare_workers, args.rounds)}
    return {args.source: partial(data.compare_preparing, args.source, args.rounds)}


def _table(cases: Sequence[dict[str, Any]]) -> list[list[str]]:
    ratios = [key for key in cases[0] if key.startswith("vs_")]
    contestants = list(cases[0]["ms"])
    header = ["case", *(f"{name} ms" for name in contestants), *(key.replace("_", " ") for key in ratios)]
    rows = [
        [case["name"], *(f"{case['ms'][name]:.1f}" for name in contestants), *(f"{case[key]:.2f}" for key in ratios)]
        for case in cases
    ]
    return [header, *rows]
