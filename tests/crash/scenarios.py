"""Commands whose interruption is tested: how each starts, and what of its result must be the same in the end."""

import csv
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.templates import Templates

# The step of a checkpoint's file.
STEP = re.compile(r"checkpoints/step-(\d+)/")
# What may differ between two equal runs: times.
CLOCK = {"seconds", "tokens_per_second", "product_share", "created"}
# One size, one learning rate beside the base's own, and an arm.
FEW_RUNS = ("verdict=null", "seeds=[0]", "grids.log2_lr=[-6]", "axes.width=[16]")
SHARDS = ("--val-fraction", "0.2", "--shard-tokens", "400")


@dataclass(frozen=True)
class Scenario:
    """One command that can be interrupted and repeated.

    Args:
        name: its verb.
        argv: the command, to be run in a directory with `inputs`.
        inputs: names of the templates it needs.
        result: reads what must be the same as without interruption.
    """

    name: str
    argv: tuple[str, ...]
    inputs: tuple[str, ...]
    result: Callable[[Path], dict[str, Any]]

    def start(self, templates: Templates, root: Path) -> None:
        """Make a directory in which the command has not run yet."""
        root.mkdir()
        templates.copy(root, *self.inputs)


def all_files(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def all_names(study: Path) -> set[str]:
    """Return the names of all files of a study, but for locks.

    A run that fails in its last moment, after its summary is written, has no lock file and is not trained again.
    """
    return {str(path.relative_to(study)) for path in study.rglob("*") if path.is_file() and path.name != ".lock"}


def prepared(root: Path) -> dict[str, Any]:
    """Every byte of the prepared directory, and no other file."""
    return all_files(root / "out")


def trained(root: Path, name: str = "out") -> dict[str, Any]:
    """Records, last checkpoint and the names of all files of a run, but for times."""
    out = root / name
    lines = [_without_clock(json.loads(line)) for line in (out / "metrics.jsonl").read_text().splitlines()]
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    tensors = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.safetensors")}
    summary = _without_clock(json.loads((out / "summary.json").read_text()))
    return {"metrics": lines, "summary": summary, "files": files, **tensors}


def without_older_checkpoints(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a run with the number of its checkpoints, but only the last one's files.

    A signal saves a checkpoint at a step of its own, which may be the one before the last.
    """
    found = {path: int(step[1]) for path in (*result, *result.get("files", ())) if (step := STEP.search(path))}
    older = {path for path, step in found.items() if step < max(found.values())}
    kept = {key: value for key, value in result.items() if key not in older}
    files = {"files": kept["files"] - older} if "files" in kept else {}
    return {**kept, **files, "checkpoints": len(set(found.values()))}


def swept(root: Path) -> dict[str, Any]:
    """The table of results and the records of every run, but for times."""
    with (root / "out" / "results.csv").open(newline="") as file:
        rows = [_without_clock(row) for row in csv.DictReader(file)]
    metrics = {
        path.parent.name: [_without_clock(json.loads(line)) for line in path.read_text().splitlines()]
        for path in (root / "out" / "runs").glob("*/metrics.jsonl")
    }
    return {"rows": rows, "metrics": metrics, "files": all_names(root / "out")}


def reported(root: Path) -> dict[str, Any]:
    """Every byte of the study's directory with its report."""
    return all_files(root / "study")


def tuned(root: Path) -> dict[str, Any]:
    """The path of the descent, the preset, and the names of all files."""
    out = root / "out"
    return {"files": all_names(out), **{name: (out / name).read_text() for name in ("path.csv", "preset.yaml")}}


def _without_clock(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_clock(value) for key, value in tree.items() if key not in CLOCK}
    return [_without_clock(value) for value in tree] if isinstance(tree, list) else tree


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("train", ("train", "run.yaml", "--out", "out"), ("run.yaml", "tokens"), trained),
        Scenario(
            "prepare",
            ("prepare", "rows.jsonl", "--out", "out", "--tokenizer", "bpe", "--vocab-size", "300", *SHARDS),
            ("rows.jsonl",),
            prepared,
        ),
        Scenario(
            "sweep",
            ("sweep", "study.yaml", "--out", "out", "--workers", "1", *FEW_RUNS),
            ("study.yaml", "tokens"),
            swept,
        ),
        Scenario("report", ("report", "study"), ("study",), reported),
        Scenario(
            "resume",
            ("train", "run.yaml", "--out", "run"),
            ("run.yaml", "tokens", "run"),
            lambda root: trained(root, "run"),
        ),
        Scenario(
            "tune",
            ("tune", "study.yaml", "--out", "out", "--workers", "1", "train.steps=1", "seeds=[0, 1, 2]"),
            ("study.yaml", "tokens"),
            tuned,
        ),
    )
}
