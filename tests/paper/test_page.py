import json

import pytest

from expertp.errors import InputError
from expertp.paper.page import as_markdown, stored, write_page

RECORD = {
    "where": "Fig. 9", "claim": "It is so.", "studies": [], "pictures": ["one", "two"], "verdict": "HOLDS",
    "number": "|Load| 1.5", "why": "Because.", "profile": "cpu", "cost": "3 runs",
    "text": ["novels-512", "builtin-512 in place of k8s-docs"],
}  # fmt: skip


def put(folder, name, **changes):
    place = folder / "findings" / name
    place.mkdir(parents=True)
    (place / "finding.json").write_text(json.dumps({**RECORD, "name": name, **changes}))


def test_the_page_has_an_index_and_a_section_per_finding(tmp_path):
    put(tmp_path, "softmax", verdict="INCONCLUSIVE")
    put(tmp_path, "speedrun")
    text = write_page(tmp_path).read_text()
    assert text.index("| [speedrun](#speedrun) | Fig. 1, Finding 2.1 | HOLDS | \\|Load\\| 1.5 |") < text.index(
        "| [softmax]"
    )
    assert text.index("## speedrun") < text.index("## softmax")
    assert "![two](findings/softmax/two.svg)" in text
    assert "**INCONCLUSIVE**: |Load| 1.5. Because." in text
    assert "`expertp figures speedrun`: 3 runs. Text: novels-512, builtin-512 in place of k8s-docs." in text
    assert "It is so." not in text  # the claim is that of the catalogue, however old the record
    assert text == as_markdown(stored(tmp_path))


def test_an_empty_directory_has_no_page(tmp_path):
    with pytest.raises(InputError, match="no findings here; `expertp figures NAME --out"):
        write_page(tmp_path)
