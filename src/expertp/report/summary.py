"""A study in a few sentences: what transfers, what zero-shot costs, and what other arms would have cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from expertp.errors import printable
from expertp.util.statistics import confidence

if TYPE_CHECKING:
    from expertp.analysis.verdict import Conclusion, Judgement, StudyVerdict, Verdict
    from expertp.util.statistics import Estimate

NAMES = {
    "alpha": "expert size",
    "fixed_topk": "experts at fixed top-k",
    "log2_lr": "learning rate",
    "log2_init_std": "init std",
}
# What the conclusion on some axes means, in words.
CLAIMS: dict[Conclusion, str] = {
    "TRANSFERS": "What was tuned at the base holds at the larger sizes along {places}.",
    "FAILS": "What was tuned at the base does not hold along {places}.",
    "UNDECIDED": "Whether it holds along {places} is undecided.",
}


def summarize_study(verdict: StudyVerdict) -> tuple[str, ...]:
    """Return the sentences; none where the study has no verdict."""
    judged = [each for each in verdict.axes if each.conclusion is not None]
    sentences = []
    for conclusion, claim in CLAIMS.items():
        found = [each for each in judged if each.conclusion == conclusion]
        if found:
            sentences.append(f"{conclusion}: {claim.format(places=_listed(_place(each, judged) for each in found))}")
        if found and conclusion == "TRANSFERS":
            sentences.append(_cost(found))
    if blind := [each for each in judged if each.has_no_power]:
        places = _listed(_place(each, judged) for each in blind)
        sentences.append(
            f"NO POWER: The control does not fail along {places}, so the verdicts there do not tell the rules from it."
        )
    return (*sentences, *(sentence for arm in _arms(verdict.others) for sentence in arm))


def describe_horizon(drift: Estimate) -> str:
    """Say how far the base's optimal learning rate moves with longer training; empty if unknown.

    >>> from expertp.util.statistics import Estimate
    >>> describe_horizon(Estimate(-0.5, -0.8, -0.2))
    'Horizon: at the base, the optimal learning rate moves by -0.50 [-0.80, -0.20] octaves per doubling of steps.'
    """
    if not drift.is_known:
        return ""
    return f"Horizon: at the base, the optimal learning rate moves by {drift:+.2f} octaves per doubling of steps."


def _cost(found: Sequence[Verdict]) -> str:
    """Say what zero-shot costs where it transfers, as estimated and at most, beside what the sizes gain."""
    costs = [each.worst for each in found if each.worst is not None]
    bound = max(size.cost.high for each in found for size in each.costs)
    lowest_confidence = confidence(max(each.tail for each in found))
    return (
        f"There, the base's values cost about {_range((each.cost.value for each in costs), 4)} nats more than tuning "
        f"again (at most {bound:.4f}, with {lowest_confidence} confidence); the larger models gain "
        f"{_range((each.gain for each in costs), 3)} nats over the base."
    )


def _range(values: Iterable[float], digits: int) -> str:
    """Write the smallest and the largest of some numbers.

    >>> _range([0.12, 0.3], 2), _range([0.3, 0.3001], 2)
    ('0.12 to 0.30', '0.30')
    """
    shown = [f"{value:.{digits}f}" for value in sorted(values)]
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def _arms(others: Sequence[Judgement]) -> Iterable[list[str]]:
    """Say, arm by arm, where the same values fail, and where another arm is ahead."""
    for name in dict.fromkeys(each.arm.name for each in others):
        mine = [each for each in others if each.arm.name == name and each.worst is not None]
        failed = [f"{_amount(each)} along {_axis(each.axis)}" for each in mine if each.conclusion == "FAILS"]
        ahead = [
            f"{-each.worst.gap.value:.3f} along {_axis(each.axis)}"
            for each in mine
            if each.worst is not None and each.worst.gap.high < 0
        ]
        word, sentences = printable(name), []
        if failed:
            sentences.append(f"FAILS: with {word} instead, the same values cost {_listed(failed)} (nats).")
        if ahead:
            sentences.append(f"{word} is ahead, zero-shot to zero-shot, by {_listed(ahead)} (nats).")
        yield sentences


def _amount(each: Judgement) -> str:
    return f"{each.cost.value:.3f}" if each.cost.value < float("inf") else "divergence"


def _place(verdict: Verdict, judged: Sequence[Verdict]) -> str:
    """Name an axis, with the hyperparameter where several are judged."""
    several = len({each.hp for each in judged}) > 1
    return f"{_axis(verdict.axis)} ({NAMES[verdict.hp]})" if several else _axis(verdict.axis)


def _axis(axis: str) -> str:
    return printable(NAMES.get(axis, axis))


def _listed(words: Iterable[str]) -> str:
    """Join words with commas and `and`.

    >>> _listed(["width"]), _listed(["width", "depth", "experts"])
    ('width', 'width, depth and experts')
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
