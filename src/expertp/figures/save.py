"""Figures as bytes: the same numbers always give the same bytes.

A figure has three files: NAME.svg, NAME.png and NAME.csv with its numbers. A page contains the SVG inline.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from expertp.figures.style import INK, RC, Figure, new_figure
from expertp.util.files import write_atomically

Value = str | float | None
Row = Mapping[str, Value]  # one row of a CSV, by column
_Data = TypeVar("_Data", bound="Drawable")
# Without what changes with the date or the version, files depend on the numbers only.
NO_METADATA = {"Date": None, "Creator": None}
PNG_DPI = 144
# Characters of a file name before its ending; a longer one is cut, and a hash keeps it distinct.
LONGEST_NAME = 120
# First element of a stored SVG, so that it can be read on dark pages; an inline SVG has the page's background.
BACKGROUND = '<rect width="100%" height="100%" fill="white"/>'


@dataclass(frozen=True)
class Drawing:
    """One figure in all its formats; `svg` has a white background, `png` is empty where only a page shows it."""

    name: str
    svg: str
    png: bytes
    csv: str

    def write(self, folder: Path) -> None:
        """Write the three files."""
        folder.mkdir(parents=True, exist_ok=True)
        for kind, content in (("svg", self.svg.encode()), ("png", self.png), ("csv", self.csv.encode())):
            write_atomically(folder / f"{self.name}.{kind}", content)

    def inline(self, title: str, description: str) -> str:
        """Return the SVG as an element of a page, in its text colour and font, with a title for screen readers."""
        return inline_svg(self.svg, self.name, title, description)


@runtime_checkable
class Drawable(Protocol):
    """The numbers of a figure."""

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows of panels."""
        ...

    def rows(self) -> Sequence[Row]:
        """Return the rows of the CSV."""
        ...


class FigureData(ABC):
    """Base of the numbers of a figure. By default, a figure has one column per axis of a study.

    Attributes:
        columns: columns of the CSV.
        height: height of the figure, in panels.
        axes: the axes.
    """

    columns: ClassVar[Sequence[str]]
    height: ClassVar[float] = 1.0
    axes: tuple[str, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows of panels."""
        return len(self.axes), self.height

    @abstractmethod
    def records(self) -> Iterator[Sequence[Value]]:
        """Return the rows of the CSV as tuples with the values of all columns."""

    def rows(self) -> list[Row]:
        """Return the rows of the CSV."""
        return [dict(zip(self.columns, values, strict=True)) for values in self.records()]


def render(name: str, draw: Callable[[Figure, _Data], None], data: _Data, has_png: bool = True) -> Drawing:
    """Draw a figure with the `draw` of its module; without its PNG, it takes about two thirds of the time."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with mpl.rc_context(RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # in the PNG only: an SVG holds the text
        figure = new_figure(*data.shape)
        draw(figure, data)
        FigureCanvasAgg(figure)
        # The layout is computed once for both files: it takes as long as drawing.
        if engine := figure.get_layout_engine():
            engine.execute(figure)
            figure.set_layout_engine("none")
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata=NO_METADATA)
        if has_png:
            figure.savefig(png, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    return Drawing(file_name(name), _tidy(svg.getvalue()), png.getvalue(), to_csv(data.rows()))


def file_name(text: str) -> str:
    """Return a text as a valid name of files and of elements of a page; different texts have different names.

    >>> file_name("curves-fan_in_down"), file_name("arm-lr 1/64")
    ('curves-fan_in_down', 'arm-lr=201=2F64')
    """
    name = re.sub(r"[^A-Za-z0-9._-]", lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), text)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME // 2]}=={hashlib.sha256(text.encode()).hexdigest()[:16]}"


def to_csv(rows: Iterable[Row]) -> str:
    """Return rows as CSV text; the columns are those of the first row, and None and nan are empty fields.

    >>> to_csv([{"size": 64, "loss": 2.5}, {"size": 128, "loss": None}])
    'size,loss\\n64,2.5\\n128,\\n'
    """
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["nothing"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _field(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _field(value: Value) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.7g}"
    return "" if value is None else str(value)


def _tidy(svg: str) -> str:
    """Drop the XML prologue and metadata, replace the font that comes with matplotlib, and add a background."""
    head, body = svg[svg.index("<svg") :].split(">", 1)
    svg = f"{head}>{BACKGROUND}{body}"
    svg = re.sub(r"(font(?:-family)?: [^;\"]*?)'DejaVu Sans'[^;\"]*", r"\1system-ui, sans-serif", svg)
    return re.sub(r"\s+<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def inline_svg(svg: str, name: str, title: str, description: str) -> str:
    """Return an SVG for a page with several: with its own ids, the page's text colour, a title and a description."""
    svg = svg[svg.index("<svg") :].replace(BACKGROUND, "")
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    # matplotlib's style sheet would apply to the whole page.
    svg = re.sub(r"<style type=\"text/css\">.*?</style>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor")
    head, body = svg.split(">", 1)
    view = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    if view is None:
        raise ValueError("an SVG has no viewBox")
    # Points to CSS pixels, 96 per inch.
    width = round(float(view[1]) * 96 / 72)
    opening = (
        f'<svg viewBox="{view[0][9:-1]}" style="width:{width}px;stroke-linejoin:round" role="img" '
        f'aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    )
    return opening + body.strip()
