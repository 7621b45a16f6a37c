"""Shared by all tests: run-time type checks, deterministic hypothesis, golden files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

# Tests check the annotations of the whole package at run time. A name that a module imports under TYPE_CHECKING only
# (matplotlib, torch and tokenizers are slow to import) counts as Any.
install_import_hook("expertp", "typecheck.checked")

# The models of the tests are tiny: one thread is faster than two, in subprocesses too.
os.environ["OMP_NUM_THREADS"] = "1"

GOLDEN = Path(__file__).parent / "golden"

settings.register_profile("repeatable", deadline=None, max_examples=60, derandomize=True, database=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden instead of comparing with it")


@pytest.fixture
def matches_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file in tests/golden; with --update-golden, write the file instead."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"tests/golden/{name} is missing; run pytest {request.node.nodeid} --update-golden"
        assert text == path.read_text(encoding="utf-8"), (
            f"tests/golden/{name} differs; if the change is intended, run pytest {request.node.nodeid} --update-golden"
        )

    return check
