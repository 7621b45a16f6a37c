"""The exceptions that the command line prints as one line, without a traceback, and a hint for typos."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: what is wrong, the value seen, what is allowed and the fix, in one line. Exit code 2."""


class BusyError(InputError):
    """Another process is at work in the same place."""


class RunError(RuntimeError):
    """The input is good and the work failed all the same: what happened and how to go on, in one line. Exit code 1."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for a name that is not known: the nearest one that is, or all of them.

    >>> did_you_mean("n_embed", ["n_embd", "n_layer"]), did_you_mean("x", ["n_embd", "n_layer"])
    ("did you mean 'n_embd'?", 'known are n_embd, n_layer')
    """
    by_lower = {entry.lower(): entry for entry in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return f"did you mean '{by_lower[near[0]]}'?" if near else f"known are {', '.join(by_lower.values())}"


def how_to_install(extra: str) -> str:
    """Return the command that installs an optional part of the package.

    >>> how_to_install("data")
    "pip install -e '.[data]' in the project's directory"
    """
    return f"pip install -e '.[{extra}]' in the project's directory"
