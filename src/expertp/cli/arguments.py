"""Arguments that several verbs share."""

import argparse

from expertp.machine import usable_cores


def at_least_one(text: str) -> int:
    """Read a number of things, of which there must be some.

    >>> at_least_one("2")
    2
    """
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Declare how many processes train, for every verb that trains many runs."""
    parser.add_argument(
        "--workers",
        metavar="N",
        type=at_least_one,
        default=usable_cores(),
        help="processes, one thread each (default: cores)",
    )
