"""judge(table): do the base's hyperparameters hold at larger sizes? The verdicts of a study, in all its arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from expertp.analysis.arms import curves_of_arm, judge_arm
from expertp.analysis.curve_fit import pooled_noise
from expertp.analysis.horizon import horizon_drift
from expertp.analysis.judging import judge_curves, tail_of
from expertp.analysis.verdict import Judgement, Power, StudyVerdict, Verdict
from expertp.study.table import StudyTable


def judge(table: StudyTable) -> StudyVerdict:
    """Return whether each hyperparameter transfers along each axis, in the study's own arm and in others.

    Args:
        table: the study's cells with their results, from `run_study` or `StudyDirectory.table`.

    Returns:
        One `Verdict` per axis and hyperparameter that is swept on it, and those of other arms.

    >>> import math
    >>> from expertp.study.table import Result
    >>> from expertp.study.cells import expand
    >>> from expertp.study.load import build_study
    >>> study = build_study({
    ...     "name": "example", "base": {"n_embd": 64, "n_layer": 2, "n_exp": 4}, "hps": {"lr": 2**-7},
    ...     "train": {"data": "tokens", "steps": 100, "batch_tokens": 1024},
    ...     "axes": {"width": {"sizes": [64, 128], "sweep": ["log2_lr"]}}, "grids": {"log2_lr": [-9, -8, -7, -6, -5]},
    ... }, "example:")
    >>> def loss(run):
    ...     return 3 + 0.05 * (math.log2(run.hps.lr) + 7) ** 2 + 1e-4 * run.train.seed ** math.log2(run.hps.lr + 2)
    >>> results = [Result(cell.run, "", "finished", val_loss=loss(cell.run)) for cell in expand(study)]
    >>> [(each.axis, each.hp, each.conclusion) for each in judge(StudyTable.join(study, results)).axes]
    [('width', 'log2_lr', 'TRANSFERS')]
    """
    statuses = [result.status for result in table.results]
    table = table.at_complete_looks()
    rule, own = table.study.verdict, table.own
    swept = curves_of_arm(table, own)
    noise = pooled_noise([each for found in swept.values() for each in found])
    verdicts = {
        (axis, hp): judge_curves(found, rule, noise, tail=tail_of(table.study, axis, hp))
        for (axis, hp), found in swept.items()
        if len(found) > 1 or len(table.sizes(axis)) == 1  # an axis may have zero-shot runs only
    }
    by_axis = {axis: verdict for (axis, _), verdict in reversed(verdicts.items())}  # the first of each axis
    others = tuple(each for arm in table.arms if arm != own for each in judge_arm(table, arm, by_axis))
    return StudyVerdict(
        study=table.study.name,
        axes=tuple(replace(each, power=_power(table, each, others)) for each in verdicts.values()),
        others=others,
        horizon=horizon_drift(table),
        diverged=statuses.count("diverged"),
        stopped=statuses.count("stopped"),
        failed=statuses.count("failed") + statuses.count("damaged"),
        missing=statuses.count("missing") + statuses.count("unfinished"),
    )


def _power(table: StudyTable, verdict: Verdict, others: Sequence[Judgement]) -> Power:
    """Return whether a control of an axis fails on it."""
    controls = {name for name, spec in table.study.arms.items() if verdict.axis in spec.control}
    found = [
        each
        for each in others
        if each.arm.name in controls and each.axis == verdict.axis and each.hp in (None, verdict.hp)
    ]
    if not found:
        return "no control"
    return "control fails" if any(each.conclusion == "FAILS" for each in found) else "NO POWER"
