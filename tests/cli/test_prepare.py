"""What a user of `expertp prepare` sees: the summary, the help, and one line for each mistake."""

import gzip
import io
import json
import os
import sys
from pathlib import Path

import pytest

from expertp.cli.main import build_parser, main
from expertp.data import open_dataset


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(12):
        (folder / f"{i:02d}.txt").write_text(f"Document {i} says hello. " * (20 + i))
    return folder


@pytest.mark.usefixtures("on_terminal")
def test_summary_tells_what_is_there_and_what_to_do_next(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (texts / "empty.txt").write_text("")
    (texts / "logo.png").write_bytes(b"")
    assert main(["prepare", "texts", "--out", "out", "--tokenizer", "bytes", "--val-fraction", "0.1"]) == 0
    out, err = capsys.readouterr()
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    dataset = open_dataset("out")
    assert list(lines) == ["tokenizer", "train", "val", "skipped", "speed", "directory"]
    assert lines["tokenizer"] == "bytes, 257 ids, stored as uint16"
    assert lines["train"] == f"{dataset.train.tokens:,} tokens, 11 documents, 1 shard"
    share = dataset.val.tokens / (dataset.train.tokens + dataset.val.tokens)
    assert lines["val"] == f"{dataset.val.tokens:,} tokens, 1 document, 1 shard ({share:.1%} of all)"
    assert lines["skipped"] == "1 empty document"
    assert lines["speed"].startswith(f"{dataset.train.tokens + dataset.val.tokens:,} tokens in ")
    assert lines["speed"].endswith(" tokens/s")
    assert lines["directory"] == "out"
    train = "expertp train configs/run.yaml --out out/out train.data=out model.vocab_size=320"
    assert err == f"prepare: skipped files: 1 .png\nnext: expertp init && {train}\n"


def test_a_second_time_there_is_nothing_to_do(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["prepare", "texts", "--out", "out", "--tokenizer", "bpe", "--vocab-size", "300"]
    assert main(command) == 0
    training, share = capsys.readouterr().err.splitlines()
    assert training == "prepare: training a bpe tokenizer of 300 ids"
    assert share.startswith(
        "prepare: val has 10.1% of the tokens, but 1% was requested: the source has too few documents"
    )
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert err == "prepare: nothing to do: out is complete\n"
    assert "speed" not in out
    assert "directory" in out


def test_one_text_file_and_the_same_text_piped_are_cut_into_train_and_val(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "First Citizen:\nBefore we proceed any further, hear me speak.\n\n" * 500
    Path("input.txt").write_text(text)
    command = ["--tokenizer", "bytes", "--val-fraction", "0.1"]
    assert main(["prepare", "input.txt", "--out", "one", *command]) == 0
    out, err = capsys.readouterr()
    assert "train      27,901 tokens, 1 document, 1 shard\n" in out
    assert "val        3,101 tokens, 1 document, 1 shard (10.0% of all)\n" in out
    assert "cut        1 document, whose end is in val\n" in out
    assert err == ""
    for expected in ("", "prepare: nothing to do: two is complete\n"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["prepare", "-", "--out", "two", *command]) == 0
        assert capsys.readouterr().err == expected
    assert open_dataset("one").content_hash == open_dataset("two").content_hash


@pytest.mark.usefixtures("on_terminal")
def test_names_that_a_terminal_would_obey_are_escaped(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (texts / "x.\x1b[2J").write_text("")
    out_name = "a b\x1b[2J"
    assert main(["prepare", "texts", "--out", out_name, "--tokenizer", "bytes", "--val-fraction", "0.1"]) == 0
    assert main(["prepare", "texts", "--out", out_name, "--tokenizer", "bytes", "--val-fraction", "0.1"]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "skipped files: 1 .\\x1b[2J" in err
    assert "'train.data=a b\\x1b[2J' model" in err


def test_json_is_the_manifest(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "texts", "--out", "out", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(Path("out/manifest.json").read_text())
    assert printed["tokenizer"] == {"name": "gpt2", "vocab_size": 50257, "eot": 50256, "sha256": None}


def test_flags_are_few_and_explained() -> None:
    parser = build_parser("prepare")
    flags = [action.option_strings[-1] for action in parser._actions if action.option_strings]
    assert flags == [
        *("--help", "--out", "--tokenizer", "--vocab-size", "--val-fraction", "--shard-tokens", "--text-key", "--json"),
    ]
    text = parser.format_help()
    for default in ("gpt2", "4096", "0.01", "16777216", "text"):
        assert f"(default: {default})" in " ".join(text.split())
    assert text.count("  expertp prepare ") == 2


MISTAKES = [
    ("nowhere --out out", "source 'nowhere' does not exist; give a file, a folder, 'builtin' or 'hf:NAME[:CONFIG]'"),
    (
        "images --out out",
        "no readable files in folder 'images' (it has 1 .png); supported extensions are .jsonl .jsonl.gz",
    ),
    ("void --out out", "source 'void' has no text"),
    ("single.txt --out out", "has only one document of 8 characters, too few for --val-fraction 0.01; give more text"),
    ("latin1 --out out", "latin1/a.txt is not UTF-8 (byte 0xe9 at offset 3); convert it, for example: iconv"),
    ("badjson.jsonl --out out", "badjson.jsonl:2 is not JSON (Expecting value at column 10)"),
    ("damaged.jsonl.gz --out out", "damaged.jsonl.gz is a damaged gzip file"),
    (
        "bodies.jsonl --out out",
        "bodies.jsonl:1 has no field 'text'; its fields are body, n; choose one with --text-key",
    ),
    ("bodies.jsonl --out out --text-key n", "bodies.jsonl:1: field 'n' is int, not a string"),
    ("wrong.parquet --out out", "wrong.parquet cannot be read as Parquet"),
    (
        "pipe --out out",
        "source 'pipe' is a pipe or device, not a file; pipe the text instead: COMMAND | expertp prepare",
    ),
    ("long.jsonl --out out", "long.jsonl:1 is not JSON (an integer has too many digits)"),
    ("deep.jsonl --out out", "deep.jsonl:1 is not JSON (too deeply nested)"),
    ("- --out out", "standard input has no text"),
    ("hf: --out out", "source 'hf:' names no dataset; write hf:NAME[:CONFIG]"),
    ("texts --out foreign", "foreign already has train.bin"),
    ("texts --out done", "done was prepared with --tokenizer bytes, not gpt2"),
    ("latin1 --out done", "done was prepared from 'texts' with other file names or sizes than 'latin1'"),
    ("texts --out damaged", "damaged/manifest.json: damaged (invalid JSON"),
    ("texts --out single.txt", "single.txt: File exists"),
    ("texts", "the following arguments are required: --out (see 'expertp prepare --help')"),
    ("texts --out out --tokenizer words", "argument --tokenizer: invalid choice: 'words'"),
    ("texts --out out --vocab-size 512", "vocabulary size 512 given for the gpt2 tokenizer, whose size is fixed"),
    ("texts --out out --tokenizer bpe --vocab-size 99", "vocabulary size 99 of a bpe tokenizer: must be 257"),
    ("texts --out out --val-fraction 1", "val fraction 1 is not in 0 to 0.5"),
    ("texts --out out --shard-tokens -5", "shard tokens -5 is not positive"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_mistakes_give_one_line_and_exit_code_2(
    texts: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    message: str,
) -> None:
    for folder in ("images", "void", "latin1", "foreign", "damaged"):
        Path(folder).mkdir()
    Path("images/a.png").write_bytes(b"")
    os.mkfifo("pipe")
    Path("long.jsonl").write_text('{"text": "a", "n": ' + "9" * 5000 + "}")
    Path("deep.jsonl").write_text("[" * 100_000)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    Path("void/a.txt").write_bytes(b"")
    Path("single.txt").write_text("one text")
    Path("latin1/a.txt").write_bytes(b"caf\xe9")
    Path("badjson.jsonl").write_text('{"text": "a"}\n{"text": }\n')
    Path("damaged.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n')[:-3])
    Path("bodies.jsonl").write_text('{"body": "a", "n": 1}\n')
    Path("wrong.parquet").write_bytes(b"wrong")
    Path("foreign/train.bin").write_bytes(b"ab")
    Path("damaged/manifest.json").write_text("{")
    if "--out done" in command:
        main(["prepare", "texts", "--out", "done", "--tokenizer", "bytes"])
        capsys.readouterr()
    assert main(["prepare", *command.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("expertp: ")
    assert message in err
    assert err.count("\n") == 1
    assert not Path("out").exists()
