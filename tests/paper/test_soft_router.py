from types import SimpleNamespace

import pytest
from made_tables import HOLDS, NOT

from expertp.figures.theory import soft_router as figure
from expertp.paper import soft_router
from expertp.theory import soft_router as theory


@pytest.mark.parametrize(
    ("first", "last", "answer", "by_paper"),
    [(0.5, 0.04, HOLDS, HOLDS), (0.5, 0.08, NOT, HOLDS), (0.02, 0.04, NOT, NOT)],
)
def test_soft_routers_come_closer_on_every_way_and_end_close(monkeypatch, first, last, answer, by_paper):
    def comparison(first, last, way):
        return SimpleNamespace(error_of_mean={way.sizes[0]: first, way.sizes[-1]: last}.get)

    distances = [(0.5, 0.01), (first, last), (0.3, 0.02)]
    found = [comparison(*each, way) for each, way in zip(distances, theory.WAYS, strict=True)]
    monkeypatch.setattr(theory, "soft_router", lambda: found)
    monkeypatch.setattr(figure, "data", lambda *_: None)
    decided = soft_router.decide({})
    assert (decided.answer, decided.paper_answer) == (answer, by_paper)
    assert f"{theory.WAYS[1].title}: {first:.1%} to {last:.1%}" in decided.number
