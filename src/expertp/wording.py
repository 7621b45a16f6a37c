"""How models, times and large numbers are called, on a terminal and in a report alike."""

import math

from expertp.spec import ModelSpec


def count(number: float) -> str:
    """Write a large number short.

    >>> count(51_445_760), count(2.54e9), count(1.8e12), count(999)
    ('51.4M', '2.54B', '1.8T', '999')
    """
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"


def duration(seconds: float) -> str:
    """Write a time in the two units that matter.

    >>> duration(42), duration(192), duration(7_500)
    ('42 s', '3 min 12 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def with_interval(value: float, ends: tuple[float, float], form: str) -> str:
    """Write a number with its 95% interval, as far as they are known.

    >>> with_interval(0.1, (-0.05, math.nan), "+.2f"), with_interval(math.nan, (0, 1), ".4f")
    ('+0.10 [-0.05, ?]', '-')
    """
    if math.isnan(value):
        return "-"
    low, high = ("?" if math.isnan(end) else f"{end:{form}}" for end in ends)
    return f"{value:{form}} [{low}, {high}]"


def describe(model: ModelSpec) -> str:
    """Say what a model is in one line."""
    counts = model.counts()
    ffn = f"E{model.n_exp}A{model.n_act}" if model.ffn == "moe" else "dense"
    return (
        f"n_embd {model.n_embd}, n_layer {model.n_layer}, {ffn}, alpha_ffn {model.alpha_ffn:g}: "
        f"{count(counts.total)} parameters, {count(counts.active)} active"
    )
