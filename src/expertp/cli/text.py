"""Text output shared by the verbs."""

import shutil
import textwrap
from collections.abc import Sequence

from expertp.errors import printable
from expertp.plan import Multipliers

# Width of tables, in characters, where standard output is no terminal and COLUMNS is not set.
DEFAULT_WIDTH = 80
GAP = "  "


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows of cells, the first of which is the header, as a table in plain text.

    The table is at most as wide as the terminal; other outputs get 80 columns, or as many as COLUMNS says. Headers wrap
    first, then the widest cells. Where words would have to break, each row becomes a block of lines, one per column. No
    text is left out.

    >>> print(text_table([("group", "lr"), ("router", "0.1")]))
    group   lr
    -----------
    router  0.1
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = _widths(cells, output_width())
    if widths is None:
        return _blocks(cells, output_width())
    header, *body = ([_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)] for row in cells)
    rule = "-" * (sum(widths) + len(GAP) * (len(widths) - 1))
    return "\n".join([*_lines(header, widths), rule, *(line for row in body for line in _lines(row, widths))])


def output_width() -> int:
    """Return the number of characters in a line of standard output."""
    return shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns


def _widths(cells: Sequence[Sequence[str]], most: int) -> list[int] | None:
    """Return the widths of the columns of a table that has at most `most` characters in a line; None: words break."""
    places = range(len(cells[0]))
    most = max(most - len(GAP) * (len(places) - 1), 1)
    natural = [max(len(row[place]) for row in cells) for place in places]
    content = [
        max([_longest_word(cells[0][place]), *(len(row[place]) for row in cells[1:])], default=0) for place in places
    ]
    least = [max(_longest_word(row[place]) for row in cells) for place in places]
    least[0] = content[0]  # names stay whole
    # From the widest layout to the narrowest: whole headers, wrapped headers, wrapped cells.
    for wide, narrow in ((natural, content), (content, least)):
        if sum(narrow) <= most:
            return _shrunk(wide, narrow, most)
    return None


def _blocks(cells: Sequence[Sequence[str]], most: int) -> str:
    """Lay out each row as lines of a header and its cell, with an empty line between rows."""
    header, *body = cells
    widths = [min(max(map(len, header)), most // 2)]
    widths.append(max(most - widths[0] - len(GAP), 1))
    blocks = [
        [line for pair in zip(header, row, strict=True) for line in _lines(list(map(_wrapped, pair, widths)), widths)]
        for row in body
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _shrunk(widths: Sequence[int], least: Sequence[int], most: int) -> list[int]:
    """Return widths reduced to a sum of `most`, the widest first, and none below `least`."""
    widths = list(widths)
    while sum(widths) > most:
        place = max((each for each in range(len(widths)) if widths[each] > least[each]), key=lambda each: widths[each])
        widths[place] -= 1
    return widths


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _wrapped(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width, 1), break_on_hyphens=False)


def _lines(row: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row, given the lines of its cells."""
    height = max(map(len, row), default=0)
    filled = [[*cell, *[""] * (height - len(cell))] for cell in row]
    return [
        GAP.join(cell[line].ljust(width) for cell, width in zip(filled, widths, strict=True)).rstrip()
        for line in range(height)
    ]


def describe_multipliers(multipliers: Multipliers) -> str:
    """Return the multipliers as text.

    >>> describe_multipliers(Multipliers(width=2, depth=1, experts=4, alpha=0.5))
    'm_N 2, m_L 1, m_E 4, m_a 0.5'
    """
    m = multipliers
    return f"m_N {m.width:g}, m_L {m.depth:g}, m_E {m.experts:g}, m_a {m.alpha:g}"
