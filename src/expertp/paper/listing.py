"""The list of all findings as a file, so that it can be printed without importing how each is drawn and judged.

A test compares the file with the catalogue, and writes it with --update-golden.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from expertp.errors import InputError, did_you_mean

PROFILES = ("cpu", "paper")


@dataclass(frozen=True)
class Listed:
    """One line of the list.

    Args:
        name: name of the finding.
        where: its place in the paper.
        claim: what the paper says.
        runs: number of runs by profile.
        is_adaptive: whether these are only the runs that an adaptive study begins with, by profile.
    """

    name: str
    where: str
    claim: str
    runs: Mapping[str, int]
    is_adaptive: Mapping[str, bool]


def check_profile(name: str) -> None:
    """Raise an `InputError` if there is no such profile."""
    if name not in PROFILES:
        raise InputError(f"no profile '{name}'; {did_you_mean(name, PROFILES)}")


def listed_findings() -> list[Listed]:
    """Return all findings, in the order of the paper."""
    text = files("expertp").joinpath("configs", "paper", "findings.json").read_text(encoding="utf-8")
    return [Listed(**each) for each in json.loads(text)]
