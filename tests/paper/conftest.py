import pytest

from expertp.figures.save import Drawing, render
from expertp.paper import curves_in_time, settings, transfers


@pytest.fixture(autouse=True)
def drawings(monkeypatch):
    """Draw nothing, which takes longer than all else; return what draws again."""

    def set_render(function):
        for module in (transfers, curves_in_time, settings):
            monkeypatch.setattr(module, "render", function)

    set_render(lambda name, _draw, _data: Drawing(name, "", b"", ""))
    return lambda: set_render(render)
