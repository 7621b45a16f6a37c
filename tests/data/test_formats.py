"""Hostile files: whatever a file contains, one line says what is wrong with it."""

import gzip
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from expertp.data import formats
from expertp.data.formats import read_file
from expertp.errors import InputError, one_line


def read(path: Path, text_key: str = "text") -> list[str]:
    return [document.text for document in read_file(path, path.name, text_key)]


def refusal(path: Path, text_key: str = "text") -> str:
    with pytest.raises(InputError) as caught:
        read(path, text_key)
    return str(caught.value)


def said_of(path: Path) -> str:
    """Read a file and return the message of a refusal; any other error is raised."""
    try:
        read(path)
    except InputError as error:
        return one_line(str(error))
    return ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", r"a.jsonl:1 is not JSON (an integer has too many digits)"),
        (b'{"text": "a", "n": ' + b"[" * 100_000, r"a.jsonl:1 is not JSON (too deeply nested)"),
        (b"[" * 100_000 + b"]" * 100_000, r"a.jsonl:1 is not JSON (too deeply nested)"),
        (b'{"text": ' + b"9" * 400 + b"}", r"a.jsonl:1: field 'text' is int, not a string"),
        (b'{"text": NaN}', r"a.jsonl:1: field 'text' is float, not a string"),
        (b'{"text": null}', r"a.jsonl:1: field 'text' is null, not a string"),
        (b'{"text": "a", "text": "b"}', r"a.jsonl:1 has the field 'text' more than once"),
        (b'"text"', r'a.jsonl:1 is a JSON str, not an object; write {"text": ...} per line'),
        (b"Infinity", r"a.jsonl:1 is a JSON float, not an object"),
        (b'{"text": "a"', r"a.jsonl:1 is not JSON (Expecting"),
        (b"\x00\x01", r"a.jsonl:1 is not JSON (Expecting value at column 1)"),
        (
            json.dumps({f"\x1b[2Jfield{n}" + "x" * 10_000: n for n in range(1000)}).encode(),
            r"a.jsonl:1 has no field 'text'; its fields are \x1b[2Jfi",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_hostile_line_of_jsonl_is_one_line(tmp_path: Path, line: bytes, message: str) -> None:
    for name, content in (("a.jsonl", line + b"\n"), ("a.jsonl.gz", gzip.compress(line + b"\n"))):
        (tmp_path / name).write_bytes(content)
        said = refusal(tmp_path / name)
        assert message.replace("a.jsonl", name) in said
        assert len(said) < 1000
        assert said.isprintable()


def test_fields_of_nested_objects_are_not_repeated_fields(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"meta": {"text": 1}, "text": "a", "list": [["text", 2]]}\n')
    assert read(tmp_path / "a.jsonl") == ["a"]


def test_lines_and_texts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LONGEST_JSON", 2**20)
    monkeypatch.setattr(formats, "LARGEST_TEXT", 2**20)
    bomb = gzip.compress(b'{"text": "ok"}\n' + b" " * 2**25)
    (tmp_path / "a.jsonl.gz").write_bytes(bomb)
    tracemalloc.start()
    try:
        assert "a.jsonl.gz:2 is longer than 1 MiB" in refusal(tmp_path / "a.jsonl.gz")
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()
    (tmp_path / "a.txt").write_bytes(b"a" * (2**20 + 1))
    assert "the most for one document; split it" in refusal(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(b"a" * 2**20)
    assert len(read(tmp_path / "a.txt")[0]) == 2**20


def test_the_offset_of_a_bad_byte_counts_the_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfcaf\xe9")
    assert "(byte 0xe9 at offset 6)" in refusal(tmp_path / "a.txt")


@pytest.mark.heavy
def test_gzip_with_any_byte_changed_or_cut_off_is_read_or_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b'{"text": "%d"}\n' % n for n in range(40)), mtime=0)
    path, refused = tmp_path / "a.jsonl.gz", 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x55
        for content in (bytes(changed), whole[:place]):
            path.write_bytes(content)
            refused += bool(said_of(path))
    assert refused > len(whole)


def write_parquet(path: Path, column: Any, name: str = "text") -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"id": list(range(len(column))), name: column}), path)
    return path


def test_parquet_columns_that_are_not_strings_are_refused(tmp_path: Path) -> None:
    import pyarrow

    columns = {
        "binary": pyarrow.array([b"a"]),
        "list<": pyarrow.array([["a"]]),
        "struct<": pyarrow.array([{"a": 1}]),
        "int64": pyarrow.array([1]),
        "null": pyarrow.array([None]),
    }
    for kind, column in columns.items():
        said = refusal(write_parquet(tmp_path / "x.parquet", column))
        assert f"x.parquet: field 'text' is {kind}" in said
        assert "not a string; choose another field with --text-key" in said
    assert "has no field 'text.a'" in refusal(
        write_parquet(tmp_path / "x.parquet", pyarrow.array([{"a": "b"}])), "text.a"
    )
    assert "x.parquet:2: field 'text' is null" in refusal(
        write_parquet(tmp_path / "x.parquet", pyarrow.array(["a", None]))
    )


def test_parquet_strings_of_any_kind_are_read(tmp_path: Path) -> None:
    import pyarrow

    texts = pyarrow.array(["a", "b", "a"])
    for column in (texts, texts.cast(pyarrow.large_string()), texts.dictionary_encode()):
        assert read(write_parquet(tmp_path / "x.parquet", column)) == ["a", "b", "a"]
    assert read(write_parquet(tmp_path / "x.parquet", pyarrow.array([], pyarrow.string()))) == []


@pytest.mark.heavy
def test_parquet_with_random_bytes_changed_is_read_or_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", [f"text {n} é" * 3 for n in range(200)])
    whole, source, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(source.choice([1, 1, 4])):
            changed[source.randrange(len(changed))] = source.randrange(256)
        path.write_bytes(changed[: source.randrange(len(whole))] if source.random() < 0.1 else changed)
        refused += bool(said_of(path))
    assert refused > 50


def test_a_parquet_file_that_cannot_be_opened_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "x.parquet")

    path = write_parquet(tmp_path / "x.parquet", ["a"])
    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", refuse)
    with pytest.raises(PermissionError):
        read(path)
