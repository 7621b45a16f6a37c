"""Fig. 7, appendix C: final loss over the total decay of a training at several sizes.

The total decay is tau = steps * lr * weight_decay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.paired import paired
from expertp.figures import style
from expertp.figures.labels import LOSS, LossSummary, seeds_label, summarize
from expertp.figures.losses import draw_losses, strip_of_diverged
from expertp.figures.save import render
from expertp.figures.theory.ticks import round_numbers
from expertp.paper.finding import Criteria, Finding, Outcome, Tables, zero_shot_study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = (
    "With independent weight decay, training without decay is about as good as with the best decay at this horizon, "
    "at every size."
)

# Loss that a decay must gain to be a benefit, in nats.
BENEFIT = 0.01
CRITERIA = Criteria(
    paper=f"At every size, the best decay lowers the median loss by at most {BENEFIT} nats against no decay.",
    ours=f"At every size, every decay lowers the loss by at most {BENEFIT} nats against no decay, beyond noise. It "
    "does not hold if a decay lowers it by more, corrected for the number of decays (Bonferroni).",
)
# Factor from the smallest decay down to where the logarithmic axis shows zero.
ZERO_BELOW = 4.0
# Factor between neighbouring sizes at the same tau, so that their bars do not overlap.
BESIDE = 1.05

TAUS = (0.1, 0.3, 1, 3)


def _arms(steps_times_lr: float) -> dict[str, Any]:
    """Return an arm per tau, given the steps of a profile times its learning rate."""
    return {
        f"tau {tau:g}": {"axes": ["width", "experts"], "hps": {"weight_decay": tau / steps_times_lr}} for tau in TAUS
    }


STUDY = zero_shot_study(
    "weight-decay",
    # With the seeds 0 to 2, noise decided. These 8 have the power to decide, and none of them was looked at before.
    cpu={
        "axes": {"width": [64, 256], "experts": [8, 32]},
        "arms": _arms(300 * 2**-6.5),
        "seeds": [3, 4, 5, 6, 7, 8, 9, 10],
    },
    paper={"axes": {"width": [512, 1024], "experts": [4, 16]}, "arms": _arms(2000 / 16)},
)


def decide(tables: Tables) -> Outcome:
    """Compare training without decay with every decay, at every size."""
    table, steps = tables[STUDY.name], tables[STUDY.name].study.train.steps
    sizes = {
        "base" if size.is_base else f"{axis} {size.label_on(axis)}": sorted(
            (steps * arm.hps.lr * arm.hps.weight_decay, table.zero_shot(axis, size, arm)) for arm in table.arms
        )
        for axis in table.axes
        for size in table.sizes(axis)
    }
    measured, is_needless, paper_parts = list[str](), list[bool | None](), list[bool | None]()
    for label, ((_, without), *decayed) in sizes.items():
        tau, losses = min(decayed, key=lambda point: float(np.mean(point[1])))
        paper_parts.append(_is_needless_by_median(without, [losses for _, losses in decayed]))
        if math.inf in (*losses, *without):
            every = math.inf in losses
            is_needless.append(None if every and math.inf in without else every)
            measured.append(f"{label} unknown, {'every decay' if every else 'only training without decay'} diverges")
            continue
        is_needless.append(_is_needless(without, [losses for _, losses in decayed if math.inf not in losses]))
        measured.append(f"{label} {paired(without, losses)} (best tau {tau:.2g})")
    return Outcome(
        parts=is_needless,
        paper_parts=paper_parts,
        number=f"loss without decay minus loss with the best decay: {'; '.join(measured)}",
        why=f"More than {BENEFIT} would be a benefit of decay. Below zero, training without decay is best.",
        drawings=(render("weight-decay", draw, data(sizes)),),
    )


def _is_needless(without: Sequence[float], decayed: Sequence[Sequence[float]]) -> bool | None:
    """Return whether no decay gains more than `BENEFIT`; None where noise decides.

    The best decay of these seeds is not judged alone: what was chosen for its loss gains too much on the same seeds.
    """
    found = [paired(without, losses).is_at_most(BENEFIT, comparisons=len(decayed)) for losses in decayed]
    return False if False in found else None if None in found else True


def _is_needless_by_median(without: Sequence[float], decayed: Sequence[Sequence[float]]) -> bool | None:
    """Return whether the best decay gains at most `BENEFIT` by medians over seeds; None where runs diverge in all."""
    ours, others = summarize(without).median, [summarize(losses).median for losses in decayed]
    known = [median for median in others if median is not None]
    if ours is None:
        return False if known else None
    return not known or ours - min(known) <= BENEFIT


@dataclass(frozen=True)
class WeightDecayData:
    """Losses by label of a size, from small to large, and by increasing tau."""

    sizes: Mapping[str, Mapping[float, LossSummary]]
    shape: tuple[float, float] = (2, 1.3)  # columns and rows of panels

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per size and tau."""
        return [
            {"size": label, "tau": tau, **each.numbers}
            for label, losses in self.sizes.items()
            for tau, each in losses.items()
        ]


