"""Stream text from the newest checkpoint of a trained run, token by token, until the end of the text or --tokens.

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
    parser.add_argument("--prompt", default="", metavar="TEXT", help="text to go on from (default: none)")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="tokens to draw at most (default: 200)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0: always the likeliest token (default: 0.8)"
    )
    parser.add_argument("--top-k", type=int, default=50, metavar="K", help="draw among K tokens; 0: all (default: 50)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the draws (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of streaming")


def run(args: argparse.Namespace) -> int:
    """Generate and print."""
    for name, value in (("--tokens", args.tokens), ("--temperature", args.temperature), ("--top-k", args.top_k)):
        if value < 0:
            raise InputError(f"{name} {value} is negative; give 0 or more")

    from expertp.data import TextStream
    from expertp.generate import generate, load_model

    model, tokenizer = load_model(args.run_directory)
    prompt = tokenizer.encode(args.prompt) or [tokenizer.eot]
    stream = TextStream(tokenizer)
    pieces = []
    if not args.json:
        print(args.prompt, end="", flush=True)
    for token in generate(
        model,
        prompt,
        args.tokens,
        n_ids=tokenizer.vocab_size,
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
