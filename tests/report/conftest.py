"""A study that nobody had to train, and its report, once for all tests."""

import json
import shutil

import pytest
from synthetic import synthetic_check, write_study

from expertp.cli.main import main
from expertp.coordcheck.records import CheckRecord
from expertp.figures import coordcheck
from expertp.figures.save import render
from expertp.report.build import write_report
from expertp.study.store import read_study

SMALL_THEORY = ("P=3", "D=4", "T=4", "solver.replicates=2", "solver.nodes=4", "solver.neurons=8", "networks.seeds=2")
THEORY_SIZES = "networks.sizes=[{N: 8, E: 4, n_hid: 4}, {N: 16, E: 4, n_hid: 4}]"


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


@pytest.fixture(scope="session")
def full(directory, tmp_path_factory):
    """The same study with a coordinate check and a solved theory: its report has all sections."""
    path = tmp_path_factory.mktemp("full") / "study"
    shutil.copytree(directory.path, path)
    check, sizes = synthetic_check()
    drawing = render("coordcheck", coordcheck.draw, coordcheck.data(check, sizes))
    drawing.write(path / "coordcheck")
    record = CheckRecord.of(check, "0", directory.study.replace(seeds=(0, 1)), 40, "").to_dict()
    (path / "coordcheck" / "coordcheck.json").write_text(json.dumps(record), encoding="utf-8")
    assert main(["theory", "compare", *SMALL_THEORY, THEORY_SIZES, "--out", str(path / "theory")]) == 0
    return read_study(path)


@pytest.fixture(scope="session")
def written_in_full(full):
    """Its report on disk."""
    return write_report(full)


@pytest.fixture(scope="module")
def browser():
    """The machine's own chromium, driven by playwright; tests are skipped without them."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine; apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install playwright")
    with sync_api.sync_playwright() as playwright:
        # In a container there is no user namespace for the sandbox, and the page is our own.
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit_page(browser):
    """Open a page from a file; whatever it complains about or asks for goes into `complaints`."""
    contexts = []

    def open_page(path, viewport, fragment="", **options):
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        page.complaints = []
        address = path.resolve().as_uri()

        def guard(route):
            if route.request.url.startswith((address, "data:image/")):
                route.continue_()
            else:
                page.complaints.append(f"asks for {route.request.url}")
                route.abort()

        page.route("**/*", guard)
        page.on("console", lambda message: page.complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: page.complaints.append(f"error: {error}"))
        page.goto(address + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
