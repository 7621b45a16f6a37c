"""`expertp status` imports nothing that is slow to import."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from expertp.cli.status import describe
from expertp.study.progress import ActiveRun, ProgressWatch
from expertp.study.store import read_study
from expertp.training.tail import RecordsTail
from expertp.util.leases import Holder

FIXTURE = Path(__file__).parents[1] / "fixtures/study-format-1"
SLOW = ("torch", "numpy", "scipy", "matplotlib", "pandas", "datasets", "safetensors", "tokenizers")
PROGRAM = f"""
import sys
from expertp.cli.main import main
code = main(["status", sys.argv[1], "--json"])
print([name for name in {SLOW} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


def test_active_runs_are_rows_below_a_header() -> None:
    directory = read_study(FIXTURE)
    first, second = list(directory.runs)[:2]
    active = [ActiveRun(each, Holder("node", 1, "here"), 5, 50, RecordsTail(Path("none"))) for each in (first, second)]
    progress = replace(ProgressWatch(directory).look(), running=tuple(active))
    lines = describe(directory, progress).splitlines()
    header = next(place for place, line in enumerate(lines) if line.startswith("active run"))
    assert lines[header].split() == ["active", "run", "step", "on"]
    assert set(lines[header + 1]) == {"-"}
    for line, identity in zip(lines[header + 2 :], (first, second), strict=False):
        assert line.split() == [directory.place(identity).name, "5/50", "node"]


@pytest.mark.heavy
def test_status_imports_neither_torch_nor_numpy() -> None:
    command = [sys.executable, "-c", PROGRAM, str(FIXTURE)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert '"finished": 33' in finished.stdout
    assert finished.stderr == "[]\n"
