import gzip
import json
import os
import sys
from pathlib import Path

import pytest

from expertp.data.sources import TEXT_ENDINGS, find_corpus, read_documents
from expertp.errors import InputError


def read(source: str | Path, text_key: str = "text") -> list[tuple[str, str]]:
    return [(document.id, document.text) for document in read_documents(find_corpus(str(source), text_key))]


@pytest.mark.heavy
def test_builtin_is_the_standard_library_without_tests() -> None:
    corpus = find_corpus("builtin")
    documents = list(read_documents(corpus))
    names = [document.id for document in documents]
    assert {"argparse.py", "json/decoder.py", "asyncio/tasks.py"} <= set(names)
    assert names == sorted(names)
    assert not [name for name in names if "site-packages" in name or "/tests/" in name or name.startswith("test/")]
    assert documents[-1].bytes_read == corpus.bytes_total
    assert corpus.bytes_total is not None
    assert corpus.bytes_total > 5_000_000


def test_folder_of_text_in_order_of_paths_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a.py", ".hidden.txt", ".git/x.txt", "picture.png", "Makefile"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(tmp_path) == [("a.py", "a.py"), ("a/z.md", "a/z.md"), ("b.txt", "b.txt")]
    assert sorted(find_corpus(str(tmp_path)).left_out) == [("(no extension)", 1), (".png", 1)]


def test_one_file_of_any_ending_is_text(tmp_path: Path) -> None:
    file = tmp_path / "notes.log"
    file.write_bytes(b"\xef\xbb\xbfa byte order mark is no text")
    assert read(file) == [("notes.log", "a byte order mark is no text")]


def test_jsonl_plain_and_compressed_with_another_key(tmp_path: Path) -> None:
    lines = b'{"body": "one"}\n\n{"body": "two \\ud83d\\ude42", "n": 1}\n{"body": "half \\ud83d"}\n'
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "README.md").write_text("about the data")
    texts = ["one", "two 🙂", "half \N{REPLACEMENT CHARACTER}"]
    ids = [f"{name}:{line}" for name in ("a.jsonl", "b.jsonl.gz") for line in (1, 3, 4)]
    assert read(tmp_path, "body") == list(zip(ids, texts * 2, strict=True))
    assert find_corpus(str(tmp_path), "body").left_out == ((".md", 1),)
    documents = list(read_documents(find_corpus(str(tmp_path), "body")))
    assert [d.bytes_read for d in documents[:3]] == [16, lines.index(b'{"body": "half'), len(lines)]
    assert documents[-1].bytes_read == find_corpus(str(tmp_path), "body").bytes_total


def write_parquet(path: Path, **columns: list[object]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def test_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", id=[1, 2, 3], text=["a", "", "c"])
    assert read(tmp_path) == [("x.parquet:1", "a"), ("x.parquet:2", ""), ("x.parquet:3", "c")]
    assert read(tmp_path / "x.parquet") == read(tmp_path)


@pytest.mark.heavy
def test_hub_reads_what_datasets_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(3)))
    (folder / "test.jsonl").write_text('{"text": "not for training"}\n')
    assert [text for _, text in read(f"hf:{folder}")] == ["row 0", "row 1", "row 2"]
    with pytest.raises(InputError, match=r"'no/such' .*network"):
        read("hf:no/such")
    with pytest.raises(InputError, match=r"config \(nothing\)"):
        read(f"hf:{folder}:nothing")
    with pytest.raises(InputError, match=r"has no field 'body'; its fields are text; .* --text-key"):
        read(f"hf:{folder}", "body")


