"""Stream text from the newest checkpoint of a run, until the end of the text or --tokens tokens.

An empty prompt starts a new document. FILE has one prompt per line; in a .jsonl file, a line is a JSON string, or an
object with the key "prompt". Samples of a prompt are numbered from 1. A sample depends on the model, the prompt, the
seed and its number only.

Within the context of the model, keys and values of earlier tokens are kept. Beyond it, and for a model of transformers,
the window is computed afresh for every token, which is slower.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from expertp.cli.arguments import at_least_one
from expertp.errors import InputError
from expertp.util.records import read_text

EXAMPLES = """\
  expertp generate out/first-run --prompt "def main(" --top-p 0.9
  expertp generate out/first-run prompts.txt --samples 3 --tokens 50 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("run_directory", metavar="DIR", help="directory of a run")
    parser.add_argument("prompts_file", metavar="FILE", nargs="?", type=Path, help="prompts, instead of --prompt")
    parser.add_argument("--prompt", metavar="TEXT", help="text to continue (default: none)")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="most tokens to sample (default: 200)")
    parser.add_argument(
        "--samples", type=at_least_one, default=1, metavar="N", help="texts for each prompt (default: 1)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0: always the most likely token (default: 0.8)"
    )
    parser.add_argument("--top-k", type=int, default=50, metavar="K", help="K most likely tokens; 0: all (default: 50)")
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="most likely tokens of total probability P (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sampling (default: 0)")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per text at its end instead of streaming"
    )


def run(args: argparse.Namespace) -> int:
    """Generate text and print it."""
    _check_numbers(args)
    prompts = [_printable(args.prompt or "")] if args.prompts_file is None else _read_prompts(args.prompts_file)
    if args.prompts_file is not None and args.prompt is not None:
        raise InputError("--prompt does not go with a file of prompts; leave one of them out")

    from expertp.training.generate import Sampling, encode_prompt, generate_text, load_model

    loaded = load_model(args.run_directory)
    sampling = Sampling(args.temperature, args.top_k or None, args.top_p, args.seed)
    context = loaded.context
    longest = max(len(encode_prompt(loaded.tokenizer, prompt)) for prompt in prompts) + args.tokens
    if longest - 1 > context:  # the last token is not an input
        print(
            f"expertp: note: prompt and text may have {longest} tokens, and the context is {context}; beyond it, the "
            f"last {context} tokens are computed afresh for every token",
            file=sys.stderr,
        )
    for number, prompt in enumerate(prompts, start=1):
        pieces = generate_text(loaded, prompt, args.tokens, sampling, args.samples)
        if args.json:
            for sample, text in enumerate(_whole(pieces), start=1):
                print(json.dumps({"prompt": prompt, "sample": sample, "text": text}), flush=True)
        elif args.samples == 1:
            print(_heading(prompt=(number, len(prompts))) + prompt, end="", flush=True)
            for (piece,) in pieces:
                print(piece, end="", flush=True)
            print()
        else:
            for sample, text in enumerate(_whole(pieces), start=1):
                heading = _heading(prompt=(number, len(prompts)), sample=(sample, args.samples))
                print(f"{heading}{prompt}{text}", flush=True)
    return 0


def _heading(**places: tuple[int, int]) -> str:
    """Return the line before one of several texts.

    >>> _heading(prompt=(1, 1), sample=(2, 3))
    '--- sample 2 of 3\\n'
    """
    several = [f"{what} {number} of {count}" for what, (number, count) in places.items() if count > 1]
    return f"--- {', '.join(several)}\n" if several else ""


def _check_numbers(args: argparse.Namespace) -> None:
    for name, value, most in (
        ("--tokens", args.tokens, 2**31),
        ("--samples", args.samples, 2**16),
        ("--temperature", args.temperature, 1e6),
        ("--top-k", args.top_k, 2**31),
        ("--seed", args.seed, 2**63 - 1),
    ):
        if not 0 <= value <= most:
            raise InputError(f"{name} {value} is not in the range 0 to {most:g}; choose a value in it")
    if not 0 < args.top_p <= 1:
        raise InputError(f"--top-p {args.top_p:g} is not above 0 and at most 1; 1 allows all tokens")


def _printable(prompt: str) -> str:
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InputError("--prompt is not UTF-8; set the terminal's encoding to UTF-8") from None
    return prompt


def _read_prompts(path: Path) -> list[str]:
    """Return the prompts of a file, one per line; lines without text are skipped."""
    lines = read_text(path, "give a text file with one prompt per line").split("\n")
    is_json = path.suffix == ".jsonl"
    prompts = [
        _prompt_in(line, f"{path}, line {number}") if is_json else line.removesuffix("\r")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise InputError(f"{path}: has no prompts; give a text file with one prompt per line")
    return prompts


def _prompt_in(line: str, where: str) -> str:
    """Return the prompt of a line of JSON."""
    try:
        value = json.loads(line)
        prompt = value["prompt"] if isinstance(value, dict) else value
        if not isinstance(prompt, str):
            raise TypeError
        prompt.encode()
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f'{where}: is no prompt; give a JSON string, or an object with the key "prompt"') from None
    return prompt


def _whole(pieces: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the whole text of every sample."""
    return ["".join(parts) for parts in zip(*pieces, strict=True)]
