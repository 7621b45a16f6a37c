import math

import pytest

from expertp.analysis.paired import PairedDifference
from expertp.figures import descent
from expertp.figures.save import render
from expertp.search.tune import Outcome, Trial
from expertp.spec import BaseHPs

HPS = BaseHPs(lr=2**-7)
EVEN = Outcome((3.0, 3.1, 3.2), (0.05, 0.06, 0.07))
LOST = Outcome((3.0, math.inf, 3.2), (0.05, math.nan, 0.07))


def trial(coordinate, value, factor, decision="left", outcome=EVEN, mean=0.01):
    return Trial(coordinate, value, factor, HPS, outcome, None, PairedDifference(mean, 0.002, 3), decision, "so it is")


PATH = [
    Trial("", math.nan, 1.0, HPS, EVEN, LOST, decision="taken", why="start"),
    trial("lr", 2**-8, 0.5, "taken", mean=-0.2),
    trial("lr", 2**-6, 2.0, "unstable", LOST, math.nan),
    trial("lr", 2**-9, 0.5),
    trial("router_lr", 0.25, 0.25),
    trial("router_lr", 4.0, 4.0),
    trial("lr", 2**-9, 0.5),
    trial("lr", 2**-7, 2.0),
]


def test_a_pass_begins_where_a_coordinate_comes_again():
    shown = descent.data(PATH)
    assert [[each.value for each in trials] for trials in shown.passes] == [
        [2**-8, 2**-6, 2**-9, 0.25, 4.0],
        [2**-9, 2**-7],
    ]
    assert shown.coordinates == ["lr", "router_lr"]


def test_every_candidate_has_a_row_and_what_is_unknown_is_empty():
    rows = descent.data(PATH).rows()
    assert [row["pass"] for row in rows] == [0, 1, 1, 1, 1, 1, 2, 2]
    assert rows[0]["diverged_above"] == 1
    assert rows[1]["verdict"] == "taken"
    assert (rows[2]["loss"], rows[2]["change"], rows[2]["diverged"]) == (None, None, 1)
    assert rows[2]["load"] == pytest.approx(0.06)
    assert rows[4]["load_above"] is None


@pytest.mark.heavy
@pytest.mark.parametrize("path", [PATH, PATH[:6], PATH[:1]])
def test_a_path_can_be_drawn(path):
    drawing = render("path", descent.draw, descent.data(path))
    words = ("change of loss", "n = 3 seeds", "max |Load − κ|")
    assert [word for word in words if word not in drawing.svg] == []
    if len(path) > 1:
        assert "1/256" in drawing.svg
        assert all(word in drawing.svg for word in ("taken", "no gain", "less stable", "router_lr"))
