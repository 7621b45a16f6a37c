import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from expertp.data import PrepareOptions, check_vocab, open_dataset, prepare
from expertp.errors import DamagedError, InputError, one_line


@pytest.fixture
def prepared(corpus: Path, tmp_path: Path) -> Path:
    out = tmp_path / "prepared"
    prepare(str(corpus), out, PrepareOptions(tokenizer="bytes", val_fraction=0.1, shard_tokens=5000))
    return out


def write_nanogpt(directory: Path, train: list[int], val: list[int] | None) -> Path:
    directory.mkdir()
    np.array(train, dtype="<u2").tofile(directory / "train.bin")
    if val is not None:
        np.array(val, dtype="<u2").tofile(directory / "val.bin")
    return directory


def write_headered(path: Path, ids: list[int], magic: int = 20240520, version: int = 1, dtype: str = "<u2") -> None:
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(ids)
    path.write_bytes(header.tobytes() + np.array(ids, dtype=dtype).tobytes())


def contents(shards) -> list[list[int]]:
    return [shards.ids(i).tolist() for i in range(len(shards.files))]


def test_our_own_format(prepared: Path) -> None:
    dataset = open_dataset(prepared)
    manifest = json.loads((prepared / "manifest.json").read_text())
    assert dataset.content_hash == manifest["content_hash"]
    assert (dataset.vocab_size, dataset.dtype) == (257, "uint16")
    assert len(dataset.train.files) > 2
    for name, shards in (("train", dataset.train), ("val", dataset.val)):
        assert shards.lengths.tolist() == [shard["tokens"] for shard in manifest[name]["shards"]]
        assert shards.tokens == manifest[name]["tokens"]
        assert all(ids[-1] == 256 for ids in contents(shards))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), r"train_00001.bin: it is missing; delete .* and prepare it again"),
        (lambda file: file.write_bytes(file.read_bytes()[:-2]), r"train_00001.bin: it has \d+ bytes, the manifest"),
        (lambda file: file.write_bytes(file.read_bytes()[::-1]), r"train_00001.bin: its SHA-256 is not"),
    ],
)
def test_corrupt_shards(prepared: Path, damage, message: str) -> None:
    damage(prepared / "train_00001.bin")
    with pytest.raises(InputError, match=f"corrupt shard .*{message}"):
        open_dataset(prepared)


