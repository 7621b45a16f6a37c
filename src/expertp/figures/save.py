"""Drawings as bytes: the same numbers always give the same bytes.

A figure leaves three files: NAME.svg, NAME.png and NAME.csv with the numbers in it. For a page the SVG is put inline.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from expertp.figures.style import INK, RC, new_figure
from expertp.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
_Data = TypeVar("_Data", bound="Drawable")
# Whatever would change with the day or the version; all else in a file comes from the numbers.
NO_METADATA = {"Date": None, "Creator": None}
PNG_DPI = 144


@dataclass(frozen=True)
class Drawing:
    """One figure in all its forms."""

    name: str
    svg: str
    png: bytes
    csv: str

    def write(self, folder: Path) -> None:
        """Write the three files."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{self.name}.svg", self.svg.encode())
        write_atomically(folder / f"{self.name}.png", self.png)
        write_atomically(folder / f"{self.name}.csv", self.csv.encode())

    def inline(self, title: str, description: str) -> str:
        """Return the SVG as an element of a page: sized by the page, in its ink and font, and readable aloud."""
        return inline_svg(self.svg, self.name, title, description)


class Drawable(Protocol):
    """The numbers of a figure."""

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows of panels."""
        ...

    def rows(self) -> Sequence[Row]:
        """Return what the CSV holds."""
        ...


def render(name: str, draw: Callable[[Figure, _Data], None], data: _Data) -> Drawing:
    """Draw a figure, given the `draw` of its module."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with mpl.rc_context(RC):
        figure = new_figure(*data.shape)
        draw(figure, data)
        FigureCanvasAgg(figure)
        _lay_out(figure)
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata=NO_METADATA)
        figure.savefig(png, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    return Drawing(file_name(name), _tidy(svg.getvalue()), png.getvalue(), to_csv(data.rows()))


def file_name(text: str) -> str:
    """Return a text as a name that files and links can have.

    >>> file_name("contrast-lr=1/64 init_std=1/16")
    'contrast-lr-1-64-init_std-1-16'
    """
    return re.sub(r"[^\w.-]+", "-", text)


def _lay_out(figure: Figure) -> None:
    """Find the layout once for both files: it takes as long as drawing."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def to_csv(rows: Iterable[Row]) -> str:
    """Return rows as a table; columns are those of the first row, and nothing stands where there is no number.

    >>> to_csv([{"size": 64, "loss": 2.5}, {"size": 128, "loss": None}])
    'size,loss\\n64,2.5\\n128,\\n'
    """
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["nothing"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.7g}" if isinstance(value, float) else value


def _tidy(svg: str) -> str:
    """Drop the XML prologue, and the font that only matplotlib has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"(font(?:-family)?: [^;\"]*?)'DejaVu Sans'[^;\"]*", r"\1system-ui, sans-serif", svg)
    return re.sub(r"\s+<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def inline_svg(svg: str, name: str, title: str, description: str) -> str:
    """Return an SVG for a page that has others: own ids, the page's text colour, a title and a description."""
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    # matplotlib's style sheet would be that of the whole page.
    svg = re.sub(r"<style type=\"text/css\">.*?</style>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor")
    head, body = svg.split(">", 1)
    view = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    assert view is not None, "matplotlib always writes one"
    # Points to pixels: 96 a inch, the browser's own.
    width = round(float(view[1]) * 96 / 72)
    opening = (
        f'<svg viewBox="{view[0][9:-1]}" style="width:{width}px;stroke-linejoin:round" role="img" '
        f'aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    )
    return opening + body.strip()
