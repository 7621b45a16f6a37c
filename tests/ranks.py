"""Several ranks in tests: jobs that all of them do, and the state that a run leaves."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from expertp.training.records import CLOCK_FIELDS

PROGRAM, COMMANDS = (Path(__file__).with_name(name) for name in ("rank_program.py", "rank_commands.py"))


def do_jobs(
    size: int, folder: Path, jobs: list[dict[str, Any]], seconds: float = 240.0, lost: int = 0
) -> list[list[Any]]:
    """Let ranks do jobs; return the outcomes of every rank, by rank and job. Ranks that hang fail the test.

    `lost` is the number of ranks that are killed in the last job, of which they have no outcome.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, str(PROGRAM), str(size), str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            _, errors = process.communicate(timeout=seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == lost, errors[-3000:]
    assert not errors, errors[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def do_commands(
    size: int, folder: Path, commands: list[dict[str, Any]], seconds: float = 500.0
) -> list[dict[str, Any]]:
    """Let ranks run command lines; return the exit codes of all ranks and the lines that they print."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "commands.json").write_text(json.dumps(commands))
    subprocess.run([sys.executable, str(COMMANDS), str(size), str(folder)], check=True, timeout=seconds)
    outcomes: list[dict[str, Any]] = json.loads((folder / "outcomes.json").read_text())
    return outcomes


def records(out: Path) -> list[dict[str, Any]]:
    """Return the records of a run, but for times."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in CLOCK_FIELDS} for line in lines]
