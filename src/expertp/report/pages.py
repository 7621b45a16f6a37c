"""Templates to HTML; all pages share their head, style and script (base.html)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def fill(template: str, **values: Any) -> str:
    """Return the HTML of a page; text is escaped, values that the template marks as safe are not."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    """Return the templates; they are compiled once."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("expertp.report", ".")
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters["code"] = code
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # keys keep their order
    return environment


def code(text: str) -> str:
    """Return escaped HTML in which text in `backquotes` is code.

    >>> code("run `a<b` now")
    Markup('run <code>a&lt;b</code> now')
    """
    from markupsafe import Markup, escape

    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )
