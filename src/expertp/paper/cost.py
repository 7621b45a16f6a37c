"""The cost of findings, from the shapes of their models alone: needs no data, no training and no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from expertp.paper.finding import Finding
from expertp.paper.profile import ProfileSpec
from expertp.spec import ModelSpec, RunSpec
from expertp.study.cells import expand, unique_runs

# Dense bfloat16 peak of an H100 SXM, and the share of it that training reaches (assumed).
H100_FLOPS, H100_SHARE = 989e12, 0.35


@dataclass(frozen=True)
class ModelCost:
    """The runs of one model and horizon; tokens and FLOPs are summed over runs."""

    model: ModelSpec
    runs: int
    tokens: int
    flops: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; parameters are exact, `paper_*` by the paper's formulas."""
        counts = self.model.counts()
        return {
            "model": self.model.to_dict(),
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
    """The cost of a set of runs, by model and in all; `h100_hours` are hours on one H100."""

    models: tuple[ModelCost, ...]
    runs: int
    tokens: int
    flops: float
    h100_hours: float


def runs_by_finding(profile: ProfileSpec, findings: Sequence[Finding]) -> dict[str, list[RunSpec]]:
    """Return the runs of findings by name; findings may share runs."""
    names = dict.fromkeys(study.name for finding in findings for study in finding.studies)
    runs = {name: unique_runs(expand(profile.study(name, profile.corpus_of(name)))) for name in names}
    return {
        finding.name: list(dict.fromkeys(run for study in finding.studies for run in runs[study.name]))
        for finding in findings
    }


def cost(profile: ProfileSpec, findings: Sequence[Finding]) -> Cost:
    """Return the cost of findings together in a profile."""
    return cost_of_runs(run for runs in runs_by_finding(profile, findings).values() for run in runs)


def cost_of_runs(runs: Iterable[RunSpec]) -> Cost:
    """Return the cost of runs; equal runs count once."""
    groups: dict[tuple[ModelSpec, int], list[RunSpec]] = {}
    for run in dict.fromkeys(runs):
        groups.setdefault((run.model, run.train.tokens), []).append(run)
    made = [
        ModelCost(model, len(found), tokens * len(found), float(sum(run.flops for run in found)))
        for (model, tokens), found in groups.items()
    ]
    models = tuple(sorted(made, key=lambda each: each.model.counts().total))
    flops = sum(each.flops for each in models)
    n, tokens = sum(each.runs for each in models), sum(each.tokens for each in models)
    return Cost(models, n, tokens, flops, flops / (H100_FLOPS * H100_SHARE) / 3600)
