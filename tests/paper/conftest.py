import sys

import pytest

from expertp.figures.save import Drawing, render
from expertp.paper import catalogue  # imports all findings


@pytest.fixture(autouse=True)
def drawings(monkeypatch):
    """Draw nothing, which takes longer than all else; return a function that switches drawing on."""
    assert catalogue.FINDINGS

    def set_render(function):
        for name, module in list(sys.modules.items()):
            if name.startswith("expertp.paper.") and hasattr(module, "render"):
                monkeypatch.setattr(module, "render", function)

    set_render(lambda name, _draw, _data: Drawing(name, "", b"", ""))
    return lambda: set_render(render)
