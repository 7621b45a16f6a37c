"""Tables of studies with losses and training records that are made up to deserve an answer; nothing is trained."""

import csv
import io
import math

from expertp.figures.save import render
from expertp.figures.style import new_figure
from expertp.study.cells import expand, scale_of, unique_runs
from expertp.study.load import build_study
from expertp.study.table import Result, StudyTable
from expertp.training.records import StepMetrics

INF, NAN = math.inf, math.nan
HOLDS, NOT, UNSURE = "HOLDS", "DOES NOT HOLD AT THIS SCALE", "INCONCLUSIVE"
STEPS, BATCH = 8, 128
BASE = {"n_embd": 32, "d_head": 16, "n_layer": 2, "n_exp": 4, "n_act": 1, "vocab_size": 64, "context": 16}
LR = {"sweep": ["log2_lr"]}
AT_CENTRE = {"grids": {"log2_lr": [-7]}, "verdict": None}


def study(name="study", **changes):
    tree = {
        "name": name,
        "base": BASE,
        "hps": {"lr": 2.0**-7, "init_std": 2.0**-4},
        "train": {"data": "none", "steps": STEPS, "batch_tokens": BATCH, "eval_every": 2},
        "grids": {"log2_lr": [-10, -9, -8, -7.5, -7, -6.5, -6, -5, -4]},
        "seeds": [0, 1, 2],
        **changes,
    }
    return build_study(tree, f"{name}:")


def both_grids(name="study", **changes):
    grids = {"log2_lr": [-9, -8, -7.5, -7, -6.5, -6, -5], "log2_init_std": [-6, -5, -4.5, -4, -3.5, -3, -2]}
    return study(name, **{"axes": {"width": [32, 64, 128]}, "grids": grids, **changes})


def table(spec, loss=lambda _: 3.0, records=lambda _: []):
    """Return a study all of whose runs have ended: with a loss, or diverged where it is infinite."""
    runs = {str(place): run for place, run in enumerate(unique_runs(expand(spec)))}
    results = [
        Result(run, identity, "diverged" if math.isinf(loss(run)) else "finished", val_loss=loss(run))
        for identity, run in runs.items()
    ]
    return StudyTable.join(spec, results, lambda identity: records(runs[identity]))


def log2_lr(run):
    return math.log2(run.hps.lr)


def doublings(run):
    return math.log2(scale_of(run.model, run.base))


def valley(run, lr=-7.0, init=-4.0, lr_drift=0.0, init_drift=0.0):
    """Return a loss with a known optimum; a seed shifts all losses equally, and there is no noise."""
    away_lr = log2_lr(run) - lr - lr_drift * doublings(run)
    away_init = math.log2(run.hps.init_std) - init - init_drift * doublings(run)
    return 3 - 0.1 * doublings(run) + 0.04 * (away_lr**2 + away_init**2) + 0.001 * run.train.seed


def read(outcome):
    return outcome.answer, outcome.number, outcome.why


def loads(deviations):
    return [
        StepMetrics(step=step, loss=3.0, max_load_deviation=(0.0, deviation), dead_experts=(0, 0))
        for step, deviation in enumerate(deviations, 1)
    ]


def falling(off=0.0, until=STEPS):
    """Return records of a loss from 6 to 2, higher by a share of itself; the run diverges after step `until`."""
    losses = [(6 - 4 * place / (STEPS - 1)) * (1 + off) for place in range(STEPS)]
    return [
        StepMetrics(step=step, loss=loss if step <= until else NAN)
        for step, loss in enumerate(losses[: until + 1], 1)
    ]  # fmt: skip


def panels(draw, shown):
    figure = new_figure(*shown.shape)
    draw(figure, shown)
    return figure.axes


def check_drawing(draw, make, n_panels, words):
    """Check that a figure has its panels and words, and has the same bytes each time."""
    shown = make()
    assert len(panels(draw, shown)) == n_panels
    first, second = (render("figure", draw, each) for each in (shown, make()))
    assert first == second
    assert [word for word in words if word not in first.svg] == []
    assert first.png.startswith(b"\x89PNG")
    assert len(list(csv.DictReader(io.StringIO(first.csv)))) == len(shown.rows())
    assert "http" not in first.inline("title", "description")