def data(sizes: Mapping[str, Iterable[tuple[float, Sequence[float]]]]) -> WeightDecayData:
    """Summarize losses over seeds, given pairs of tau and losses by the label of a size."""
    return WeightDecayData(
        {label: {tau: summarize(losses) for tau, losses in sorted(points)} for label, points in sizes.items()}
    )


def draw(figure: Figure, decay: WeightDecayData) -> None:
    """Draw a line per size, with the losses without decay at the left edge."""
    ax = figure.subplots()
    style.faint_grid(ax)
    ax.set_xscale("log")
    positive = sorted({tau for losses in decay.sizes.values() for tau in losses if tau > 0}) or [1.0]
    zero_at = positive[0] / ZERO_BELOW  # position of zero on the logarithmic axis
    diverged = [label for label, losses in decay.sizes.items() if any(each.diverged for each in losses.values())]
    for place, (label, losses) in enumerate(decay.sizes.items()):
        look: dict[str, Any] = {
            "level": diverged.index(label) if label in diverged else 0,
            "color": style.size_colour(place, len(decay.sizes)),
            "marker": style.marker(place),
        }
        beside = BESIDE ** (place - (len(decay.sizes) - 1) / 2)
        # Zero is not on a logarithmic axis: no line leads to it.
        zero = [each for tau, each in losses.items() if tau == 0]
        draw_losses(ax, [zero_at * beside] * len(zero), zero, linestyle="none", **look)
        rest = {tau * beside: each for tau, each in losses.items() if tau > 0}
        draw_losses(ax, list(rest), list(rest.values()), label=label, **look)
    _tau_ticks(ax, positive, zero_at if any(0 in losses for losses in decay.sizes.values()) else None)
    if diverged:
        strip_of_diverged([ax], len(diverged))
    runs = [each.runs for losses in decay.sizes.values() for each in losses.values() if each.runs]
    ax.set_xlabel(f"τ = steps × learning rate × weight decay ({seeds_label(runs)})")
    ax.set_ylabel(LOSS)
    style.legend_above(ax)


def _tau_ticks(ax: Axes, positive: Sequence[float], zero_at: float | None) -> None:
    """Label the axis with round numbers, and with zero at the left edge behind a dotted line."""
    from matplotlib.ticker import NullLocator

    ticks = {tick: f"{tick:g}" for tick in round_numbers(0.99 * positive[0], 1.01 * positive[-1])}
    if zero_at is not None:
        ticks = {zero_at: "0", **ticks}
        ax.axvline(zero_at * ZERO_BELOW**0.5, color=style.INK, alpha=0.5, linewidth=1, linestyle=(0, (1, 1.5)))
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim((zero_at or positive[0]) / 1.6, positive[-1] * 1.6)


FINDING = Finding("weight-decay", "Fig. 7, appendix C", CLAIM, CRITERIA, (STUDY,), decide)
