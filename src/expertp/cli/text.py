"""Text output shared by the verbs."""

import io
import sys
from collections.abc import Sequence

from expertp.plan import Multipliers
from expertp.spec import ModelSpec

# Console width, in characters, that no table reaches.
UNLIMITED = 10**6


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows of cells, the first of which is the header, as a table in plain text.

    Cells wrap only where standard output is a terminal that is too narrow.

    >>> print(table([("group", "lr"), ("router", "0.1")]))
    group   lr
    -----------
    router  0.1
    """
    # Imported here: verbs without a table start faster.
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table

    header, *body = rows
    rule = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    grid = Table(box=rule, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(header):
        grid.add_column(name, overflow="fold", no_wrap=place == 0)
    for row in body:
        grid.add_row(*row)
    width = None if sys.stdout.isatty() else UNLIMITED
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False, color_system=None)
    with console.capture() as text:
        console.print(grid)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


columns = table


def size(model: ModelSpec) -> str:
    """Return a short name of a model's size.

    >>> size(ModelSpec(n_embd=64, n_layer=2, n_exp=4, n_act=1))
    'N64 L2 E4A1 a1'
    """
    ffn = f"E{model.n_exp}A{model.n_act}" if model.ffn == "moe" else "dense"
    gate = " softmax" if model.gate == "softmax" and model.ffn == "moe" else ""
    return f"N{model.n_embd} L{model.n_layer} {ffn} a{model.alpha_ffn:g}{gate}"


def describe_multipliers(multipliers: Multipliers) -> str:
    """Return the multipliers as text.

    >>> describe_multipliers(Multipliers(width=2, depth=1, experts=4, alpha=0.5))
    'm_N 2, m_L 1, m_E 4, m_a 0.5'
    """
    m = multipliers
    return f"m_N {m.width:g}, m_L {m.depth:g}, m_E {m.experts:g}, m_a {m.alpha:g}"
