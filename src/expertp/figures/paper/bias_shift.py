"""How many of a token's experts one update of the expert biases exchanges, against the number of experts.

Activations are random: with a learning rate of biases that is the same at every size, the share that is exchanged
depends on sparsity and hardly on how many experts there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from expertp.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KAPPAS = (Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 16))
COUNTS = (8, 16, 32, 64, 128, 256, 512)
LOGIT_STD, BIAS_RANGE, UPDATE_RANGE = 0.02, 0.05, 0.01
# With fewer active experts the share has few values, and the largest of a handful lie unlike a quantile.
ENOUGH_ACTIVE = 4
# Scores at a time: what a processor's cache holds, whatever the number of tests.
BATCH = 2**18


@dataclass(frozen=True)
class Shift:
    """The share of a token's experts that an update exchanges, mean over tests, with its standard error."""

    kappa: Fraction
    n_exp: int
    n_act: int
    share: float
    error: float


@dataclass(frozen=True)
class BiasShiftData:
    """All sparsities and numbers of experts."""

    shifts: tuple[Shift, ...]
    n_tests: int

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return 1, 1.2

    @property
    def kappas(self) -> list[Fraction]:
        """The sparsities, in order."""
        return list(dict.fromkeys(each.kappa for each in self.shifts))

    def of(self, kappa: Fraction) -> list[Shift]:
        """Return the line of one sparsity."""
        return [each for each in self.shifts if each.kappa == kappa]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per sparsity and number of experts."""
        return [
            {
                "kappa": str(each.kappa),
                "n_exp": each.n_exp,
                "n_act": each.n_act,
                "share_exchanged": each.share,
                "standard_error": each.error,
                "tests": self.n_tests,
            }
            for each in self.shifts
        ]


def data(
    kappas: Sequence[Fraction | float] = KAPPAS, counts: Sequence[int] = COUNTS, n_tests: int = 2000, seed: int = 0
) -> BiasShiftData:
    """Simulate every sparsity with each number of experts of which it is a whole number."""
    exact = [Fraction(kappa).limit_denominator(10_000) for kappa in kappas]
    shifts = [
        _shift(kappa, n_exp, n_tests, seed)
        for kappa in exact
        for n_exp in sorted(counts)
        if (kappa * n_exp).denominator == 1
    ]
    return BiasShiftData(tuple(shifts), n_tests)


def _shift(kappa: Fraction, n_exp: int, n_tests: int, seed: int) -> Shift:
    n_act = int(kappa * n_exp)
    # A generator of its own: a point is the same whichever others are asked for.
    rng = np.random.default_rng([seed, n_exp, n_act])
    size = max(1, BATCH // n_exp)
    shares = np.concatenate(
        [_exchanged(rng, n_exp, n_act, min(size, n_tests - done)) for done in range(0, n_tests, size)]
    )
    error = float(shares.std(ddof=1)) / math.sqrt(n_tests) if n_tests > 1 else math.nan
    return Shift(kappa, n_exp, n_act, float(shares.mean()), error)


def _exchanged(rng: np.random.Generator, n_exp: int, n_act: int, n_tests: int) -> NDArray[np.float64]:
    """Return the share of experts that are exchanged, per test."""
    logits_TE = LOGIT_STD * rng.standard_normal((n_tests, n_exp))
    scores_TE = 1 / (1 + np.exp(-logits_TE)) + BIAS_RANGE * rng.random((n_tests, n_exp))
    updated_TE = scores_TE + UPDATE_RANGE * rng.random((n_tests, n_exp))
    kept_T = (_chosen(scores_TE, n_act) & _chosen(updated_TE, n_act)).sum(1)
    shares_T: NDArray[np.float64] = 1 - kept_T / n_act
    return shares_T


def _chosen(scores_TE: NDArray[np.float64], n_act: int) -> NDArray[np.bool_]:
    """Return which experts have the largest scores, per test."""
    n_exp = scores_TE.shape[1]
    places_TA = np.argpartition(scores_TE, n_exp - n_act, axis=1)[:, n_exp - n_act :]
    chosen_TE = np.zeros(scores_TE.shape, bool)
    np.put_along_axis(chosen_TE, places_TA, True, axis=1)
    return chosen_TE


def spread(found: BiasShiftData) -> dict[Fraction, float]:
    """Return the largest share over the smallest per sparsity, among several numbers of experts with 4 active or more.

    It is 1 where the share never changes, and inf where only some of them exchange nothing.
    """
    ratios = {}
    for kappa in found.kappas:
        shares = [each.share for each in found.of(kappa) if each.n_act >= ENOUGH_ACTIVE]
        if len(shares) > 1:
            low, high = min(shares), max(shares)
            ratios[kappa] = 1.0 if low == high else math.inf if low == 0 else high / low
    return ratios


def draw(figure: Figure, found: BiasShiftData) -> None:
    """Draw a line per sparsity; what has few active experts is hollow."""
    from matplotlib.ticker import NullLocator

    ax = figure.subplots()
    style.faint_grid(ax)
    ax.set_xscale("log", base=2)
    for place, kappa in enumerate(found.kappas):
        line, colour = found.of(kappa), style.size_colour(place, len(found.kappas))
        ax.errorbar(
            [each.n_exp for each in line], [each.share for each in line], [each.error for each in line], color=colour,
            capsize=2, elinewidth=1, linewidth=1.3,
        )  # fmt: skip
        ax.plot([], [], color=colour, marker=style.marker(place), label=f"κ = {kappa}")
        for each in line:
            fill = "full" if each.n_act >= ENOUGH_ACTIVE else "none"
            ax.plot([each.n_exp], [each.share], marker=style.marker(place), fillstyle=fill, color=colour)
    counts = sorted({each.n_exp for each in found.shifts})
    ax.set_xticks(counts)
    ax.set_xticklabels([str(each) for each in counts])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylim(0, 1.12 * max([each.share for each in found.shifts if each.share] + [0.01]))
    style.percent_ticks(ax)
    ax.set_xlabel(
        f"experts (n_exp); hollow: fewer than {ENOUGH_ACTIVE} active\n"
        f"mean ± standard error of n = {found.n_tests} tokens"
    )
    ax.set_ylabel("a token's experts that\none update exchanges")
    style.legend_above(ax)
