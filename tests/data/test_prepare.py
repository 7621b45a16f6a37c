import importlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expertp.data import Manifest, PrepareOptions, PrepareProgress, load_tokenizer, open_dataset, prepare
from expertp.data.manifest import Split, content_hash
from expertp.data.sources import find_corpus, read_documents
from expertp.data.splitting import goes_to_val
from expertp.errors import DamagedError, InputError
from expertp.util.files import LOCK_FILE

# `expertp.data.prepare` the attribute is the function; the module is this.
MODULE = importlib.import_module("expertp.data.prepare")
OPTIONS = PrepareOptions(tokenizer="bytes", val_fraction=0.1, shard_tokens=3000)
KINDS = [OPTIONS, replace(OPTIONS, tokenizer="gpt2"), replace(OPTIONS, tokenizer="bpe", vocab_size=400)]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "_BATCH_CHARACTERS", 1500)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != LOCK_FILE}


def documents_in(directory: Path) -> dict[str, list[str]]:
    """Decode a prepared directory back into the texts of each split."""
    dataset = open_dataset(directory)
    assert dataset.tokenizer is not None
    tokenizer = load_tokenizer(dataset.tokenizer, directory)
    texts: dict[str, list[str]] = {}
    for name, shards in (("train", dataset.train), ("val", dataset.val)):
        texts[name] = []
        for shard in range(len(shards.files)):
            ids = shards.ids(shard).tolist()
            while ids:
                end = ids.index(tokenizer.eot)
                texts[name].append(tokenizer.decode(ids[:end]))
                ids = ids[end + 1 :]
    return texts


@pytest.mark.parametrize("options", KINDS, ids=lambda options: options.tokenizer)
def test_every_document_comes_back_in_order(corpus: Path, tmp_path: Path, options: PrepareOptions) -> None:
    manifest = prepare(str(corpus), tmp_path / "out", options)
    written = [document.text for document in read_documents(find_corpus(str(corpus))) if document.text]
    texts = documents_in(tmp_path / "out")
    assert len(texts["train"]) == manifest.train.documents > 20
    assert len(texts["val"]) == manifest.val.documents > 1
    assert sorted(texts["train"] + texts["val"]) == sorted(written)
    for split in texts.values():
        assert split == [text for text in written if text in set(split)]
    assert manifest.empty_documents == 2
    assert manifest.tokenizer.name == options.tokenizer
    assert len(manifest.train.shards) > 1
    assert all(shard.tokens >= options.shard_tokens for shard in manifest.train.shards[:-1])


def test_manifest_on_disk_is_the_one_returned_and_comes_alone(corpus: Path, tmp_path: Path) -> None:
    manifest = prepare(str(corpus), tmp_path / "out", OPTIONS)
    stored = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert stored["content_hash"] == manifest.content_hash
    assert stored["options"] == vars(OPTIONS)
    names = {shard["name"] for split in ("train", "val") for shard in stored[split]["shards"]}
    assert set(files_of(tmp_path / "out")) == names | {"manifest.json"}
    assert prepare(str(corpus), tmp_path / "again", OPTIONS) == manifest


def test_content_hash_follows_tokens_and_tokenizer_not_the_place(corpus: Path, tmp_path: Path) -> None:
    first = prepare(str(corpus), tmp_path / "one", OPTIONS)
    moved = corpus.rename(tmp_path / "moved")
    assert prepare(str(moved), tmp_path / "two", OPTIONS).content_hash == first.content_hash
    renamed = replace(first.tokenizer, eot=0)
    assert content_hash(first.dtype, renamed, first.train, first.val) != first.content_hash
    assert content_hash(first.dtype, first.tokenizer, first.val, first.train) != first.content_hash
    assert (
        prepare(str(moved), tmp_path / "three", replace(OPTIONS, val_fraction=0.2)).content_hash != first.content_hash
    )


