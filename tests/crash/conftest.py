"""The process in which commands are interrupted, and what they give without interruption."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from crash.scenarios import SCENARIOS
from crash.server import Fault, Server
from fuzz.templates import Templates

# Calls that were counted, and the result, of a command that is not interrupted.
Whole = Callable[..., tuple[list[str], dict[str, Any]]]
# A file system in memory, where to sync a file takes no time.
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2**30


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in memory, where there is room for it."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MEMORY_BYTES:
        yield tmp_path_factory.mktemp("scratch")
        return
    with tempfile.TemporaryDirectory(prefix="expertp-crash-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for tests/crash/faults.c")
    library = tmp_path_factory.mktemp("library") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    with Server(library) as server:
        yield server


@pytest.fixture(scope="session")
def whole(server: Server, templates: Templates, scratch: Path) -> Whole:
    folder = scratch / "whole"
    folder.mkdir()

    @cache
    def run(name: str, reads: bool = False) -> tuple[list[str], dict[str, Any]]:
        scenario, root, log = SCENARIOS[name], folder / f"{name}-{reads}", folder / f"{name}-{reads}.log"
        scenario.start(templates, root)
        ended = server.run(scenario.argv, Fault(str(root), log=str(log), reads=reads), cwd=root)
        assert ended.code in (0, 1), ended
        return log.read_text().splitlines(), scenario.result(root)

    return run
