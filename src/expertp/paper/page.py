"""One page about all findings, from what is stored of each: text and numbers cannot drift apart.

What only a reader can tell, the likely reason of a result, stands in remarks.yaml beside the page. A remark is about
one verdict, and is refused once the finding has another.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from expertp.config import load_spec
from expertp.errors import InputError
from expertp.files import write_atomically
from expertp.paper.catalogue import FINDINGS, find
from expertp.paper.exchange import export_cells
from expertp.paper.finding import Verdict
from expertp.report.reading import read
from expertp.spec import Spec
from expertp.study_store import read_study

PAGE = "README.md"
REMARKS = "remarks.yaml"
TITLE = "# The paper, figure by figure"


class RemarkSpec(Spec):
    """What a reader makes of a finding."""

    verdict: Verdict = Field(description="the verdict that it is about")
    remark: str


class RemarksSpec(Spec):
    """A file of remarks, by figure."""

    remarks: dict[str, RemarkSpec]


def stored(folder: Path) -> list[dict[str, Any]]:
    """Return the findings in a directory, in the catalogue's order."""
    paths = [folder / "findings" / name / "finding.json" for name in FINDINGS]
    found = [_as_catalogued(json.loads(path.read_text(encoding="utf-8"))) for path in paths if path.exists()]
    if not found:
        raise InputError(f"{folder}: no findings here; `expertp figures NAME --out {folder}` makes one")
    return found


def _as_catalogued(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the claim as it stands now."""
    finding = FINDINGS[record["name"]]
    return {**record, "where": finding.where, "claim": finding.claim}


def publish(folder: Path, to: Path) -> None:
    """Copy what is small: pictures as SVG, their numbers, cells as tables."""
    for record in stored(folder):
        place = to / "findings" / record["name"]
        place.mkdir(parents=True, exist_ok=True)
        for name in ("finding.json", *(f"{each}.{kind}" for each in record["pictures"] for kind in ("svg", "csv"))):
            shutil.copyfile(folder / "findings" / record["name"] / name, place / name)
    (to / "cells").mkdir(exist_ok=True)
    for study in dict.fromkeys(study for record in stored(folder) for study in record["studies"]):
        export_cells(read(read_study(folder / "studies" / study)), to / "cells")


def remarks_on(records: Sequence[Mapping[str, Any]], path: Path) -> dict[str, str]:
    """Return a file's remarks by figure, all of which must be about what was found; none where there is no file."""
    if not path.exists():
        return {}
    verdicts, remarks = {each["name"]: each["verdict"] for each in records}, load_spec(RemarksSpec, path).remarks
    for name, each in remarks.items():
        found = verdicts.get(find(name).name, each.verdict)
        if found != each.verdict:
            raise InputError(
                f"{path}: {name}: the remark is about {each.verdict}, and it is now {found}; write it anew"
            )
    return {name: each.remark.strip() for name, each in remarks.items()}


def write_page(folder: Path) -> Path:
    """Write the page of a directory's findings, with the remarks that stand there."""
    records = stored(folder)
    write_atomically(folder / PAGE, as_markdown(records, remarks_on(records, folder / REMARKS)).encode())
    return folder / PAGE


def as_markdown(records: Sequence[Mapping[str, Any]], remarks: Mapping[str, str]) -> str:
    """Return the page: an index on top, then a section per finding."""
    profile = records[0]["profile"]
    lines = [
        TITLE,
        "",
        f"Profile `{profile}`. Every section: what the paper says, what was measured here, and what to make of it.",
        f"Written by `expertp figures page`; `expertp figures NAME --profile {profile} --out DIR` makes one again.",
        "Differences are over the same seeds, ± their standard error; they count beyond Student's 95% interval.",
        "",
        "| figure | in the paper | here | measured |",
        "|---|---|---|---|",
        *(
            f"| [{each['name']}](#{each['name']}) | {each['where']} | {each['verdict']} | {_in_table(each['number'])} |"
            for each in records
        ),
    ]
    for each in records:
        lines += ["", f"## {each['name']}", "", f"{each['where']}. {each['claim']}", ""]
        lines += [f"![{picture}](findings/{each['name']}/{picture}.svg)" for picture in each["pictures"]]
        lines += ["", f"**{each['verdict']}**: {each['number']}. {each['why']}", ""]
        lines += _as_table(each.get("table", ()))
        lines += [remarks[each["name"]], ""] if each["name"] in remarks else []
        text = f" Text: {', '.join(each['text'])}." if each["text"] else ""
        lines += [f"`expertp figures {each['name']}`: {each['cost']}.{text}"]
    return "\n".join([*lines, ""])


def _as_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown, with an empty line below; nothing where there is none."""
    if not rows:
        return []
    written = [f"| {' | '.join(_in_table(cell) for cell in row)} |" for row in rows]
    return [written[0], "|---" * len(rows[0]) + "|", *written[1:], ""]


def _in_table(text: str) -> str:
    """Keep a bar from ending a cell."""
    return text.replace("|", "\\|")
