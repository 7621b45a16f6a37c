import json
import re
from dataclasses import asdict

import pytest

from expertp.errors import InputError
from expertp.paper.catalogue import find
from expertp.paper.finding import FindingRecord
from expertp.paper.page import as_markdown, write_page
from expertp.paper.store import read_records

RECORD = {
    "where": "Fig. 9", "claim": "It is so.", "studies": [], "pictures": ["one", "two"], "verdict": "HOLDS",
    "number": "|Load| 1.5", "why": "Because.", "profile": "cpu", "cost": "3 runs",
    "text": ["novels-512", "builtin-512 in place of k8s-docs"],
}  # fmt: skip


def put(folder, name, **changes):
    """Write a record; by default it was judged by the criteria of the catalogue."""
    place = folder / "findings" / name
    place.mkdir(parents=True)
    criteria = {"criteria": asdict(find(name).criteria)}
    (place / "finding.json").write_text(json.dumps({**RECORD, "name": name, **criteria, **changes}))


def test_the_page_has_an_index_and_a_section_per_finding(tmp_path):
    put(tmp_path, "softmax", verdict="INCONCLUSIVE", verdict_by_paper="HOLDS")
    put(tmp_path, "speedrun", verdict_by_paper="DOES NOT HOLD AT THIS SCALE")
    text = write_page(tmp_path).read_text()
    row = "| [speedrun](#speedrun) | Fig. 1, Finding 2.1 | DOES NOT HOLD AT THIS SCALE | HOLDS | \\|Load\\| 1.5 |"
    assert text.index(row) < text.index("| [softmax]")
    assert text.index("## speedrun") < text.index("## softmax")
    assert "![two](findings/softmax/two.svg)" in text
    assert "**INCONCLUSIVE**: |Load| 1.5. Because." in text
    assert "`expertp paper make speedrun`: 3 runs. Text: novels-512, builtin-512 in place of k8s-docs." in text
    assert "**Decided by our present criteria: 1 of 2.**" in text
    assert "It is so." not in text  # the claim is that of the catalogue, however old the record
    assert text == as_markdown(read_records(tmp_path), {})


def test_both_criteria_stand_beside_their_answers(tmp_path):
    put(tmp_path, "speedrun", verdict_by_paper="DOES NOT HOLD AT THIS SCALE")
    text = write_page(tmp_path).read_text()
    assert "- The paper's criterion: The MoE's mean final loss is at most that of the tuned dense model. **DOES" in text
    assert "- Ours: The MoE's final loss is at most 0.02 nats above" in text


def test_a_record_of_an_earlier_version_was_not_judged_by_todays_criteria(tmp_path):
    put(tmp_path, "speedrun", criteria=None)
    text = write_page(tmp_path).read_text()
    assert "| [speedrun](#speedrun) | Fig. 9 | - | HOLDS (by an earlier criterion) |" in text
    assert "**HOLDS (by an earlier criterion)**: |Load| 1.5." in text
    assert (
        "**Decided by our present criteria: 0 of 1. Judged by an earlier criterion, and to be made again: 1.**" in text
    )
    assert "criterion: " not in text
    assert "Fig. 9. It is so." in text, "the answer belongs to the claim of the record"


def test_a_record_shows_the_criteria_by_which_it_was_judged(tmp_path):
    put(tmp_path, "speedrun", verdict_by_paper="HOLDS", criteria={"paper": "It is below.", "ours": "It is far below."})
    text = write_page(tmp_path).read_text()
    assert "| Fig. 9 | HOLDS | HOLDS (by an earlier criterion) |" in text
    assert "- The paper's criterion: It is below. **HOLDS**" in text
    assert "- Ours: It is far below. **HOLDS**" in text


def test_a_record_is_stored_and_loaded():
    tree = {
        **RECORD,
        "criteria": {"paper": "It is below.", "ours": "It is far below."},
        "name": "softmax",
        "table": [["axis"], ["width"]],
        "verdict_by_paper": "INCONCLUSIVE",
    }
    record = FindingRecord.from_dict(tree)
    assert record.answer == "HOLDS"
    assert json.loads(json.dumps(record.to_dict())) == tree
    with pytest.raises(ValueError, match="answer"):
        FindingRecord.from_dict({**tree, "verdict": "HOLD"})


def test_a_damaged_record_is_refused(tmp_path):
    put(tmp_path, "softmax", verdict="HOLD")
    with pytest.raises(InputError, match=r"finding.json: damaged \(.*\); .*`expertp paper make softmax`"):
        write_page(tmp_path)


def test_an_empty_directory_has_no_page(tmp_path):
    with pytest.raises(InputError, match="no findings here; `expertp paper make NAME --out"):
        write_page(tmp_path)


def test_a_finding_may_have_a_table(tmp_path):
    put(tmp_path, "softmax", table=[["axis", "drift"], ["width", "+0.1 |x|"]])
    assert "\n\n| axis | drift |\n|---|---|\n| width | +0.1 \\|x\\| |\n\n" in write_page(tmp_path).read_text()


def test_remarks_stand_in_their_sections(tmp_path):
    put(tmp_path, "softmax")
    put(tmp_path, "speedrun", criteria=None)
    (tmp_path / "remarks.yaml").write_text(
        "remarks:\n  speedrun:\n    verdict: HOLDS\n    remark: |\n      So it is.\n"
    )
    speedrun, softmax = write_page(tmp_path).read_text().split("## s")[1:]
    assert "Because.\n\nSo it is.\n\n`expertp paper make speedrun`" in speedrun
    assert "So it is." not in softmax


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{softmax: {verdict: INCONCLUSIVE, remark: x}}", "about INCONCLUSIVE, but the answer is HOLDS"),
        ("{softmx: {verdict: HOLDS, remark: x}}", "did you mean 'softmax'?"),
        ("{softmax: {verdict: HOLD, remark: x}}", "verdict"),
        ("{softmax: {verdict: HOLDS}}", "remark"),
    ],
)
def test_a_remark_about_something_else_is_refused_and_the_page_stays(tmp_path, text, said):
    put(tmp_path, "softmax")
    before = write_page(tmp_path).read_text()
    (tmp_path / "remarks.yaml").write_text(f"remarks: {text}")
    with pytest.raises(InputError, match=re.escape(said)):
        write_page(tmp_path)
    assert (tmp_path / "README.md").read_text() == before
