"""Which documents go to val, and where long ones are cut."""

import importlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expertp.data import Manifest, PrepareOptions, load_tokenizer, open_dataset, prepare
from expertp.data.manifest import Split
from expertp.data.splitting import CLOSE, SHORTEST_VAL, is_close, place_of_cut, scan, train_part
from expertp.data.tokenizers import load_bytes, load_gpt2

MODULE = importlib.import_module("expertp.data.prepare")
BYTES = PrepareOptions(tokenizer="bytes", val_fraction=0.1)


def play(seed: int, characters: int) -> str:
    """Return text in the form of a play: short lines and paragraphs."""
    source = random.Random(seed)
    words = ["king", "queen", "the", "of", "and", "night", "shall", "speak", "été", "love", "\n", "\n\n", "lord,"]
    text = ""
    while len(text) < characters:
        text += " ".join(source.choices(words, k=1000))
    return text[:characters]


def share_of(manifest: Manifest) -> float:
    return manifest.val.tokens / (manifest.train.tokens + manifest.val.tokens)


def parts_of(directory: Path) -> tuple[list[str], list[str]]:
    """Return the documents and parts of documents in train and in val."""
    dataset = open_dataset(directory)
    assert dataset.tokenizer is not None
    tokenizer = load_tokenizer(dataset.tokenizer, directory)
    found = []
    for shards in (dataset.train, dataset.val):
        ids = [i for shard in range(len(shards.files)) for i in shards.ids(shard).tolist()]
        ends = [place for place, i in enumerate(ids) if i == tokenizer.eot]
        starts = [0, *(end + 1 for end in ends[:-1])]
        found.append([tokenizer.decode(ids[start:end]) for start, end in zip(starts, ends, strict=True)])
    return found[0], found[1]


@pytest.mark.heavy
@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("kind", ["bytes", "gpt2", "bpe"])
def test_one_text_file_is_cut_into_train_and_val(tmp_path: Path, kind: str, fraction: float) -> None:
    text = play(1, 1_000_000 if (kind, fraction) == ("bytes", 0.1) else 100_000)
    (tmp_path / "input.txt").write_text(text)
    options = PrepareOptions(tokenizer=kind, vocab_size=300 if kind == "bpe" else None, val_fraction=fraction)
    notes: list[str] = []
    manifest = prepare(str(tmp_path / "input.txt"), tmp_path / "out", options, on_note=notes.append)
    assert share_of(manifest) == pytest.approx(fraction, rel=0.1)
    assert (manifest.train.documents, manifest.val.documents) == (1, 1)
    assert (manifest.cut_documents, manifest.empty_documents) == (1, 0)
    (train,), (val,) = parts_of(tmp_path / "out")
    assert train + val == text
    assert train.endswith("\n")
    assert not val.startswith("\n")
    assert not [note for note in notes if "requested" in note]


@pytest.mark.heavy
def test_three_novels_give_val_the_requested_share(tmp_path: Path) -> None:
    novels = [play(seed, length) for seed, length in enumerate((150_000, 90_000, 140_000))]
    for number, novel in enumerate(novels):
        (tmp_path / f"{number}.txt").write_text(novel)
    manifest = prepare(str(tmp_path), tmp_path / "out", replace(BYTES, val_fraction=0.01))
    assert share_of(manifest) == pytest.approx(0.01, rel=0.1)
    assert manifest.cut_documents == 3
    train, val = parts_of(tmp_path / "out")
    assert [start + end for start, end in zip(train, val, strict=True)] == novels


def test_a_short_last_file_does_not_become_all_of_val(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(play(number, 100_000))
    (tmp_path / "zz_licence.txt").write_text("Do what you like.")
    assert share_of(prepare(str(tmp_path), tmp_path / "out", BYTES)) == pytest.approx(0.1, rel=0.1)


@pytest.mark.heavy
def test_a_long_document_among_short_ones_is_cut(tmp_path: Path) -> None:
    texts = [play(seed, 300) for seed in range(100)]
    texts.insert(70, play(1000, 300_000))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    manifest = prepare(str(tmp_path / "x.jsonl"), tmp_path / "out", BYTES)
    assert share_of(manifest) == pytest.approx(0.1, rel=0.1)
    train, val = parts_of(tmp_path / "out")
    cut = set(texts) - {*train, *val}
    assert texts[70] in cut
    assert len(cut) == manifest.cut_documents < 4


def test_many_short_documents_are_split_as_before(tmp_path: Path) -> None:
    """The hash is that of version 0.1.0 before documents could be cut."""
    texts = [play(seed, 200 + 37 * seed % 500) for seed in range(60)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    manifest = prepare(str(tmp_path / "x.jsonl"), tmp_path / "out", BYTES)
    assert manifest.cut_documents == 0
    assert manifest.content_hash == "c6212335169a0c7e676caf58c2bfb4c6127153d9c775b022c7d0b23593aef783"


class Stop(Exception):
    pass


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["bytes", "gpt2"])
def test_cutting_resumes_after_any_shard_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(MODULE, "_BATCH_CHARACTERS", 1500)
    source = tmp_path / "source"
    source.mkdir()
    for number, length in enumerate((30_000, 500, 20_000, 900, 60_000, 25_000, 300)):
        (source / f"{number}.txt").write_text(play(number, length))
    options = PrepareOptions(tokenizer=kind, val_fraction=0.05, shard_tokens=2000)
    whole = prepare(str(source), tmp_path / "whole", options)
    assert whole.cut_documents > 2
    write, stops = MODULE.write_record, 0

    def write_and_stop(path: Path, record: dict[str, object]) -> None:
        nonlocal stops
        write(path, record)
        if path.name == "progress.json":
            stops += 1
            raise Stop

    monkeypatch.setattr(MODULE, "write_record", write_and_stop)
    for _ in range(30):
        try:
            resumed = prepare(str(source), tmp_path / "out", options)
            break
        except Stop:
            monkeypatch.setattr(MODULE, "write_record", write_and_stop if stops > 1 else _stop_later(write_and_stop))
    assert stops >= len(whole.train.shards) - 1
    assert resumed == whole
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("whole", "out")]
    assert files[0] == files[1]


