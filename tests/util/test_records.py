"""Texts that a user has named."""

from pathlib import Path

import pytest

from expertp.errors import InputError
from expertp.util.records import read_text


def test_a_text_that_is_not_utf_8_is_refused_at_its_byte(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_bytes(b"\xef\xbb\xbfOnce")
    assert read_text(tmp_path / "prompts.txt", "give a text") == "Once"
    (tmp_path / "prompts.txt").write_bytes(b"Once \xff")
    with pytest.raises(InputError, match=r"prompts\.txt: not UTF-8 at byte 5; give a text"):
        read_text(tmp_path / "prompts.txt", "give a text")