def test_large_data_is_checked_by_size_only(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expertp.data.shards.FULL_HASH_BYTES", 1000)
    file = prepared / "val_00000.bin"
    file.write_bytes(file.read_bytes()[::-1])
    open_dataset(prepared)
    file.write_bytes(b"")
    with pytest.raises(InputError, match="it has 0 bytes"):
        open_dataset(prepared)


def test_a_changed_bpe_tokenizer_is_noticed(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "bpe"
    prepare(str(corpus), out, PrepareOptions(tokenizer="bpe", vocab_size=300))
    assert open_dataset(out).vocab_size == 300
    (out / "tokenizer.json").write_text((out / "tokenizer.json").read_text() + " ")
    with pytest.raises(InputError, match="not the tokenizer that encoded this data"):
        open_dataset(out)


def test_directories_that_are_no_data(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'.*nothing' does not exist; make one: expertp prepare SOURCE --out "):
        open_dataset(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; make one"):
        open_dataset(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no token shards in .*; make them: expertp prepare SOURCE"):
        open_dataset(tmp_path / "empty")
    (prepared / "manifest.json").rename(prepared / "progress.json")
    with pytest.raises(InputError, match=r"is not finished .* run the same 'expertp prepare' command again"):
        open_dataset(prepared)


@pytest.mark.parametrize(
    "manifest", ["not JSON", "{}", '{"format_version": 2}', '{"format_version": 1, "dtype": "float"}']
)
def test_damaged_manifest(prepared: Path, manifest: str) -> None:
    (prepared / "manifest.json").write_text(manifest)
    with pytest.raises(InputError, match=r"manifest.json: damaged \(.*prepare it again") as error:
        open_dataset(prepared)
    assert "\n" not in str(error.value)


def test_nanogpt_directories(tmp_path: Path) -> None:
    dataset = open_dataset(write_nanogpt(tmp_path / "nano", [5, 6, 50256], [7]))
    assert (contents(dataset.train), contents(dataset.val)) == ([[5, 6, 50256]], [[7]])
    assert (dataset.tokenizer, dataset.vocab_size, dataset.dtype) == (None, None, "uint16")
    only_train = open_dataset(write_nanogpt(tmp_path / "train-only", [1, 2], None))
    assert (only_train.val.tokens, only_train.val.files) == (0, ())
    (tmp_path / "nano" / "train.bin").write_bytes(b"abc")
    with pytest.raises(InputError, match=r"train.bin: 3 bytes are not whole uint16 ids"):
        open_dataset(tmp_path / "nano")


def test_headered_shards(tmp_path: Path) -> None:
    for number in (2, 1):
        write_headered(tmp_path / f"fineweb_train_{number:06d}.bin", [number, number + 1])
    write_headered(tmp_path / "fineweb_val_000000.bin", [9])
    dataset = open_dataset(tmp_path)
    assert (contents(dataset.train), contents(dataset.val)) == ([[1, 2], [2, 3]], [[9]])
    assert dataset.vocab_size is None


def test_headered_shards_of_32_bits(tmp_path: Path) -> None:
    write_headered(tmp_path / "tiny_train.bin", [1, 128_000], 20240801, 7, "<u4")
    dataset = open_dataset(tmp_path)
    assert (contents(dataset.train), dataset.dtype) == ([[1, 128_000]], "uint32")
    write_headered(tmp_path / "tiny_val.bin", [1])
    with pytest.raises(InputError, match="mixes uint16 and uint32 shards"):
        open_dataset(tmp_path)


def test_damaged_headered_shards(tmp_path: Path) -> None:
    file = tmp_path / "x_train_0.bin"
    write_headered(file, [1, 2, 3])
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(InputError, match=r"header says 3 tokens \(1030 bytes\), it has 1028 bytes; download it again"):
        open_dataset(tmp_path)
    write_headered(file, [1, 2, 3], version=9)
    with pytest.raises(InputError, match=r"x_train_0.bin has no llm.c header .*train.bin"):
        open_dataset(tmp_path)
    file.write_bytes(b"short")
    with pytest.raises(InputError, match=r"has no llm\.c header"):
        open_dataset(tmp_path)


def test_foreign_data_is_never_written_to(tmp_path: Path) -> None:
    directory = write_nanogpt(tmp_path / "nano", [1, 2], [3])
    dataset = open_dataset(directory)
    with pytest.raises(ValueError, match="read-only"):
        dataset.train.ids(0)[0] = 7
    assert sorted(path.name for path in directory.iterdir()) == ["train.bin", "val.bin"]


@pytest.mark.heavy
@pytest.mark.parametrize("full_hash_bytes", [10**9, 0])
def test_foreign_hash_follows_the_tokens_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_hash_bytes: int
) -> None:
    monkeypatch.setattr("expertp.data.shards.FULL_HASH_BYTES", full_hash_bytes)
    ids = list(range(40_000)) * 60
    directory = write_nanogpt(tmp_path / "one", ids, [1])
    first = open_dataset(directory).content_hash
    shutil.copytree(directory, tmp_path / "copy")
    assert open_dataset(tmp_path / "copy").content_hash == first
    assert open_dataset(write_nanogpt(tmp_path / "last", [*ids[:-1], 7], [1])).content_hash != first
    assert open_dataset(write_nanogpt(tmp_path / "longer", [*ids, 7], [1])).content_hash != first
    assert open_dataset(write_nanogpt(tmp_path / "moved", ids, [2])).content_hash != first


def test_a_rewritten_shard_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    directory = write_nanogpt(tmp_path / "nano", [1, 2], [3])
    assert contents(open_dataset(directory).train) == [[1, 2]]
    shutil.rmtree(directory)
    write_nanogpt(directory, [4, 5], [3])
    assert contents(open_dataset(directory).train) == [[4, 5]]


def test_check_vocab(prepared: Path, tmp_path: Path) -> None:
    dataset = open_dataset(prepared)
    check_vocab(dataset, 257)
    with pytest.raises(
        InputError,
        match=r"vocab_size 256 is too small: the bytes tokenizer .* has 257 ids; set the model's vocab_size=320",
    ):
        check_vocab(dataset, 256)
    foreign = open_dataset(write_nanogpt(tmp_path / "nano", [1, 2], [50256]))
    check_vocab(foreign, 50257)
    with pytest.raises(InputError, match=r"has ids up to 50256; set the model's vocab_size=50304"):
        check_vocab(foreign, 50256)


def test_more_shards_than_a_process_may_have_files_open(tmp_path: Path) -> None:
    import resource

    for number in range(400):
        write_headered(tmp_path / f"x_train_{number:05d}.bin", [number, number])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (350, limits[1]))
    try:
        dataset = open_dataset(tmp_path)
        assert [dataset.train.ids(i)[0] for i in range(400)] == list(range(400))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def rewrite(path: Path, change) -> None:
    """Change the record of a file."""
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    "name",
    ["../secret.bin", "/etc/passwd", "", ".hidden", "train_00000.bin\0", "a/train_00000.bin", "train_00000.bin\n", "x"],
)
def test_a_manifest_cannot_name_files_that_prepare_does_not_write(prepared: Path, name: str) -> None:
    rewrite(prepared / "manifest.json", lambda record: record["train"]["shards"][0].update(name=name))
    with pytest.raises(DamagedError, match=r"manifest.json: damaged \(train.shards.0.name: .*prepare it again"):
        open_dataset(prepared)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("train", "tokens"), -1, r"train.tokens: Input should be greater than or equal to 0, not -1"),
        (("train", "tokens"), 2**63, r"train.tokens: Input should be less than"),
        (("train", "tokens"), 10**400, r"train.tokens"),
        (("train", "tokens"), 5, r"a split and its shards have different numbers of tokens"),
        (("train", "shards", 0, "tokens"), 2**62, r"content_hash|different numbers of tokens"),
        (("train", "shards", 0, "sha256"), "0" * 64, r"its content_hash is not that of its fields"),
        (("tokenizer", "vocab_size"), 1000, r"its content_hash is not that of its fields"),
        (("tokenizer", "eot"), -3, r"tokenizer.eot"),
        (("dtype",), "uint32", r"its content_hash is not that of its fields"),
        (("dtype",), "float64", r"dtype: Input should be 'uint16' or 'uint32', not 'float64'"),
        (("options",), [], r"options: "),
        (("format_version",), 2, r"format_version: Input should be 1, not 2"),
    ],
    ids=str,
)
def test_a_changed_field_of_the_manifest_is_damage(prepared: Path, place, value: object, message: str) -> None:
    def change(record) -> None:
        for key in place[:-1]:
            record = record[key]
        record[place[-1]] = value

    rewrite(prepared / "manifest.json", change)
    with pytest.raises(DamagedError, match=f"damaged .*{message}.*delete the directory and prepare it again"):
        open_dataset(prepared)


