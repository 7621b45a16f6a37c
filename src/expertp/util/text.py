"""Formatting of numbers, times and commands for terminals and reports."""

import shlex

from expertp.errors import printable


def count(number: float) -> str:
    """Format a large number with a unit.

    >>> count(51_445_760), count(2.54e9), count(1.8e12), count(999)
    ('51.4M', '2.54B', '1.8T', '999')
    """
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"


def duration(seconds: float) -> str:
    """Format a time with its two largest units.

    >>> duration(42), duration(192), duration(7_500), duration(1e6)
    ('42 s', '3 min 12 s', '2 h 5 min', '11 days 13 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24:,} days {hours % 24} h"


def plural(number: int, noun: str, several: str | None = None) -> str:
    """Return a number with its noun, which is plural unless the number is 1; `several` is an irregular plural.

    >>> plural(1, "run"), plural(0, "run"), plural(1_500, "seed"), plural(2, "axis", "axes")
    ('1 run', '0 runs', '1,500 seeds', '2 axes')
    """
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


def command(*words: object) -> str:
    """Return a command of expertp that a shell runs as printed.

    >>> command("report", "my studies/first")
    "expertp report 'my studies/first'"
    """
    return printable(shlex.join(["expertp", *map(str, words)]))
