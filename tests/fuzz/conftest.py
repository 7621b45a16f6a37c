"""The options of the fuzzer."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def fuzz_seed(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--fuzz-seed"))


@pytest.fixture
def fuzz_log(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Append a line to the file of --fuzz-log, or print it."""
    path = request.config.getoption("--fuzz-log")

    def log(line: str) -> None:
        if path is None:
            print(line)
            return
        with Path(path).open("a") as file:
            file.write(line + "\n")

    return log
