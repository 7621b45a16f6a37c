"""One page about all findings, written from their records, so that text and numbers cannot drift apart.

remarks.yaml beside the page holds what no code can know, such as the likely reason of a result. A remark names the
answer that it is about, and is refused when the finding has another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from expertp.config import load_spec
from expertp.errors import InputError
from expertp.paper.catalogue import find
from expertp.paper.finding import Answer, FindingRecord
from expertp.paper.store import read_records
from expertp.spec import Spec
from expertp.util.files import write_atomically

PAGE = "README.md"
REMARKS = "remarks.yaml"
TITLE = "# The paper, finding by finding"


class RemarkSpec(Spec):
    """A remark on a finding."""

    verdict: Answer = Field(description="the answer that the remark is about")
    remark: str


class RemarksSpec(Spec):
    """A file of remarks, by finding."""

    remarks: dict[str, RemarkSpec]


def write_page(folder: Path) -> Path:
    """Write the page of a directory's findings, with the remarks beside it."""
    records = read_records(folder)
    write_atomically(folder / PAGE, as_markdown(records, remarks_on(records, folder / REMARKS)).encode())
    return folder / PAGE


def remarks_on(records: Sequence[FindingRecord], path: Path) -> dict[str, str]:
    """Return the remarks of a file by finding; empty where there is no file."""
    if not path.exists():
        return {}
    answers, remarks = {each.name: each.answer for each in records}, load_spec(RemarksSpec, path).remarks
    for name, each in remarks.items():
        found = answers.get(find(name).name, each.verdict)
        if found != each.verdict:
            raise InputError(f"{path}: {name}: the remark is about {each.verdict}, but the answer is {found}; edit it")
    return {name: each.remark.strip() for name, each in remarks.items()}


def as_markdown(records: Sequence[FindingRecord], remarks: Mapping[str, str]) -> str:
    """Return the page: an index, then a section per finding."""
    profile = records[0].profile
    index = [
        (f"[{each.name}](#{each.name})", each.where, each.paper_answer or "-", _ours(each), each.number)
        for each in records
    ]
    lines = [
        TITLE,
        "",
        f"Profile `{profile}`. Each section has the claim of the paper, what was measured here, and a remark.",
        "A claim is judged twice: by the paper's own criterion, which looks at means or medians, and by ours, which "
        "asks for more than noise.",
        f"`expertp paper page` writes this page; `expertp paper make NAME --profile {profile} --out DIR` makes a "
        "finding.",
        "Differences are between the same seeds, ± their standard error. They count if they exceed Student's 95% "
        "interval.",
        f"**{_decided(records)}**",
        "",
        *_as_table([("finding", "in the paper", "by the paper's criterion", "by ours", "measured"), *index])[:-1],
    ]
    for each in records:
        lines += ["", f"## {each.name}", "", f"{each.where}. {each.claim}", ""]
        lines += [f"![{picture}](findings/{each.name}/{picture}.svg)" for picture in each.pictures]
        lines += ["", f"**{_ours(each)}**: {each.number}. {each.why}", "", *_criteria(each), *_as_table(each.table)]
        lines += [remarks[each.name], ""] if each.name in remarks else []
        text = f" Text: {', '.join(each.text)}." if each.text else ""
        lines += [f"`expertp paper make {each.name}`: {each.cost}.{text}"]
    return "\n".join([*lines, ""])


def _decided(records: Sequence[FindingRecord]) -> str:
    """Say how many findings are decided by our present criteria."""
    current = [each for each in records if _is_current(each)]
    decided = sum(each.answer != "INCONCLUSIVE" for each in current)
    earlier = len(records) - len(current)
    more = f" Judged by an earlier criterion, and to be made again: {earlier}." if earlier else ""
    return f"Decided by our present criteria: {decided} of {len(records)}.{more}"


def _is_current(record: FindingRecord) -> bool:
    return record.is_judged_by(find(record.name).criteria)


def _ours(record: FindingRecord) -> str:
    """Return the answer by our criterion, and whether that criterion was another one."""
    return f"{record.answer}{'' if _is_current(record) else ' (by an earlier criterion)'}"


def _criteria(record: FindingRecord) -> list[str]:
    """Return the criteria by which a record was judged, with their answers; nothing where it does not say them."""
    if record.criteria is None:
        return []
    judged = [
        (f"The paper's criterion: {record.criteria.paper}", record.paper_answer),
        (f"Ours: {record.criteria.ours}", record.answer),
    ]
    return [*(f"- {criterion} **{found}**" for criterion, found in judged), ""]


def _as_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table followed by an empty line; nothing without rows."""
    if not rows:
        return []
    written = [f"| {' | '.join(map(_escaped, row))} |" for row in rows]
    return [written[0], "|---" * len(rows[0]) + "|", *written[1:], ""]


def _escaped(text: str) -> str:
    """Escape bars, which would end a cell of a table."""
    return text.replace("|", "\\|")
