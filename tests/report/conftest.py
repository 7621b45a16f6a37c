"""A study that nobody had to train, and its report, once for all tests."""

import pytest
from synthetic import write_study

from expertp.report.build import write_report


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    """A study with a known optimum, two diverged runs, one that failed and one axis without a run."""
    return write_study(
        tmp_path_factory.mktemp("report") / "study", skip=lambda run: run.model.alpha_ffn != 1 and run.hps.rules != "sp"
    )


@pytest.fixture(scope="session")
def written(directory):
    """Its report on disk."""
    return write_report(directory)


@pytest.fixture(scope="session")
def page(written):
    """The text of the page."""
    return written.path.read_text(encoding="utf-8")
