"""Fig. 14, appendix D.3: from the base on a short horizon to a larger model on a longer one, with a cosine schedule.

On cpu, three times the horizon. In the paper, the base at 1B tokens and GPT2-small at 2.5B. The base is swept on both
horizons, so that the effect of horizon and schedule is told apart from that of size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from expertp.analysis.curve_fit import CurveFit, fit_curve, pooled_noise
from expertp.analysis.curves import Curve, curve
from expertp.analysis.transfer import judge
from expertp.analysis.verdict import Verdict
from expertp.figures import curves
from expertp.figures.labels import HP_SHORT
from expertp.figures.save import render
from expertp.paper import transfer_quarter
from expertp.paper.finding import Criteria, Finding, Outcome, PaperStudy, Tables
from expertp.paper.transfer import SAME, is_same, transfer_outcome
from expertp.paper.transfer_quarter import AROUND
from expertp.study.table import StudyTable
from expertp.util.statistics import UNKNOWN, Estimate

CLAIM = "The optima of a short horizon hold for a larger model on a longer horizon with a cosine schedule."
CRITERIA = Criteria(
    paper="The best value of the grid of the larger model on the long horizon is that of the base on the short one, to "
    f"{SAME:g} octaves.",
    ours="Size: with base and larger model both on the long horizon and its schedule, where the base was tuned as "
    "well, what zero-shot costs lies within the study's tolerance (TRANSFERS), beyond noise. Horizon: what the short "
    "horizon's values cost the larger model on the long horizon lies within the same tolerance, beyond noise; it does "
    "not hold if it lies beyond.",
)

LONG = {"steps": 900, "schedule": "cosine", "eval_every": 90}
LARGER = {"n_embd": 128, "n_layer": 4}
# The base's best learning rate on the long horizon, from a pilot with the seeds 100 and 101.
LONG_LR = 2**-6

STUDY = PaperStudy(
    "horizon",
    cpu={"train": LONG, "joint": {"larger": {"models": [LARGER]}}, "hps": {"lr": LONG_LR}, "lr_octaves": AROUND},
    paper={
        "train": {"steps": 5000, "schedule": "cosine", "eval_every": 5000},
        "joint": {"small": {"models": [{"n_embd": 768, "n_layer": 12, "alpha_ffn": 4}]}},
    },
    is_adaptive=True,
)
# Draws of the base's fit on the short horizon; those on the long one have the seeds 0 and 1.
SEED_OF_SHORT, SEED_OF_COST = 2, 3


@dataclass(frozen=True)
class _Compared:
    """One hyperparameter: the base's curve on the short horizon, and the verdict on the long one."""

    short: Curve
    fit: CurveFit | None
    verdict: Verdict
    target: Curve

    @property
    def shift(self) -> Estimate:
        """Octaves by which horizon and schedule move the base's optimum."""
        long = self.verdict.base_fit
        return long.shift_from(self.fit) if long and self.fit else UNKNOWN

    @property
    def cost(self) -> Estimate:
        """What the value of the short horizon costs the larger model on the long one; unknown without a fit."""
        noise, at_short = self.verdict.noise, replace(self.target, arm=self.short.arm)
        fit = fit_curve(at_short, noise, seed=SEED_OF_COST)
        return fit.cost_estimate(self.verdict.tail) if fit else UNKNOWN

    @property
    def holds(self) -> bool | None:
        """Whether this cost is within the tolerance of the larger model; None where noise could decide it."""
        if self.verdict.worst is None or not self.cost.is_known:
            return None
        tolerance = self.verdict.worst.tolerance
        return True if self.cost.high <= tolerance else False if self.cost.low > tolerance else None

    @property
    def is_same(self) -> bool:
        """Whether the larger model's best value of the grid is that of the base on the short horizon."""
        has_best = math.isfinite(self.target.medians[self.target.best_place])  # else runs diverge at every value
        return has_best and is_same(self.target.best_value, self.short.best_value)


def decide(tables: Tables) -> Outcome:
    """Judge the larger model by the base on the same horizon, and show how far the horizon moves the base's optimum."""
    short, long = tables[transfer_quarter.STUDY.name], tables[STUDY.name]
    (axis,) = long.axes
    found = {each.hp: _compare(short, long, each) for each in judge(long).axes}
    steps = [each.study.train.steps for each in (short, long)]
    drawn = {hp: _lines(each, axis, steps[0], steps[1]) for hp, each in found.items()}
    shifts = ", ".join(f"{HP_SHORT[hp]} {each.shift:+.2f}" for hp, each in found.items())
    outcome = transfer_outcome(
        {STUDY.name: [each.verdict for each in found.values()]},
        (render(STUDY.name, curves.draw, curves.named_data(axis, drawn)),),
        f"base's optimum at {steps[1]} steps minus that at {steps[0]}, in octaves: {shifts}; ",
    )
    costs = ", ".join(f"{HP_SHORT[hp]} {each.cost:.4f}" for hp, each in found.items())
    return replace(
        outcome,
        parts=[*outcome.parts, *(each.holds for each in found.values())],
        paper_parts=[each.is_same for each in found.values()],
        number=f"{outcome.number}; cost of the short horizon's values at the larger model (nats): {costs}",
    )


def _compare(short: StudyTable, long: StudyTable, verdict: Verdict) -> _Compared:
    base = curve(short, short.axes[0], short.base(short.axes[0]), short.own, verdict.hp)
    target = curve(long, verdict.axis, long.sizes(verdict.axis)[-1], long.own, verdict.hp)
    assert base is not None, f"{short.study.name} sweeps {verdict.hp}"
    assert target is not None, f"{long.study.name} sweeps {verdict.hp}"
    return _Compared(base, fit_curve(base, pooled_noise([base]), seed=SEED_OF_SHORT), verdict, target)


def _lines(each: _Compared, axis: str, short: int, long: int) -> dict[str, tuple[Curve, CurveFit | None]]:
    """Return the curves of the figure by label, the base on the long horizon first: its optimum is the reference."""
    base = each.verdict.base_fit
    target = each.verdict.fits.get(each.target.size)
    lines = {f"base, {long} steps": (base.curve, base)} if base else {}
    return {**lines, f"{axis}, {long} steps": (each.target, target), f"base, {short} steps": (each.short, each.fit)}


FINDING = Finding("horizon", "Fig. 14, appendix D.3", CLAIM, CRITERIA, (transfer_quarter.STUDY, STUDY), decide)
