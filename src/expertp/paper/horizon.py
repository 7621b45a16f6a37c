"""Fig. 14, appendix D.3: from the base on a short horizon to a larger model on a longer one, with a cosine schedule.

On cpu, three times the horizon. In the paper, the base at 1B tokens and GPT2-small at 2.5B.

Criterion: as in transfer_quarter, over two curves per hyperparameter: the base on the short horizon (from
transfer_quarter) and the larger model on the long one.
"""

from dataclasses import replace

from expertp.analysis.curves import Curve, curve
from expertp.analysis.judging import judge_curves
from expertp.figures import curves
from expertp.figures.labels import HP_SHORT
from expertp.figures.save import render
from expertp.paper import transfer_quarter
from expertp.paper.finding import Finding, Outcome, PaperStudy, Tables
from expertp.paper.transfer import transfer_outcome
from expertp.study.cells import swept_on
from expertp.study.spec import HP
from expertp.study.table import StudyTable

CLAIM = "The optima of a short horizon hold for a larger model on a longer horizon with a cosine schedule."

STUDY = PaperStudy(
    "horizon",
    cpu={
        "train": {"steps": 900, "schedule": "cosine", "eval_every": 900},
        "joint": {"larger": {"models": [{"n_embd": 128, "n_layer": 4, "alpha_ffn": 4}]}},
        "grids": {"log2_lr": [-10, -9, -8, -7, -6], "log2_init_std": [-6, -5, -4, -3]},
        "seeds": [0, 1, 2],
    },
    paper={
        "train": {"steps": 5000, "schedule": "cosine", "eval_every": 5000},
        "joint": {"small": {"models": [{"n_embd": 768, "n_layer": 12, "alpha_ffn": 4}]}},
    },
)


def decide(tables: Tables) -> Outcome:
    """Judge the larger model on the long horizon by the base's optimum on the short one."""
    short, long = tables[transfer_quarter.STUDY.name], tables[STUDY.name]
    (axis,) = long.axes
    verdicts, shifts, drawn = [], [], {}
    for hp in swept_on(long.study, axis):
        base, target = _curves(short, long, axis, hp)
        found = judge_curves([replace(base, axis=axis), target], long.study.verdict)
        verdicts.append(found)
        labels = {f"base, {short.study.train.steps} steps": base, f"{axis}, {long.study.train.steps} steps": target}
        drawn[hp] = {label: (each, found.fits.get(each.size)) for label, each in labels.items()}
        if base.size in found.fits and target.size in found.fits:
            shift = found.fits[target.size].optimum.value - found.fits[base.size].optimum.value
            shifts.append(f"{HP_SHORT[hp]} {shift:+.2f}")
    moved = ", ".join(shifts) or "unknown"
    prefix = f"optimum of `{axis}` on the long horizon minus the base's on the short one, in octaves: {moved}; "
    return transfer_outcome(verdicts, render(STUDY.name, curves.draw, curves.named_data(axis, drawn)), prefix)


def _curves(short: StudyTable, long: StudyTable, axis: str, hp: HP) -> tuple[Curve, Curve]:
    """Return the curves of the base on the short horizon and of the largest model on the long one."""
    base = curve(short, short.axes[0], short.base(short.axes[0]), short.own, hp)
    target = curve(long, axis, long.sizes(axis)[-1], long.own, hp)
    assert base is not None, f"{short.study.name} sweeps {hp}"
    assert target is not None, f"{long.study.name} sweeps {hp}"
    return base, target


FINDING = Finding("horizon", "Fig. 14, appendix D.3", CLAIM, (transfer_quarter.STUDY, STUDY), decide)
