"""Fig. 6, appendix B: how many of a token's experts one update of the expert biases exchanges. Nothing is trained.

Router logits, expert biases and their update are random. With a learning rate of the biases that is the same at every
size, the exchanged share depends on sparsity and hardly on the number of experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from expertp.figures import style
from expertp.figures.save import render
from expertp.paper.finding import Criteria, Finding, Outcome, Tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = (
    "With a constant learning rate of the expert biases, one update exchanges the same share of active experts at "
    "every number of experts."
)

KAPPAS = (Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 16))
COUNTS = (8, 16, 32, 64, 128, 256, 512)
LOGIT_STD, BIAS_RANGE, UPDATE_RANGE = 0.02, 0.05, 0.01
N_TESTS = 20_000
# Largest relative change of the share at the last doubling of the number of experts.
LEVEL = 0.02
# With fewer active experts, the share takes few values and is not comparable.
ENOUGH_ACTIVE = 4
# Largest share divided by the smallest up to which a curve is flat to the eye.
FLAT = 1.1
CRITERIA = Criteria(
    paper=f"At every sparsity, the curve is flat from {ENOUGH_ACTIVE} active experts on: the largest share is at most "
    f"{FLAT:g} times the smallest.",
    ours=f"At every sparsity, the share changes by at most {LEVEL:.0%} at the last doubling of the number of experts.",
)
# Scores that are computed at a time, so that they fit into the processor's cache.
BATCH = 2**18


def decide(_: Tables) -> Outcome:
    """Simulate all sparsities and numbers of experts, and judge the change at the last doubling."""
    shown = data(n_tests=N_TESTS)
    changes = {kappa: line[-1].share / line[-2].share - 1 for kappa, line in shown.lines.items()}
    n_exp = max(each.n_exp for line in shown.lines.values() for each in line)
    shares = ", ".join(
        f"{shown.lines[kappa][-1].share:.1%} ({change:+.1%}) at kappa {kappa}" for kappa, change in changes.items()
    )
    ratios = ", ".join(f"{ratio:.2f} at kappa {kappa}" for kappa, ratio in spread(shown).items())
    return Outcome(
        parts=[abs(change) <= LEVEL for change in changes.values()],
        paper_parts=[ratio <= FLAT for ratio in spread(shown).values()],
        number=f"share of a token's experts that one update exchanges with {n_exp} experts (and its change at the last "
        f"doubling of experts): {shares}",
        why=f"The change must be at most {LEVEL:.0%}. With {ENOUGH_ACTIVE} or more active experts, the largest share "
        f"divided by the smallest is {ratios}.",
        drawings=(render("bias-shift", draw, shown),),
    )


@dataclass(frozen=True)
class Shift:
    """Share of a token's experts that an update exchanges: mean over tests, and its standard error."""

    n_exp: int
    n_act: int
    share: float
    error: float


@dataclass(frozen=True)
class BiasShiftData:
    """Shifts by sparsity, in the order of the number of experts."""

    lines: Mapping[Fraction, Sequence[Shift]]
    n_tests: int
    shape: tuple[float, float] = (1, 1.2)  # columns and rows of panels

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per sparsity and number of experts."""
        return [
            {
                "kappa": str(kappa),
                "n_exp": each.n_exp,
                "n_act": each.n_act,
                "share_exchanged": each.share,
                "standard_error": each.error,
                "tests": self.n_tests,
            }
            for kappa, line in self.lines.items()
            for each in line
        ]


def data(
    kappas: Sequence[Fraction] = KAPPAS, counts: Sequence[int] = COUNTS, n_tests: int = 2000, seed: int = 0
) -> BiasShiftData:
    """Simulate every sparsity at each number of experts that gives a whole number of active experts."""
    lines = {
        kappa: [_shift(n_exp, int(kappa * n_exp), n_tests, seed) for n_exp in counts if n_exp % kappa.denominator == 0]
        for kappa in kappas
    }
    return BiasShiftData(lines, n_tests)


def _shift(n_exp: int, n_act: int, n_tests: int, seed: int) -> Shift:
    # One generator per point: its result does not depend on the other points.
    rng = np.random.default_rng([seed, n_exp, n_act])
    size = max(1, BATCH // n_exp)
    shares = np.concatenate(
        [_exchanged(rng, n_exp, n_act, min(size, n_tests - done)) for done in range(0, n_tests, size)]
    )
    return Shift(n_exp, n_act, float(shares.mean()), float(shares.std(ddof=1)) / math.sqrt(n_tests))


def _exchanged(rng: np.random.Generator, n_exp: int, n_act: int, n_tests: int) -> NDArray[np.float64]:
    """Return the exchanged share of experts, per test."""
    logits_TE = LOGIT_STD * rng.standard_normal((n_tests, n_exp))
    scores_TE = 1 / (1 + np.exp(-logits_TE)) + BIAS_RANGE * rng.random((n_tests, n_exp))
    updated_TE = scores_TE + UPDATE_RANGE * rng.random((n_tests, n_exp))
    is_chosen, stays_chosen = (
        each_TE >= np.partition(each_TE, -n_act, axis=1)[:, -n_act, None] for each_TE in (scores_TE, updated_TE)
    )
    shares_T: NDArray[np.float64] = 1 - (is_chosen & stays_chosen).sum(1) / n_act
    return shares_T


def spread(found: BiasShiftData) -> dict[Fraction, float]:
    """Return the largest share divided by the smallest, per sparsity, over numbers of experts with 4 or more active.

    1 where the share never changes; inf where only the smallest is zero.
    """
    ratios = {}
    for kappa, line in found.lines.items():
        shares = [each.share for each in line if each.n_act >= ENOUGH_ACTIVE]
        if len(shares) > 1:
            low, high = min(shares), max(shares)
            ratios[kappa] = 1.0 if low == high else math.inf if low == 0 else high / low
    return ratios


def draw(figure: Figure, found: BiasShiftData) -> None:
    """Draw a line per sparsity; points with few active experts are hollow."""
    from matplotlib.ticker import NullLocator

    ax = figure.subplots()
    style.faint_grid(ax)
    ax.set_xscale("log", base=2)
    for place, (kappa, line) in enumerate(found.lines.items()):
        colour, marker = style.size_colour(place, len(found.lines)), style.marker(place)
        ax.errorbar(
            [each.n_exp for each in line], [each.share for each in line], [each.error for each in line], color=colour,
            capsize=2, elinewidth=1, linewidth=1.3,
        )  # fmt: skip
        ax.plot([], [], color=colour, marker=marker, label=f"κ = {kappa}")
        for each in line:
            fill = "full" if each.n_act >= ENOUGH_ACTIVE else "none"
            ax.plot([each.n_exp], [each.share], marker=marker, fillstyle=fill, color=colour)
    shifts = [each for line in found.lines.values() for each in line]
    counts = sorted({each.n_exp for each in shifts})
    ax.set_xticks(counts, [str(each) for each in counts])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylim(0, 1.12 * max(0.01, *(each.share for each in shifts)))
    style.percent_ticks(ax)
    ax.set_xlabel(
        f"experts (n_exp); hollow: fewer than {ENOUGH_ACTIVE} active\n"
        f"mean ± standard error of n = {found.n_tests} tokens"
    )
    ax.set_ylabel("a token's experts that\none update exchanges")
    style.legend_above(ax)


FINDING = Finding("bias-shift", "Fig. 6, appendix B", CLAIM, CRITERIA, (), decide)
