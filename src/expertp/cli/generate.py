"""Stream text from the newest checkpoint of a run, until the end of the text or --tokens tokens.

An empty prompt starts a new document.
"""

import argparse
import json

from expertp.errors import InputError

EXAMPLES = """\
  expertp generate out/first-run --prompt "def main("
  expertp generate out/first-run --prompt "import" --tokens 50 --temperature 0 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("run_directory", metavar="DIR", help="directory of a run")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="text to continue (default: none)")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="most tokens to sample (default: 200)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0: always the most likely token (default: 0.8)"
    )
    parser.add_argument("--top-k", type=int, default=50, metavar="K", help="K most likely tokens; 0: all (default: 50)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sampling (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of streaming")


def run(args: argparse.Namespace) -> int:
    """Generate text and print it."""
    for name, value, most in (
        ("--tokens", args.tokens, 2**31),
        ("--temperature", args.temperature, 1e6),
        ("--top-k", args.top_k, 2**31),
        ("--seed", args.seed, 2**63 - 1),
    ):
        if not 0 <= value <= most:
            raise InputError(f"{name} {value} is not in the range 0 to {most:g}; choose a value in it")
    try:
        args.prompt.encode()
    except UnicodeEncodeError:
        raise InputError("--prompt is not UTF-8; set the terminal's encoding to UTF-8") from None

    from expertp.data import TextStream
    from expertp.training.generate import generate, load_model

    loaded = load_model(args.run_directory)
    tokenizer = loaded.tokenizer
    prompt = tokenizer.encode(args.prompt) or [tokenizer.eot]
    stream = TextStream(tokenizer)
    pieces = []
    if not args.json:
        print(args.prompt, end="", flush=True)
    for token in generate(
        loaded,
        prompt,
        args.tokens,
        temperature=args.temperature,
        top_k=args.top_k or None,
        seed=args.seed,
    ):
        if token == tokenizer.eot:
            break
        pieces.append(stream.push(token))
        if not args.json:
            print(pieces[-1], end="", flush=True)
    pieces.append(stream.finish())
    text = "".join(pieces)
    print(json.dumps({"prompt": args.prompt, "text": text}) if args.json else pieces[-1])
    return 0