def test_ids_beyond_16_bits_are_stored_in_32(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = MODULE.load_bytes()
    identity = replace(small.identity, vocab_size=2**16 + 1)
    monkeypatch.setattr(MODULE, "load_bytes", lambda: replace(small, identity=identity))
    manifest = prepare(str(corpus), tmp_path / "out", OPTIONS)
    assert manifest.dtype == "uint32"
    dataset = open_dataset(tmp_path / "out")
    assert dataset.train.ids(0).dtype.itemsize == 4
    assert dataset.train.ids(0).max() == 256


class Stop(Exception):
    pass


@pytest.mark.heavy
@pytest.mark.parametrize("options", KINDS, ids=lambda options: options.tokenizer)
@pytest.mark.parametrize("stop_after", [1, 12, 33])
def test_raising_in_the_middle_and_going_on(
    corpus: Path, tmp_path: Path, options: PrepareOptions, stop_after: int
) -> None:
    def stop(progress: PrepareProgress) -> None:
        if progress.documents >= stop_after:
            raise Stop

    whole, out = tmp_path / "whole", tmp_path / "out"
    prepare(str(corpus), whole, options)
    with pytest.raises(Stop):
        prepare(str(corpus), out, options, stop)
    with pytest.raises(InputError, match="is not finished"):
        open_dataset(out)
    assert not [name for name in files_of(out) if name.endswith(".tmp")]
    notes: list[str] = []
    prepare(str(corpus), out, options, on_note=notes.append)
    assert files_of(out) == files_of(whole)
    if stop_after == 33:
        assert [note for note in notes if note.startswith("resuming after ")]


@pytest.mark.heavy
def test_stopping_at_each_write_of_progress_and_going_on(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between renaming shards and noting them must not change anything either."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    prepare(str(corpus), whole, OPTIONS)
    write, stopped_at = MODULE.write_record, set()

    def write_or_stop(path: Path, record: dict[str, object]) -> None:
        place = (path.name, record.get("documents_consumed"))
        if place not in stopped_at:
            stopped_at.add(place)
            raise Stop
        write(path, record)

    monkeypatch.setattr(MODULE, "write_record", write_or_stop)
    for _ in range(20):
        try:
            prepare(str(corpus), out, OPTIONS)
            break
        except Stop:
            continue
    assert len(stopped_at) > 4
    assert files_of(out) == files_of(whole)


KILLED = """
import importlib, sys, time
module = importlib.import_module("expertp.data.prepare")
module._BATCH_CHARACTERS = 1500

def report(progress):
    print(progress.documents, flush=True)
    time.sleep(0.02)

module.prepare(sys.argv[1], sys.argv[2], module.PrepareOptions("bytes", None, 0.1, 3000), report)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("kill_after", [3, 20, 30])
def test_kill_minus_9_and_going_on(corpus: Path, tmp_path: Path, kill_after: int) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    prepare(str(corpus), whole, OPTIONS)
    command = [sys.executable, "-c", KILLED, str(corpus), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= kill_after:
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL
    assert (out / "progress.json").exists()
    assert not (out / "manifest.json").exists()
    prepare(str(corpus), out, OPTIONS)
    assert files_of(out) == files_of(whole)


def test_killed_after_the_manifest_is_finished(corpus: Path, tmp_path: Path) -> None:
    prepare(str(corpus), tmp_path / "out", OPTIONS)
    (tmp_path / "out" / "progress.json").write_text("{}")
    open_dataset(tmp_path / "out")
    prepare(str(corpus), tmp_path / "out", OPTIONS)
    assert not (tmp_path / "out" / "progress.json").exists()


def test_finished_directory_has_nothing_to_do(corpus: Path, tmp_path: Path) -> None:
    def forbid(progress: PrepareProgress) -> None:
        raise AssertionError("worked on a finished directory")

    first = prepare(str(corpus), tmp_path / "out", OPTIONS)
    notes: list[str] = []
    assert prepare(str(corpus), tmp_path / "out", OPTIONS, forbid, notes.append) == first
    assert notes == [f"nothing to do: {tmp_path / 'out'} is complete"]


def stopped(corpus: Path, out: Path) -> None:
    def stop(progress: PrepareProgress) -> None:
        if progress.documents >= 30:
            raise Stop

    with pytest.raises(Stop):
        prepare(str(corpus), out, OPTIONS, stop)


@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer": "gpt2"}, "with --tokenizer bytes, not gpt2"),
        ({"val_fraction": 0.2}, "with --val-fraction 0.1, not 0.2"),
        ({"shard_tokens": 4000}, "with --shard-tokens 3000, not 4000"),
    ],
)
def test_other_options_on_the_same_directory(
    corpus: Path, tmp_path: Path, is_finished: bool, change: dict[str, object], message: str
) -> None:
    out = tmp_path / "out"
    if is_finished:
        prepare(str(corpus), out, OPTIONS)
    else:
        stopped(corpus, out)
    before = files_of(out)
    with pytest.raises(InputError, match=message):
        prepare(str(corpus), out, replace(OPTIONS, **change))
    assert files_of(out) == before


@pytest.mark.parametrize("is_finished", [True, False])
def test_another_source_on_the_same_directory(corpus: Path, tmp_path: Path, is_finished: bool) -> None:
    out = tmp_path / "out"
    if is_finished:
        prepare(str(corpus), out, OPTIONS)
    else:
        stopped(corpus, out)
    (corpus / "c.jsonl").write_text('{"text": "one more"}\n')
    with pytest.raises(InputError, match=r"was prepared from '.*' with other file names or sizes"):
        prepare(str(corpus), out, OPTIONS)


def test_nothing_kept_means_any_options_may_start(corpus: Path, tmp_path: Path) -> None:
    def stop(progress: PrepareProgress) -> None:
        raise Stop

    with pytest.raises(Stop):
        prepare(str(corpus), tmp_path / "out", replace(OPTIONS, tokenizer="bpe"), stop)
    (tmp_path / "out" / "val_00007.bin").write_bytes(b"left by a crash")
    prepare(str(corpus), tmp_path / "out", OPTIONS)
    assert "val_00007.bin" not in files_of(tmp_path / "out")
    assert documents_in(tmp_path / "out")["val"]


def test_directories_of_others_are_left_alone(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.bin").write_bytes(b"ab")
    with pytest.raises(InputError, match=r"already has train.bin, which expertp prepare did not write"):
        prepare(str(corpus), tmp_path / "out", OPTIONS)
    assert files_of(tmp_path / "out") == {"train.bin": b"ab"}


def test_two_at_once_are_refused(corpus: Path, tmp_path: Path) -> None:
    def second(progress: PrepareProgress) -> None:
        with pytest.raises(InputError, match="another prepare is writing to"):
            prepare(str(corpus), tmp_path / "out", OPTIONS)
        seen.append(progress)

    seen: list[PrepareProgress] = []
    prepare(str(corpus), tmp_path / "out", OPTIONS, second)
    assert seen


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer": "word"}, "unknown tokenizer 'word'; choose one of gpt2, bytes, bpe"),
        ({"vocab_size": 300}, "vocabulary size 300 given for the bytes tokenizer, whose size is fixed; leave out"),
        ({"tokenizer": "bpe", "vocab_size": 256}, "vocabulary size 256 of a bpe tokenizer: must be 257"),
        ({"tokenizer": "bpe", "vocab_size": 0}, "vocabulary size 0 of a bpe tokenizer: must be 257"),
        ({"val_fraction": 0.6}, "val fraction 0.6 is not in 0 to 0.5"),
        ({"val_fraction": -1.0}, "val fraction -1 is not in 0 to 0.5"),
        ({"val_fraction": float("nan")}, "val fraction nan is not in 0 to 0.5"),
        ({"shard_tokens": 0}, "shard tokens 0 is not positive"),
    ],
)
def test_bad_options(corpus: Path, tmp_path: Path, change: dict[str, object], message: str) -> None:
    options = replace(OPTIONS)
    for field, value in change.items():
        object.__setattr__(options, field, value)  # a caller without a type checker can pass any value
    with pytest.raises(InputError, match=message):
        prepare(str(corpus), tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_empty_and_single_documents(tmp_path: Path) -> None:
    folder, out = tmp_path / "folder", tmp_path / "out"
    folder.mkdir()
    (folder / "a.txt").write_text("")
    with pytest.raises(InputError, match=r"has no text"):
        prepare(str(folder), out, OPTIONS)
    (folder / "b.txt").write_text("the only text")
    with pytest.raises(InputError, match=r"only one document of 13 characters, .* --val-fraction 0.1; give more text"):
        prepare(str(folder), out, OPTIONS)
    assert not out.exists()
    manifest = prepare(str(folder), out, replace(OPTIONS, val_fraction=0.0))
    assert (manifest.train.documents, manifest.val, manifest.empty_documents) == (1, Split(), 1)


def prepare_texts(tmp_path: Path, lengths: list[int], val_fraction: float) -> Manifest:
    source = tmp_path / "x.jsonl"
    source.write_text("".join(json.dumps({"text": "x" * (length - 1)}) + "\n" for length in lengths))
    return prepare(str(source), tmp_path / "out", replace(OPTIONS, val_fraction=val_fraction, shard_tokens=10**6))


def test_fifty_equal_documents_split_fairly(tmp_path: Path) -> None:
    manifest = prepare_texts(tmp_path, [1000] * 50, 0.1)
    assert (manifest.train.documents, manifest.val.documents) == (45, 5)


def test_the_last_document_goes_to_an_empty_val(tmp_path: Path) -> None:
    manifest = prepare_texts(tmp_path, [1000] * 49 + [17, 1], 0.001)
    assert (manifest.train.tokens, manifest.val.tokens, manifest.empty_documents) == (49_000, 17, 1)


def test_two_documents_are_one_and_one(tmp_path: Path) -> None:
    manifest = prepare_texts(tmp_path, [100, 200], 0.01)
    assert (manifest.train.tokens, manifest.val.tokens) == (100, 200)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60), st.sampled_from([0.0, 0.01, 0.1, 0.5]))
def test_val_never_has_more_than_twice_its_share(lengths: list[int], val_fraction: float) -> None:
    train, val = Split(), Split()
    for length in lengths:
        is_val = goes_to_val(length, train, val, val_fraction)
        grown = val if is_val else train
        grown = Split(grown.documents + 1, grown.tokens + length)
        train, val = (train, grown) if is_val else (grown, val)
        assert val.tokens <= 2 * val_fraction * (train.tokens + val.tokens)
    assert train.documents >= 1


@pytest.mark.heavy
@pytest.mark.parametrize("val_fraction", [0.01, 0.1])
def test_val_is_a_fair_sample_of_lengths(val_fraction: float) -> None:
    """On lengths like those of web pages, documents of val are as long as those of train, and the share is met."""
    source, train, val = random.Random(1), Split(), Split()
    for _ in range(30_000):
        length = int(source.lognormvariate(6, 1.2)) + 1
        if goes_to_val(length, train, val, val_fraction):
            val = Split(val.documents + 1, val.tokens + length)
        else:
            train = Split(train.documents + 1, train.tokens + length)
    assert val.tokens / (train.tokens + val.tokens) == pytest.approx(val_fraction, rel=0.02)
    assert val.tokens / val.documents == pytest.approx(train.tokens / train.documents, rel=0.25)


def test_progress_counts_up_to_the_totals(corpus: Path, tmp_path: Path) -> None:
    seen: list[PrepareProgress] = []
    manifest = prepare(str(corpus), tmp_path / "out", OPTIONS, seen.append)
    total = sum(path.stat().st_size for path in corpus.iterdir())
    assert seen[0] == PrepareProgress(0, 0, 0, total)
    assert seen[-1] == PrepareProgress(40, manifest.train.tokens + manifest.val.tokens, total, total)
    assert len(seen) > 10
    for earlier, later in pairwise(seen):
        assert earlier.documents <= later.documents
        assert earlier.bytes_read <= later.bytes_read


@pytest.mark.heavy
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    source = tmp_path / "x.jsonl"
    with source.open("w") as file:
        for i in range(2000):
            file.write(json.dumps({"text": f"{i} " * 600}) + "\n")
    size = source.stat().st_size
    tracemalloc.start()
    try:
        prepare(str(source), tmp_path / "out", replace(OPTIONS, shard_tokens=10**9))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 5_000_000
    assert peak < 1_500_000


@pytest.mark.heavy
def test_novels_split_by_whole_documents(shared_text: Callable[[str], Path], tmp_path: Path) -> None:
    manifest = prepare(str(shared_text("novels")), tmp_path / "out", PrepareOptions(tokenizer="gpt2", val_fraction=0.1))
    assert (manifest.train.documents + manifest.val.documents) == 50
    share = manifest.val.tokens / (manifest.train.tokens + manifest.val.tokens)
    assert 0.07 < share < 0.13
    assert open_dataset(tmp_path / "out").content_hash == manifest.content_hash


def test_a_finished_directory_that_lost_a_shard_is_not_called_finished(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("to be or not to be " * 20)
    options = PrepareOptions(tokenizer="bytes", val_fraction=0.3)
    prepare(str(folder), tmp_path / "out", options)
    (tmp_path / "out" / "train_00000.bin").unlink()
    with pytest.raises(InputError, match=r"train_00000\.bin"):
        prepare(str(folder), tmp_path / "out", options)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda out: (out / "train_00000.bin").unlink(), r"train_00000.bin: it is missing"),
        (lambda out: (out / "train_00000.bin").write_bytes(b"ab" * 9), r"train_00000.bin: it has 18 bytes"),
        (lambda out: (out / "progress.json").write_text("{"), r"progress.json: damaged \(invalid JSON"),
        (lambda out: change_progress(out, documents_consumed=1), r"progress.json: damaged \(its fields contradict"),
        (lambda out: change_progress(out, documents_consumed=-1), r"progress.json: damaged \(documents_consumed"),
        (lambda out: change_progress(out, documents_consumed=10**9), r"counts 1,000,000,000 documents, .* has fewer"),
        (lambda out: change_progress(out, tokenizer=None), r"progress.json: damaged \(its fields contradict"),
    ],
)
def test_damage_of_an_unfinished_directory_is_one_line_and_nothing_is_deleted(
    corpus: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    out = tmp_path / "out"
    stopped(corpus, out)
    damage(out)
    before = files_of(out)
    with pytest.raises(DamagedError, match=f"{message}.*prepare it again"):
        prepare(str(corpus), out, OPTIONS)
    assert files_of(out) == before


def test_an_unfinished_directory_of_the_earlier_version_is_resumed(corpus: Path, tmp_path: Path) -> None:
    stopped(corpus, tmp_path / "out")
    record = json.loads((tmp_path / "out" / "progress.json").read_text())
    assert (record.pop("cuts"), record.pop("cut_documents")) == (False, 0)
    (tmp_path / "out" / "progress.json").write_text(json.dumps(record))
    prepare(str(corpus), tmp_path / "out", OPTIONS)
    prepare(str(corpus), tmp_path / "whole", OPTIONS)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def change_progress(out: Path, **fields: object) -> None:
    record = json.loads((out / "progress.json").read_text())
    (out / "progress.json").write_text(json.dumps({**record, **fields}))


def test_shards_of_a_progress_cannot_be_elsewhere(corpus: Path, tmp_path: Path) -> None:
    stopped(corpus, tmp_path / "out")
    record = json.loads((tmp_path / "out" / "progress.json").read_text())
    record["train"]["shards"][0]["name"] = "../precious.bin"
    (tmp_path / "out" / "progress.json").write_text(json.dumps(record))
    with pytest.raises(DamagedError, match=r"progress.json: damaged \(train.shards.0.name"):
        prepare(str(corpus), tmp_path / "out", OPTIONS)


def test_a_manifest_that_is_no_file_is_refused_before_any_work(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "manifest.json").mkdir(parents=True)
    with pytest.raises(DamagedError, match=r"manifest.json: damaged \(not a regular file\)"):
        prepare(str(corpus), tmp_path / "out", OPTIONS)


def pipe(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_standard_input_is_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, out = "one two\n" * 2000, tmp_path / "out"
    (tmp_path / "x.txt").write_text(text)
    from_file = prepare(str(tmp_path / "x.txt"), tmp_path / "file", OPTIONS)
    pipe(monkeypatch, text.encode())
    manifest = prepare("-", out, OPTIONS)
    assert manifest.content_hash == from_file.content_hash
    assert manifest.source == "-"
    before = files_of(out)
    assert set(before) == {"manifest.json", "train_00000.bin", "val_00000.bin"}
    notes: list[str] = []
    pipe(monkeypatch, text.encode())
    assert prepare("-", out, OPTIONS, on_note=notes.append) == manifest
    assert notes == [f"nothing to do: {out} is complete"]
    pipe(monkeypatch, text.upper().encode())
    with pytest.raises(InputError, match="out was prepared from another text on standard input; choose another"):
        prepare("-", out, OPTIONS)
    with pytest.raises(InputError, match=r"out was prepared from '-', not from '.*x.txt'; choose another"):
        prepare(str(tmp_path / "x.txt"), out, OPTIONS)
    assert files_of(out) == before


def test_standard_input_after_an_interruption_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(progress: PrepareProgress) -> None:
        raise Stop

    out = tmp_path / "out"
    pipe(monkeypatch, b"first text " * 1000)
    with pytest.raises(Stop):
        prepare("-", out, OPTIONS, stop)
    assert set(files_of(out)) == {"progress.json"}
    (out / ".stdin.tmp").write_bytes(b"left by kill -9")
    pipe(monkeypatch, b"second text " * 1000)
    prepare("-", out, OPTIONS)
    assert documents_in(out)["train"][0].startswith("second text")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".stdin.tmp").write_bytes(b"left by kill -9")
    (tmp_path / "x.txt").write_text("a file " * 1000)
    prepare(str(tmp_path / "x.txt"), tmp_path / "other", OPTIONS)
    assert ".stdin.tmp" not in files_of(tmp_path / "other")
    assert set(files_of(out)) == {"manifest.json", "train_00000.bin", "val_00000.bin"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "standard input has no text"),
        (b"ten chars.", "standard input has only one document of 10 characters, too few for --val-fraction 0.1"),
        (b"caf\xe9", r"standard input is not UTF-8 \(byte 0xe9 at offset 3\)"),
        (None, "standard input is closed"),
    ],
)
def test_bad_standard_input_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, message: str
) -> None:
    if content is None:
        monkeypatch.setattr(sys, "stdin", None)
    else:
        pipe(monkeypatch, content)
    with pytest.raises(InputError, match=message):
        prepare("-", tmp_path / "out", OPTIONS)
    assert not (tmp_path / "out").exists()


def test_standard_input_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expertp.data.sources.LARGEST_TEXT", 1000)
    pipe(monkeypatch, b"x" * 1001)
    with pytest.raises(InputError, match="standard input has more than 256 MiB, the most for one document"):
        prepare("-", tmp_path / "out", OPTIONS)


def test_a_source_whose_name_is_not_utf8_is_complete_the_second_time(tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"caf\xe9\n\x1b[2J")
    source.mkdir()
    for number in range(10):
        (source / f"{number}.txt").write_text("word " * 100)
    manifest = prepare(str(source), tmp_path / "out", OPTIONS)
    assert manifest.source.isprintable()
    assert prepare(str(source), tmp_path / "out", OPTIONS) == manifest


def test_keys_that_are_not_printable_and_huge_shards_are_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"text key .* is not printable"):
        prepare(str(corpus), tmp_path / "out", replace(OPTIONS, text_key="\x1b[2J"))
    with pytest.raises(InputError, match=r"shard tokens .* is too large"):
        prepare(str(corpus), tmp_path / "out", replace(OPTIONS, shard_tokens=2**63))
