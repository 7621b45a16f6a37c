"""A cut text must encode to the ids of the whole text: that is all `cut` promises."""

from functools import cache

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from expertp.data.cutting import cut
from expertp.data.tokenizers import GPT2_PATTERN, Tokenizer, load_bpe, load_gpt2, train_bpe

# Every kind of character that the pre-tokeniser tells apart, and those where two notions of "space" differ.
TRICKY = "ab'stvrel 1２½.,'\"\t\n\r\x0b\x1c\x1f\x85\xa0\u1680\u2003\u2028\u200b\u3000é日🙂\U000e0020"
TEXTS = st.text(st.sampled_from(TRICKY), max_size=60) | st.text(max_size=60)


@cache
def tokenizer_of(kind: str, directory: str) -> Tokenizer:
    if kind == "gpt2":
        return load_gpt2()
    from pathlib import Path

    path = Path(directory) / "tokenizer.json"
    train_bpe(["  the cat's  \n\n sat\t\t on  1234 mats...  "] * 20, 300, path)
    return load_bpe(path)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("bpe"))


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["gpt2", "bpe"])
@settings(max_examples=400, deadline=None)
@given(text=TEXTS, size=st.integers(1, 20))
def test_pieces_encode_to_the_ids_of_the_whole(kind: str, directory: str, text: str, size: int) -> None:
    tokenizer = tokenizer_of(kind, directory)
    pieces = cut(text, size)
    assert "".join(pieces) == text
    parts = tokenizer.encode_texts(pieces)
    assert np.concatenate(parts).tolist() == tokenizer.encode_texts([text])[0].tolist()


def test_cutting_at_any_other_place_would_change_ids() -> None:
    gpt2 = load_gpt2()
    for left, right in (("hel", "lo"), (" ", "the"), ("x\n", "\n\ny"), ("don'", "t")):
        whole, parts = gpt2.encode_texts([left + right])[0], gpt2.encode_texts([left, right])
        assert np.concatenate(parts).tolist() != whole.tolist()


@pytest.mark.heavy
@pytest.mark.parametrize("text", ["x" * 2_000_000, " " * 2_000_000 + "x", "\n\t" * 1_000_000 + "end"])
def test_text_without_structure_neither_stalls_nor_overflows(text: str) -> None:
    gpt2 = load_gpt2()
    assert gpt2.decode(gpt2.encode_batch([text])[0]) == text


def test_pieces_are_of_the_size_asked_for() -> None:
    *pieces, rest = cut("word " * 100, 50)
    assert {len(piece) for piece in pieces} <= set(range(50, 56))
    assert len(rest) <= 50
    assert cut("", 5) == [""]


def test_our_pattern_is_the_pattern_of_the_release() -> None:
    release = r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    ranks = {bytes([byte]): byte for byte in range(256)}
    texts = ["I'll  say:\n\n it's 12½ 'stars'  ", " \t x", "naïve  日本 \u3000語\r\n"]
    ours, theirs = (
        tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        for name, pattern in (("ours", GPT2_PATTERN), ("release", release))
    )
    import regex

    for text in texts:
        assert regex.findall(GPT2_PATTERN, text) == regex.findall(release, text)
        assert ours.encode_ordinary(text) == theirs.encode_ordinary(text)
