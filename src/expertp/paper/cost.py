"""The cost of findings, from the shapes of their models alone: needs no data, no training and no GPU."""

from __future__ import annotations

from collections.abc import Sequence

from expertp.capacity.devices import DEVICES, EFFICIENCY
from expertp.paper.finding import Finding
from expertp.paper.profile import ProfileSpec
from expertp.spec import RunSpec
from expertp.study.cells import expand, unique_runs
from expertp.study.cost import Cost, cost_of_runs


def runs_by_finding(profile: ProfileSpec, findings: Sequence[Finding]) -> dict[str, list[RunSpec]]:
    """Return the runs of findings by name; findings may share runs."""
    names = dict.fromkeys(study.name for finding in findings for study in finding.studies)
    runs = {name: unique_runs(expand(profile.study(name, profile.corpus_of(name)))) for name in names}

    def of(finding: Finding) -> list[RunSpec]:
        found = [run for study in finding.studies for run in runs[study.name]]
        return found if len(finding.studies) == 1 else list(dict.fromkeys(found))

    return {finding.name: of(finding) for finding in findings}


def cost(profile: ProfileSpec, findings: Sequence[Finding]) -> Cost:
    """Return the cost of findings together in a profile."""
    return cost_of_runs(run for runs in runs_by_finding(profile, findings).values() for run in runs)


def h100_hours(found: Cost) -> float:
    """Return the hours that runs take on one H100."""
    return found.seconds_at(DEVICES["h100"].peak("bfloat16") * EFFICIENCY) / 3600
