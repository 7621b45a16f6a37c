"""Which runs can be stopped early? The rule of adaptive sweeps, replayed on recorded training curves.

    python benchmarks/early_stopping.py [--out docs/results/verdict]

The published tables have training curves of all learning rates and init stds of the base, as means over five steps.
Every value within two octaves of the lowest loss of a curve and seed takes the part of zero-shot in turn, and all
values farther than half an octave from it are compared with it (adaptive sweeps spare all within an octave). A run is a
later winner if its final loss is at most 0.005 nats above the lowest of its curve and seed, otherwise a loser. A winner
takes part in several pairs, one for each value that takes the part of zero-shot: rates are those of pairs, but only
runs can be independent.

Chosen on: the margins are the smallest of a ladder that are at least three times the largest distance by which a later
winner of these studies is behind; they are then tested on all other studies.
"""

import argparse
import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.recorded import RESULTS, WARMUP
from benchmarks.verdict_power import write
from expertp.spec import TrainSpec
from expertp.study.cells import SIZE_FIELDS
from expertp.study.early_stopping import CHECKS, Check, compare_at
from expertp.study.spec import HP, VerdictSpec

# Studies with training curves of whole grids.
STUDIES = (
    *("transfer-quarter", "transfer-twelfth", "constants", "softmax", "joint-scale"),
    *("horizon", "medium-dense", "speedrun-dense"),
)
FEWEST_VALUES = 4
# Octaves from the best value within which values take the part of zero-shot.
REACH = 2.0
# Octaves from the value that takes the part of zero-shot beyond which runs are compared with it.
APART = 0.5
# Margins to choose from, nats, and how far above the largest distance of a later winner they must lie.
LADDER = (0.15, 0.2, 0.3, 0.45, 0.6, 0.9, 1.2)
SAFETY = 3.0


@dataclass(frozen=True)
class Recorded:
    """A recorded run: its identity, final loss, and training losses by step."""

    identity: str
    loss: float
    curve: dict[int, float]


@dataclass(frozen=True)
class RecordedCurve:
    """The runs of one curve and seed by value, log2."""

    arm: str
    hp: HP
    runs: dict[float, Recorded]


@dataclass(frozen=True)
class Case:
    """A run beside another that takes the part of zero-shot.

    Args:
        study: the study.
        run: identity of the run.
        is_winner: whether the run ends with the lowest loss of its curve and seed, or within the tolerance of it.
        ends_below: whether it ends below zero-shot.
        behind: by how much it is behind, nats, by the share of a check.
        train: its training settings.
    """

    study: str
    run: str
    is_winner: bool
    ends_below: bool
    behind: dict[float, float]
    train: TrainSpec

    def stopped_at(self, checks: Sequence[Check]) -> Check | None:
        """Return the check at which the run would be stopped."""
        return next((check for check in checks if self.behind[check.share] > check.margin), None)

    def saved(self, checks: Sequence[Check]) -> float:
        """Return the share of the run's steps that stopping saves."""
        check = self.stopped_at(checks)
        return 0.0 if check is None else 1 - check.step(self.train) / self.train.steps