def test_fingerprint_follows_names_and_sizes_not_the_place(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("same size")
    one, two = (find_corpus(str(tmp_path / folder)).fingerprint for folder in ("one", "two"))
    assert one == two
    (tmp_path / "two" / "b.txt").write_text("")
    assert find_corpus(str(tmp_path / "two")).fingerprint != one
    assert find_corpus(str(tmp_path / "one"), "body").fingerprint != one
    assert find_corpus("hf:allenai/c4:en").fingerprint != find_corpus("hf:allenai/c4:de").fingerprint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"caf\xe9 au lait", r"a.txt is not UTF-8 \(byte 0xe9 at offset 3\).*iconv"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": "\xe9"}\n', r"a.jsonl:2 is not UTF-8 .* offset 25"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": \n', r"a.jsonl:2 is not JSON \(Expecting value at column"),
        ("a.jsonl", b'["text"]\n', r"a.jsonl:1 is a JSON list, not an object"),
        ("a.jsonl", b'{"body": "x", "n": 1}\n', r"a.jsonl:1 has no field 'text'; its fields are body, n; choose one"),
        ("a.jsonl", b'{"text": 5}\n', r"a.jsonl:1: field 'text' is int, not a string"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "ok"}\n' * 99, mtime=0)[:-12], r"a.jsonl.gz is a damaged gzip file"),
        ("a.jsonl.gz", b"plain", r"a.jsonl.gz is a damaged gzip file"),
        ("a.parquet", b"no parquet at all", r"a.parquet cannot be read as Parquet .*again"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_bad_parquet_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", id=[1], body=["a"])
    with pytest.raises(InputError, match=r"x.parquet has no field 'text'; its fields are id, body; choose"):
        read(tmp_path)
    with pytest.raises(InputError, match=r"x.parquet: field 'id' is int64, not a string"):
        read(tmp_path, "id")


def test_missing_libraries_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "x.parquet", text=["a"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pyarrow: pip install -e '.\[data\]'"):
        read(tmp_path)
    with pytest.raises(InputError, match=r"datasets: pip install -e '.\[data\]'"):
        read("hf:some/name")


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not exist; give a file, a folder, 'builtin' or 'hf:"):
        find_corpus(str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="names no dataset"):
        find_corpus("hf:")
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(
        InputError, match=r"no readable files .*\(it has 1 .png\); supported extensions are .jsonl"
    ) as caught:
        find_corpus(str(tmp_path))
    assert all(ending in str(caught.value) for ending in TEXT_ENDINGS)


def test_pipes_links_and_devices_in_a_folder_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.txt").write_text("b")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "dangling.txt").symlink_to("nowhere")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    (tmp_path / "device.txt").symlink_to("/dev/zero")
    (tmp_path / "linked").symlink_to("folder")
    (tmp_path / "good.txt").symlink_to("a.txt")
    assert [name for name, _ in read(tmp_path)] == ["a.txt", "folder/b.txt", "good.txt"]
    expected = [("(broken link)", 2), ("(linked folder)", 1), ("(pipe, socket or device)", 2)]
    assert list(find_corpus(str(tmp_path)).left_out) == expected


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "b.txt").write_text("b")
    scan = os.scandir

    def scan_or_refuse(path: str) -> object:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_or_refuse)  # root may list every folder
    with pytest.raises(InputError, match=r"folder '.*secret' cannot be read \(Permission denied\); make it readable"):
        find_corpus(str(tmp_path))


def test_a_pipe_as_source_is_refused_without_opening_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (str(tmp_path / "pipe"), "/dev/null"):
        with pytest.raises(InputError, match=r"is a pipe or device, .* COMMAND \| expertp prepare - --out DIR"):
            find_corpus(source)
    with pytest.raises(InputError, match="source '' does not exist"):
        find_corpus("")


def test_names_of_any_bytes_are_read(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    for name in (b"\xff\xfe.txt", b"new\nline.txt", b"\x1b[2J.txt"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(b"text")
    with open(os.path.join(folder, b"x.\x1b[2J"), "wb") as file:
        file.write(b"")
    assert [text for _, text in read(tmp_path)] == ["text"] * 3
    assert find_corpus(str(tmp_path)).left_out == ((".\\x1b[2J", 1),)
