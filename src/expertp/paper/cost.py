"""What a figure costs, from the shapes of its models alone: no data, no training, no GPU needed to know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from expertp.paper.finding import Finding
from expertp.paper.profile import ProfileSpec
from expertp.spec import ModelSpec, RunSpec
from expertp.study import expand

# Dense bfloat16 peak of an H100 SXM, and what share of it training reaches; the share is assumed.
H100_FLOPS, H100_SHARE = 989e12, 0.35


@dataclass(frozen=True)
class ModelCost:
    """The runs of one model and horizon."""

    model: ModelSpec
    runs: int
    tokens: int
    flops: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values; parameters are exact, `paper_*` by the paper's formulas."""
        counts = self.model.counts()
        return {
            "model": self.model.to_tree(),
            "runs": self.runs,
            "total_parameters": counts.total,
            "active_parameters": counts.active,
            "paper_total": counts.paper_total,
            "paper_active": counts.paper_active,
            "tokens": self.tokens,
            "flops": self.flops,
        }


@dataclass(frozen=True)
class Cost:
    """What a figure trains, each run once though studies share it."""

    models: tuple[ModelCost, ...]

    @property
    def runs(self) -> int:
        """How many there are."""
        return sum(each.runs for each in self.models)

    @property
    def tokens(self) -> int:
        """What all runs train on."""
        return sum(each.tokens for each in self.models)

    @property
    def flops(self) -> float:
        """Of all runs."""
        return sum(each.flops for each in self.models)

    @property
    def h100_hours(self) -> float:
        """How long one H100 would take."""
        return self.flops / (H100_FLOPS * H100_SHARE) / 3600


def cost(profile: ProfileSpec, findings: Iterable[Finding]) -> Cost:
    """Return what figures cost together in a profile."""
    names = dict.fromkeys(name for finding in findings for name in finding.studies)
    return cost_of_runs([run for name in names for run in expand(profile.study(name, profile.corpus_of(name)))])


def cost_of_runs(runs: Sequence[RunSpec]) -> Cost:
    """Return what runs cost; of equal ones only the first counts."""
    groups: dict[tuple[ModelSpec, int], list[RunSpec]] = {}
    for run in {run.model_dump_json(): run for run in runs}.values():
        groups.setdefault((run.model, run.train.tokens), []).append(run)
    made = [
        ModelCost(model, len(found), tokens * len(found), float(sum(run.flops for run in found)))
        for (model, tokens), found in groups.items()
    ]
    return Cost(tuple(sorted(made, key=lambda each: each.model.counts().total)))
