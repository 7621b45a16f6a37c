import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def words(seed: int, count: int) -> str:
    """Text that looks like text: words of all lengths, some of them not English."""
    source = random.Random(seed)
    vocabulary = ["the", "a", "mixture", "of", "experts", "learns", "été", "日本語", "don't", "42", "🙂", "\n", "(x)"]
    return " ".join(source.choice(vocabulary) for _ in range(count))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Forty documents of very different lengths, two of them empty, as JSONL in two files."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = [words(i, 20 + (i * 37) % 300) for i in range(38)]
    texts.insert(7, "")
    texts.append("")
    for name, part in (("a.jsonl", texts[:25]), ("b.jsonl", texts[25:])):
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    return folder


@pytest.fixture
def shared_text() -> Callable[[str], Path]:
    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"{path} is not on this machine")
        return path

    return find
