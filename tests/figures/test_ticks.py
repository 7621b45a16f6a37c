"""Labels of ticks do not overlap, in any figure of a study, of a coordinate check and of the theory."""

import itertools
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from runs import write_tokens
from synthetic import study_spec, synthetic_check, write_study

from expertp.analysis.transfer import judge
from expertp.figures import arms, balance, bigger, collapse, coordcheck, cost, curves, drift, expert_shape, scaling
from expertp.figures.style import RC, new_figure
from expertp.figures.theory import error, kernels, loss, router
from expertp.theory.compare import Comparison, compare
from expertp.theory.finite import Size
from expertp.theory.problem import Problem
from expertp.theory.spec import NetworksSpec, SolverSpec

pytestmark = pytest.mark.heavy


def overlapping(draw, data) -> list[str]:
    """Return the pairs of tick labels of a drawn figure that overlap."""
    with mpl.rc_context(RC):
        figure = new_figure(*data.shape)
        draw(figure, data)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        found = []
        for ax in figure.axes:
            for axis in (ax.xaxis, ax.yaxis):
                low, high = sorted(axis.get_view_interval())
                ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
                labels = [tick.label1 for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_visible()]
                labels = [each for each in labels if each.get_text().strip()]
                boxes = [(each.get_text(), each.get_window_extent()) for each in labels]
                for (one, box), (other, second) in itertools.combinations(boxes, 2):
                    width = min(box.x1, second.x1) - max(box.x0, second.x0)
                    height = min(box.y1, second.y1) - max(box.y0, second.y0)
                    if width > 0.5 and height > 0.5:
                        found.append(f"{one} on {other}")
    return found


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A study with many sizes, some of them close together."""
    path = tmp_path_factory.mktemp("ticks") / "study"
    spec = study_spec(
        write_tokens(path.parent / "tokens"),
        axes={
            "width": [32, 48, 64, 80, 96, 112, 128],
            "depth": [2, 3, 4, 5, 6, 7, 8, 16],
            "experts": {"sizes": [4, 8, 12, 16, 20], "sweep": ["log2_lr"]},
            "alpha": [1, 1.25, 1.5, 2, 4],
        },
        arms={"sp": {"axes": ["width", "depth"]}},
        seeds=[0, 1],
    )
    return write_study(path, spec).table()


def drawn(table):
    verdicts = judge(table).axes
    collapsed = collapse.data(table, table.own)
    return {
        "curves": (curves.draw, curves.data(table, verdicts)),
        "arms": (arms.draw, arms.data(table, table.arm("sp"))),
        "drift": (drift.draw, drift.data(table.study, verdicts)),
        "cost": (cost.draw, cost.data(table.study, verdicts)),
        "collapse": (collapse.draw, collapsed),
        "bigger": (bigger.draw, bigger.data(table, collapsed)),
        "balance": (balance.draw, balance.data(table)),
        "scaling": (scaling.draw, scaling.data(table)),
        "expert-shape": (expert_shape.draw, expert_shape.data(table)),
        "coordcheck": (coordcheck.draw, coordcheck.data(*synthetic_check())),
    }


def test_they_do_not_in_the_figures_of_a_study(table):
    assert {name: found for name, each in drawn(table).items() if (found := overlapping(*each))} == {}


SIZES = [
    [Size(8, 4, 4), Size(16, 4, 4)],
    [Size(n, n // 2, n // 2) for n in (32, 36, 40, 48, 64)],
    [Size(32, e, h) for e in (4, 8, 9, 10) for h in (2, 3, 4, 64)],
]


@pytest.mark.parametrize("sizes", SIZES, ids=["two", "near", "many"])
@pytest.mark.parametrize("steps", [4, 30])
def test_they_do_not_in_the_figures_of_the_theory(sizes, steps):
    problem = Problem(P=3, D=4, T=steps)
    solver, networks = SolverSpec(nodes=4, neurons=8, replicates=2), NetworksSpec(sizes=tuple(sizes), seeds=2)
    found: Comparison = compare(problem, solver, networks, kernels=True)
    size = sizes[-1]
    figures = {
        "loss": (loss.draw, loss.data(found)),
        "router": (router.draw, router.data(found)),
        "error": (error.draw, error.data(found)),
        "kernels": (kernels.draw, kernels.data(found.theory, found.networks[size], size)),
    }
    assert {name: each for name, (draw, data) in figures.items() if (each := overlapping(draw, data))} == {}


def test_the_check_sees_an_overlap():
    def draw(figure, _data):
        ax = figure.subplots()
        ax.set_xticks(np.linspace(0, 1, 5), ["a rather long label"] * 5)

    assert len(overlapping(draw, SimpleNamespace(shape=(1, 1)))) == 4
