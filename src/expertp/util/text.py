"""Formatting of numbers and times for terminals and reports."""


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

    >>> duration(42), duration(192), duration(7_500)
    ('42 s', '3 min 12 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
