"""Shared by all tests: run-time type checks, deterministic hypothesis, golden files."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook
from typecheck import WITH_SHAPES

if TYPE_CHECKING:
    from fuzz.templates import Templates

# mypy cannot check the shapes of arrays, so tests check the annotations of the modules that have them at run time. A
# name that a module imports under TYPE_CHECKING only (matplotlib, torch and tokenizers are slow to import) counts as
# Any. TYPECHECK=all checks the whole package, which makes tests up to three times as long; TYPECHECK=0 checks nothing,
# for long tests of what users run.
if checked := {"0": (), "all": ("expertp",)}.get(os.environ.get("TYPECHECK", ""), WITH_SHAPES):
    install_import_hook(checked, "typecheck.checked")

# The models of the tests are tiny: one thread is faster than two, in subprocesses too.
os.environ["OMP_NUM_THREADS"] = "1"

GOLDEN = Path(__file__).parent / "golden"

settings.register_profile("repeatable", deadline=None, max_examples=60, derandomize=True, database=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden instead of comparing with it")
    parser.addoption("--fuzz-seed", default=None, help="seed of the cases of tests/fuzz (default of slow: a fresh one)")
    parser.addoption("--fuzz-case", default=None, help="number of the one case of tests/fuzz to repeat")
    parser.addoption("--fuzz-log", default=None, help="file to which tests/fuzz appends violations and counts")


def pytest_configure(config: pytest.Config) -> None:
    # The workers of pytest-xdist get the options of the process that starts them, so they share its seed.
    if config.getoption("--fuzz-seed") is None and config.getoption("-m") == "slow":
        config.option.fuzz_seed = secrets.token_hex(4)


# Fixtures that take long to make and are shared by many tests: with --dist loadgroup, these tests run in one process.
SHARED_FIXTURES = (
    *("directory", "templates", "at_base", "trained", "table", "six_steps", "slurm", "ray", "browser"),
    *("two_ranks", "four_ranks", "on_two_ranks"),
)


def pytest_itemcollected(item: pytest.Item) -> None:
    if shared := [name for name in SHARED_FIXTURES if name in getattr(item, "fixturenames", ())]:
        item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}-{shared[0]}"))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sweeps train in this process: to start a worker takes seconds."""
    from expertp.study.sweep import InProcess

    monkeypatch.setattr("expertp.study.executors.local.LocalExecutor", lambda *_arguments, **_options: InProcess())


def pytest_report_header(config: pytest.Config) -> str:
    return f"fuzz seed: {config.getoption('--fuzz-seed') or 'quick'}"


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> "Templates":
    """Valid inputs of every kind, for tests/fuzz and tests/crash."""
    import torch
    from fuzz.templates import make_templates

    torch.set_num_threads(1)
    return make_templates(tmp_path_factory.mktemp("templates"))


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