def _stop_later(write_and_stop: Callable[[Path, dict[str, object]], None]) -> Callable[..., None]:
    """Let the first record of a call pass: it has nothing to resume from, so each call would write it again."""
    from expertp.util.records import write_record

    def write(path: Path, record: dict[str, object]) -> None:
        (write_and_stop if record.get("documents_consumed") else write_record)(path, record)

    return write


@pytest.mark.heavy
@settings(deadline=None)
@given(
    st.lists(st.integers(0, 4000) | st.integers(0, 60), min_size=1, max_size=12),
    st.sampled_from([0.01, 0.05, 0.1, 0.3, 0.5]),
    st.integers(0, 2**32),
)
def test_parts_are_whole_and_the_share_is_close_for_any_lengths(lengths: list[int], fraction: float, seed: int) -> None:
    """With a long document at the end, cutting gives the share whatever came before."""
    tokenizer, train, val, cuts, source = load_bytes(), Split(), Split(), 0, random.Random(seed)
    lengths = [*lengths, 10 * max(lengths) + 5000]
    for number, length in enumerate(lengths):
        text = "".join(source.choices(["a", "é", "🙂", " ", "\n", "\n\n"], k=length))
        ids = tokenizer.encode_batch([text])[0]
        if not text:
            continue
        is_last = number == len(lengths) - 1
        at = train_part(ids, tokenizer, train, val, fraction, cuts, is_last)
        assert 0 <= at <= len(ids)
        assert bytes(ids[:at].tolist()).decode() + bytes(ids[at:].tolist()).decode() == text
        train = Split(train.documents + 1, train.tokens + at + 1) if at else train
        val = Split(val.documents + 1, val.tokens + len(ids) - at + 1) if at < len(ids) else val
        cuts += 0 < at < len(ids)
    assert is_close(val.tokens / (train.tokens + val.tokens), fraction)


@given(st.lists(st.integers(0, 10**6), max_size=80), st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.5]))
def test_a_scan_decides_for_cutting_only_where_whole_documents_miss_the_share(
    lengths: list[int], fraction: float
) -> None:
    found = scan(lengths, fraction)
    if fraction == 0:
        assert found.documents == min(1, sum(length > 0 for length in lengths))
        return
    if found.is_complete:
        assert found.documents == sum(length > 0 for length in lengths)
        assert found.characters == sum(lengths)
    if found.cuts(fraction):
        assert found.characters * fraction >= SHORTEST_VAL
        assert not fraction / CLOSE <= found.share <= fraction * CLOSE


def test_a_scan_of_many_equal_documents_stops_early() -> None:
    read = 0

    def lengths():
        nonlocal read
        for _ in range(100_000):
            read += 1
            yield 1000

    assert not scan(lengths(), 0.01).cuts(0.01)
    assert read < 1100


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("one two\nthree four\n\nfive six\nseven", "five six\nseven"),
        ("one two\r\nthree four\r\n\r\nfive six\r\nseven", "five six\r\nseven"),
        ("one two three four five\nsix seven", "six seven"),
        ("one two three fourfive six seven", " six seven"),
        ("é" * 40, "é" * 8),
        ("日" * 40, "日" * 5),
    ],
)
@pytest.mark.parametrize("tokenizer", [load_bytes(), load_gpt2()], ids=["bytes", "gpt2"])
def test_cuts_prefer_paragraphs_then_lines_then_words_then_characters(tokenizer, text: str, start: str) -> None:
    ids = tokenizer.encode_batch([text])[0]
    end = len(tokenizer.encode_batch([start])[0])
    at = place_of_cut(ids, end, tokenizer)
    assert tokenizer.decode(ids[:at]) + tokenizer.decode(ids[at:]) == text
    assert "\N{REPLACEMENT CHARACTER}" not in tokenizer.decode(ids[at:])
    assert tokenizer.decode(ids[at:]) == start or start[0] in "é日"


def test_a_share_that_cannot_be_met_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "aaaaaaaaa"}\n{"text": "bbbbbbbbb"}\n')
    notes: list[str] = []
    prepare(str(tmp_path / "x.jsonl"), tmp_path / "out", BYTES, on_note=notes.append)
    (note,) = notes
    assert note.startswith("val has 50% of the tokens, but 10% was requested: the source has too few documents")


def test_a_directory_of_the_earlier_version_is_complete_and_opens(tmp_path: Path) -> None:
    """Three novels in whole documents, 37% in val: such a directory is neither refused nor prepared again."""
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(play(number, 20_000))
    before = prepare(str(tmp_path), tmp_path / "out", replace(BYTES, val_fraction=0.3))
    record = json.loads((tmp_path / "out" / "manifest.json").read_text())
    del record["cut_documents"]
    record["options"]["val_fraction"] = 0.01
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(record))
    notes: list[str] = []
    again = prepare(str(tmp_path), tmp_path / "out", replace(BYTES, val_fraction=0.01), on_note=notes.append)
    assert notes == [f"nothing to do: {tmp_path / 'out'} is complete"]
    assert again.content_hash == before.content_hash == open_dataset(tmp_path / "out").content_hash
