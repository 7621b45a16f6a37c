"""Templates of the fuzzer, and its options' fixtures."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fuzz.templates import Templates, make_templates


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    torch.set_num_threads(1)
    return make_templates(tmp_path_factory.mktemp("templates"))


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
