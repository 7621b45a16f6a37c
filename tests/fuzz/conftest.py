"""Templates of the fuzzer, and its options' fixtures."""

import json
from collections import Counter
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
def record_counts(request: pytest.FixtureRequest) -> Callable[[Counter[str], int], None]:
    """Append the counts of a chunk to the file of --fuzz-counts."""

    def record(counts: Counter[str], violations: int) -> None:
        if path := request.config.getoption("--fuzz-counts"):
            with Path(path).open("a") as file:
                file.write(json.dumps({"violations": violations, **counts}) + "\n")

    return record
