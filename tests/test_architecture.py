"""docs/architecture.md names files and functions that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
ANSWERS = re.findall(r"^\*\*(.+?)\*\*(.+?)(?=^\*\*|\Z)", PAGE.partition("## Four questions")[2], re.M | re.S)


def test_the_map_has_every_room() -> None:
    rooms = {room for row in re.findall(r"^\| (`.*?) \|", PAGE, re.M) for room in re.findall(r"`([\w/.]+)`", row)}
    source = ROOT / "src/expertp"
    there = {path.name for path in source.glob("*.py") if path.name != "__init__.py"}
    there |= {f"{path.parent.name}/" for path in source.glob("*/__init__.py")}
    assert rooms == there


def test_there_are_three_answers() -> None:
    assert len(ANSWERS) == 4


@pytest.mark.parametrize(("question", "answer"), ANSWERS, ids=[question for question, _ in ANSWERS])
def test_an_answer_names_files_and_what_stands_in_them(question: str, answer: str) -> None:
    named = re.findall(r"`([^`]+)`", answer)
    files = [name for name in named if name.startswith("src/")]
    assert files, question
    for file in files:
        assert (ROOT / file).is_file(), f"{file} does not exist"
    text = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    for name in set(named) - set(files):
        assert all(part in text for part in name.split(".")), f"{name} is in none of {', '.join(files)}"


def test_every_function_of_the_data_path_is_public() -> None:
    import expertp

    path = PAGE.partition("## The way of the data")[2].partition("## Four questions")[0]
    functions = set(re.findall(r"^(\w+)\(", path, re.M)) - {"expand"}
    assert functions <= set(expertp.__all__)


def test_executors_are_short() -> None:
    lines = {path.name: path.read_text().count("\n") for path in (ROOT / "src/expertp/study/executors").glob("*.py")}
    assert {"local.py", "slurm.py", "ray.py"} < lines.keys()
    assert max(lines.values()) < 150, lines
