"""Hooks of mkdocs: the site shows files of the repository that pages link to, and has no link out of itself to them.

On a page, `[the file](../examples/x.py)` leads to the file in the repository. On the site, it leads to a page with the
file's text. A link to a directory becomes plain text.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)\)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash"}
# Folder of the site for the files of the repository.
SOURCES = "source"


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every file outside docs/ that a page links to."""
    docs = Path(config["docs_dir"])
    for page in [file for file in files if file.src_uri.endswith(".md")]:
        for path in _outside(Path(page.abs_src_path or ""), docs):
            uri = f"{SOURCES}/{path.relative_to(ROOT).as_posix()}.md"
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, content=_as_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Let links to files of the repository lead to their pages."""
    if page.file.abs_src_path is None:
        return markdown
    here, docs = Path(page.file.abs_src_path), Path(config["docs_dir"])

    def changed(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(here.parent / link["path"]))
        if target.is_dir():
            return link["text"]
        if docs in target.parents or not target.is_file():
            return link[0]
        uri = f"{SOURCES}/{target.relative_to(ROOT).as_posix()}.md"
        return f"[{link['text']}]({os.path.relpath(docs / uri, here.parent)})"

    return LINK.sub(changed, markdown)


def _outside(page: Path, docs: Path) -> Iterator[Path]:
    """Yield the files of the repository outside docs/ that a page links to."""
    for link in LINK.finditer(page.read_text(encoding="utf-8")):
        target = Path(os.path.normpath(page.parent / link["path"]))
        if target.is_file() and docs not in target.parents and ROOT in target.parents:
            yield target


def _as_page(path: Path) -> str:
    language = LANGUAGES.get(path.suffix, "")
    return f"# {path.relative_to(ROOT).as_posix()}\n\n````{language}\n{path.read_text(encoding='utf-8')}````\n"