@pytest.mark.heavy
def test_a_manifest_with_any_bytes_changed_opens_or_is_refused(prepared: Path) -> None:
    """Where it opens, the tokens are the same: only fields that describe the text were changed."""
    whole, source, refused = (prepared / "manifest.json").read_bytes(), random.Random(0), 0
    tokens = contents(open_dataset(prepared).train)
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(source.choice([1, 1, 3])):
            place = source.randrange(len(changed))
            changed[place : place + source.choice([0, 1, 1, 5])] = source.choice(
                [b"", b"\xff", b"9", b"-", b'"', b"[", b"\0"]
            )
        (prepared / "manifest.json").write_bytes(changed)
        try:
            assert contents(open_dataset(prepared).train) == tokens
        except DamagedError as error:
            said, refused = one_line(str(error)), refused + 1
            assert "again" in said[-60:]
    assert refused > 200


def test_records_and_shards_that_are_not_files_are_refused_without_opening_them(prepared: Path, tmp_path: Path) -> None:
    shard = prepared / "train_00001.bin"
    shard.unlink()
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)):
        make(shard)
        with pytest.raises(DamagedError, match=r"train_00001.bin: it is not a regular file"):
            open_dataset(prepared)
        shard.rmdir() if shard.is_dir() else shard.unlink()
    (prepared / "manifest.json").unlink()
    os.mkfifo(prepared / "manifest.json")
    with pytest.raises(DamagedError, match=r"manifest.json: damaged \(not a regular file\)"):
        open_dataset(prepared)
    for name in ("train.bin", "x_train_0.bin", "x_train.bin"):
        for make in (os.mkfifo, os.mkdir):
            directory = tmp_path / f"{name}-{make.__name__}"
            directory.mkdir()
            make(directory / name)
            with pytest.raises(DamagedError, match=rf"{name}: it is not a regular file; copy or write it again"):
                open_dataset(directory)


@pytest.mark.parametrize("tokens", [-1, -(2**31), 2**31 - 1, 4])
def test_a_header_with_a_wrong_count_is_damage(tmp_path: Path, tokens: int) -> None:
    write_headered(tmp_path / "x_train_0.bin", [1, 2, 3])
    content = bytearray((tmp_path / "x_train_0.bin").read_bytes())
    content[8:12] = np.array([tokens], dtype="<i4").tobytes()
    (tmp_path / "x_train_0.bin").write_bytes(content)
    with pytest.raises(DamagedError, match=rf"header says {tokens} tokens"):
        open_dataset(tmp_path)


def test_files_without_tokens_are_damage(tmp_path: Path) -> None:
    directory = write_nanogpt(tmp_path / "nano", [], [1])
    with pytest.raises(DamagedError, match=r"train.bin: it has no tokens"):
        open_dataset(directory)


def test_a_shard_that_cannot_be_read_is_not_called_damaged(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("expertp.data.shards.file_sha256", refuse)
    with pytest.raises(PermissionError):
        open_dataset(prepared)
