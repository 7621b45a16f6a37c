"""How values look on a terminal, for every verb."""

from collections.abc import Sequence

from expertp.plan import Multipliers
from expertp.spec import ModelSpec


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Align rows of cells, of which the first is the header.

    >>> print(columns([("group", "lr"), ("router", "0.1")]))
    group   lr
    ------  ---
    router  0.1
    """
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    header, *body = rows
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, ["-" * width for width in widths], *body)
    )


def size(model: ModelSpec) -> str:
    """Name a model's size in a few letters.

    >>> size(ModelSpec(n_embd=64, n_layer=2, n_exp=4, n_act=1))
    'N64 L2 E4A1 a1'
    """
    ffn = f"E{model.n_exp}A{model.n_act}" if model.ffn == "moe" else "dense"
    gate = " softmax" if model.gate == "softmax" and model.ffn == "moe" else ""
    return f"N{model.n_embd} L{model.n_layer} {ffn} a{model.alpha_ffn:g}{gate}"


def describe_multipliers(multipliers: Multipliers) -> str:
    """Say how large a model is against its base.

    >>> describe_multipliers(Multipliers(width=2, depth=1, experts=4, alpha=0.5))
    'm_N 2, m_L 1, m_E 4, m_a 0.5'
    """
    m = multipliers
    return f"m_N {m.width:g}, m_L {m.depth:g}, m_E {m.experts:g}, m_a {m.alpha:g}"
