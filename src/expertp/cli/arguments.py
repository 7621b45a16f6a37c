"""Arguments shared by several verbs."""

import argparse

from expertp.util.machine import usable_cores


def at_least_one(text: str) -> int:
    """Parse a positive integer.

    >>> at_least_one("2")
    2
    """
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} is not a positive integer")


def add_workers(parser: argparse.ArgumentParser, elsewhere: str = "") -> None:
    """Declare `--workers`, for verbs that train many runs; without a default where workers may run elsewhere."""
    parser.add_argument(
        "--workers",
        metavar="N",
        type=at_least_one,
        default=None if elsewhere else usable_cores(),
        help=f"worker processes with one thread each (default: number of cores{elsewhere})",
    )
