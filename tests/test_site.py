"""The docs as a site: built strictly, without anything from the network."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -e '.[docs]'")
pytest.importorskip("material", reason="mkdocs-material is not installed: pip install -e '.[docs]'")

# Attributes that make a browser load something, by tag; links that people follow are not among them.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class Loads(HTMLParser):
    """Collects what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        is_canonical = tag == "link" and found.get("rel") in ("canonical", "prev", "next")
        if tag in LOADED and not is_canonical and found.get(LOADED[tag]):
            self.found.append(str(found[LOADED[tag]]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning of mkdocs is an error."""
    import logging

    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    out = tmp_path_factory.mktemp("site")
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    handler.setLevel(logging.WARNING)
    logging.getLogger("mkdocs").addHandler(handler)
    try:
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    except Abort:
        pytest.fail("\n".join(seen))
    finally:
        logging.getLogger("mkdocs").removeHandler(handler)
    assert seen == []
    return out


@pytest.mark.heavy
def test_every_page_of_docs_is_on_the_site(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS)
        html = name.with_name("index.html") if name.name == "README.md" else name.with_suffix(".html")
        assert (site / html).is_file(), name
    assert "expertp" in (site / "source/examples/hf_trainer.py.html").read_text()


@pytest.mark.heavy
def test_pages_load_nothing_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        away = [each for each in loads.found if re.match(r"(https?:)?//", each)]
        assert not away, page
        here = [unquote(each) for each in loads.found if not each.startswith("data:")]
        places = [site / each[1:] if each.startswith("/") else page.parent / each for each in here]  # 404.html: from /
        missing = [str(place) for place in places if not place.exists()]
        assert not missing, page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet
    assert (site / "search/search_index.json").is_file()


def test_the_navigation_names_every_page() -> None:
    named = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    assert named == {page.name for page in DOCS.glob("*.md")}


def test_quoted_symptoms_are_printed_by_the_program() -> None:
    """The first column of docs/troubleshooting.md quotes texts that the code has."""
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = {text for row in re.findall(r"^\| (.*?) \|", page, re.M) for text in re.findall(r"`([^`]+)`", row)}
    assert len(quoted) > 20
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # a text that is written in several pieces
    names = {"fixed_topk", "generate", "--open"}
    assert {text for text in quoted - names if text not in code} == set()
