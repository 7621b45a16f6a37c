"""docs/data.md must keep up with the code: its example runs, its lists are complete."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from expertp.data import Manifest, PrepareOptions
from expertp.data.shards import HEADER_DTYPES
from expertp.data.sources import JSONL_ENDINGS, PARQUET_ENDINGS, TEXT_ENDINGS
from expertp.data.tokenizers import BPE_SAMPLE_CHARACTERS

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


@pytest.mark.heavy
def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    check = "assert batch.shape == (8, 257) and batch.dtype == 'int64'"
    subprocess.run([sys.executable, "-c", f"{example}\n{check}"], cwd=tmp_path, check=True)


def test_lists_are_complete() -> None:
    words = set(re.split(r"[\s`,()|]+", PAGE))
    assert {*JSONL_ENDINGS, *PARQUET_ENDINGS, *TEXT_ENDINGS} <= words
    for kind in (Manifest, PrepareOptions):
        assert {field.name for field in fields(kind)} <= words
    for magic, version in HEADER_DTYPES:
        assert f"{magic}, {version}" in PAGE
    assert f"{BPE_SAMPLE_CHARACTERS:,}" in PAGE
    assert str(PrepareOptions().shard_tokens) in PAGE