def recorded_curves(study: str) -> list[RecordedCurve]:
    """Return the curves of a published study whose runs have training curves."""
    losses: dict[str, dict[int, float]] = defaultdict(dict)
    with (RESULTS / f"{study}-metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            losses[row["identity"]][int(row["step"])] = float(row["loss"] or math.nan)
    curves: dict[tuple[str, ...], RecordedCurve] = {}
    slices: tuple[tuple[HP, HP], ...] = (("log2_lr", "log2_init_std"), ("log2_init_std", "log2_lr"))
    with (RESULTS / f"{study}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            identity = row["identity"]
            run = Recorded(identity, float(row["val_loss"] or math.inf), losses.get(identity, {}))
            for arm in row["arm"].split(";") if run.curve else ():
                place = (arm, *(row[field] for field in SIZE_FIELDS), row["seed"])
                for swept, fixed in slices:
                    curve = curves.setdefault((*place, swept, row[fixed]), RecordedCurve(arm, swept, {}))
                    curve.runs[float(row[swept])] = run
    return [curve for curve in curves.values() if len(curve.runs) >= FEWEST_VALUES]


def cases() -> list[Case]:
    """Return all pairs of a run and one that takes the part of zero-shot; runs that studies share count once."""
    found, seen = [], set()
    for study in STUDIES:
        for curve in recorded_curves(study):
            content = tuple(sorted((value, run.loss) for value, run in curve.runs.items()))
            if content not in seen:
                seen.add(content)
                found += list(_pairs(study, curve.runs))
    return found


def _pairs(study: str, runs: dict[float, Recorded]) -> Iterator[Case]:
    lowest, at = min((run.loss, value) for value, run in runs.items())
    steps = max(max(run.curve) for run in runs.values())
    train = TrainSpec(data="tokens", steps=steps, batch_tokens=1024, warmup_steps=WARMUP)
    for zero, zero_shot in runs.items():
        for value, run in runs.items():
            if abs(zero - at) <= REACH and abs(value - zero) > APART:
                behind = {check.share: behind_at(check.step(train), run, zero_shot) for check in CHECKS}
                is_winner = run.loss <= lowest + VerdictSpec().nats
                yield Case(study, run.identity, is_winner, run.loss < zero_shot.loss, behind, train)


def behind_at(step: int, run: Recorded, zero_shot: Recorded) -> float:
    """Return by how much a run is behind another at a step, nats."""
    compared = compare_at(step, run.curve, zero_shot.curve)
    return math.inf if compared is None else compared.behind


def choose(found: Iterable[Case]) -> tuple[Check, ...]:
    """Return the checks with the smallest margins that are safe on some cases."""
    winners = [case for case in found if case.is_winner]
    worst = {check.share: max(case.behind[check.share] for case in winners) for check in CHECKS}
    return tuple(
        Check(share, next(margin for margin in LADDER if margin >= SAFETY * largest))
        for share, largest in worst.items()
    )


def row(chosen_on: str, tested_on: str, checks: Sequence[Check], found: Sequence[Case]) -> dict[str, object]:
    """Return what a rule does on some cases."""
    winners, losers = ([case for case in found if case.is_winner == is_winner] for is_winner in (True, False))

    stopped = [case for case in found if case.stopped_at(checks) is not None]

    def share(of: Sequence[Case]) -> str:
        return f"{sum(case.stopped_at(checks) is not None for case in of) / len(of):.4f}"

    return {
        "chosen on": chosen_on,
        "tested on": tested_on,
        **{f"margin at {check.share:g}": check.margin for check in checks},
        **{f"winners behind at {each.share:g}": f"{max(c.behind[each.share] for c in winners):.3f}" for each in checks},
        "winning runs": len({case.run for case in winners}),
        "pairs of winners": len(winners),
        "pairs of losers": len(losers),
        "winners stopped": share(winners),
        "losers stopped": share(losers),
        "stopped below zero-shot": f"{sum(case.ends_below for case in stopped) / max(len(stopped), 1):.4f}",
        "FLOPs saved": f"{sum(case.saved(checks) for case in found) / len(found):.4f}",
    }  # fmt: skip


def rows() -> list[dict[str, object]]:
    """Return the rule on all studies, single checks, single studies, and rules chosen on other studies than tested."""
    found = cases()
    by_study = {study: [case for case in found if case.study == study] for study in STUDIES}
    assert choose(found) == CHECKS, f"the rule of the program is not the one that the cases give: {choose(found)}"
    made = [row("all", "all", CHECKS, found)]
    made += [row("all", f"all, check at {check.share:g} only", [check], found) for check in CHECKS]
    made += [row("all", study, CHECKS, mine) for study, mine in by_study.items()]
    for study, mine in by_study.items():
        others = [case for case in found if case.study != study]
        made += [row(study, "all others", choose(mine), others), row("all others", study, choose(others), mine)]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for early-stopping.csv")
    args = parser.parse_args()
    made = rows()
    for each in made:
        print(*each.values(), sep=", ")
    if args.out:
        write(args.out / "early-stopping.csv", made)


if __name__ == "__main__":
    main()
