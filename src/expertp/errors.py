"""Exceptions that the command line prints as one line without a traceback, and the text of their messages."""

import difflib
import reprlib
from collections.abc import Iterable

# Characters of a line that reports an error, and of a value that the line repeats.
LONGEST_LINE = 300
LONGEST_VALUE = 60
# Lengths to which the words of a line that is too long are shortened, until it fits.
WORD_LENGTHS = (120, 80, 40)
# Names that a hint lists.
MOST_NAMES = 20


class InputError(ValueError):
    """Bad input. One line: what is wrong, the value seen, what is allowed, the fix. Exit code 2."""


class BusyError(InputError):
    """Another process uses the same directory."""


class DamagedError(InputError):
    """A file or directory does not hold what was written: it is missing, has another format or another hash.

    A file that cannot be read (no permission, an error of the disk) is not damaged; that stays an `OSError`.
    """


class RunError(RuntimeError):
    """Valid input, but the work failed. One line: what happened and how to continue. Exit code 1."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the closest known name, or all known names.

    >>> did_you_mean("n_embed", ["n_embd", "n_layer"]), did_you_mean("x", ["n_embd", "n_layer"])
    ("did you mean 'n_embd'?", 'choose one of n_embd, n_layer')
    """
    by_lower = {entry.lower(): entry for entry in known}
    near = difflib.get_close_matches(name.lower()[:LONGEST_VALUE], list(by_lower), n=1)
    if near:
        return f"did you mean '{by_lower[near[0]]}'?"
    names = list(by_lower.values())
    return f"choose one of {', '.join(names[:MOST_NAMES])}{', ...' if len(names) > MOST_NAMES else ''}"


def shown(value: object) -> str:
    r"""Return a value that a message repeats: printable, and at most `LONGEST_VALUE` characters of it.

    >>> shown("x\x1b[2J"), shown([1] * 1000), len(shown("long" * 1000))
    ("'x\\x1b[2J'", '[1, 1, 1, 1, 1, 1, ...]', 60)
    """
    return shortened(printable(_BOUNDED.repr(value)), LONGEST_VALUE)


def one_line(text: str) -> str:
    r"""Return a message as one printable line of at most `LONGEST_LINE` characters.

    Long words, such as paths, are shortened first, so that the line keeps what is wrong and what to do.

    >>> one_line("line 1\nline 2\x1b"), len(one_line("word " * 1000)), one_line("/a" * 150 + ": damaged")[-20:]
    ('line 1 line 2\\x1b', 300, 'a/a/a/a/a/a: damaged')
    """
    words = printable(" ".join(text.split())).split(" ")
    for length in WORD_LENGTHS:
        if len(" ".join(words)) > LONGEST_LINE:
            words = [shortened(word, length) for word in words]
    return shortened(" ".join(words), LONGEST_LINE)


def printable(text: str) -> str:
    r"""Replace characters that a terminal obeys instead of printing by their escapes.

    >>> printable("a\x1b[31mb\n")
    'a\\x1b[31mb\\n'
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def shortened(text: str, length: int) -> str:
    """Return a text with its middle left out where it is longer than `length`.

    >>> shortened("abcdefghij", 7), shortened("abc", 7)
    ('ab...ij', 'abc')
    """
    if len(text) <= length:
        return text
    tail = (length - 3) // 2
    return f"{text[: length - 3 - tail]}...{text[-tail:]}"


class _BoundedRepr(reprlib.Repr):
    """`repr` that looks at a bounded part of a value, however large or nested the value is."""

    def repr_int(self, x: int, level: int) -> str:
        """Return the digits of an integer, unless there are more than Python converts."""
        del level
        if abs(x) >= 10**LONGEST_VALUE:
            return f"an integer of about {round(x.bit_length() * 0.30103)} digits"
        return repr(x)


_BOUNDED = _BoundedRepr()
_BOUNDED.maxlevel, _BOUNDED.maxstring, _BOUNDED.maxother = 3, 2 * LONGEST_VALUE, 2 * LONGEST_VALUE


def how_to_install(extra: str) -> str:
    """Return the command that installs an optional part of the package.

    >>> how_to_install("data")
    "pip install -e '.[data]' in the project's directory"
    """
    return f"pip install -e '.[{extra}]' in the project's directory"
