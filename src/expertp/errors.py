"""Exceptions that the command line prints as one line without a traceback, and hints for their messages."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input. One line: what is wrong, the value seen, what is allowed, the fix. Exit code 2."""


class BusyError(InputError):
    """Another process uses the same directory."""


class RunError(RuntimeError):
    """Valid input, but the work failed. One line: what happened and how to continue. Exit code 1."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the closest known name, or all known names.

    >>> did_you_mean("n_embed", ["n_embd", "n_layer"]), did_you_mean("x", ["n_embd", "n_layer"])
    ("did you mean 'n_embd'?", 'choose one of n_embd, n_layer')
    """
    by_lower = {entry.lower(): entry for entry in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return f"did you mean '{by_lower[near[0]]}'?" if near else f"choose one of {', '.join(by_lower.values())}"


def how_to_install(extra: str) -> str:
    """Return the command that installs an optional part of the package.

    >>> how_to_install("data")
    "pip install -e '.[data]' in the project's directory"
    """
    return f"pip install -e '.[{extra}]' in the project's directory"
