"""Compare `expertp prepare` with the gpt2 tokenizer to a single-process tiktoken loop over the same documents."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from expertp.bench.timing import interleaved
from expertp.data import PrepareOptions, open_dataset, prepare
from expertp.data.sources import find_corpus, read_documents
from expertp.data.tokenizers import gpt2_encoding
from expertp.util.machine import usable_cores


@dataclass(frozen=True)
class DataCase:
    """Speed of preparing one source; `vs_plain` is the throughput of prepare relative to the plain loop."""

    name: str
    tokens: int
    threads: int
    ms: dict[str, float]
    tokens_per_second: dict[str, int]
    vs_plain: float


def compare_preparing(source: str, rounds: int = 3) -> DataCase:
    """Time `prepare` (reading, encoding, hashing, writing) and a loop that encodes texts already in memory."""
    texts = [document.text for document in read_documents(find_corpus(source))]
    encoding = gpt2_encoding()
    options = PrepareOptions(tokenizer="gpt2", val_fraction=0.01 if len(texts) > 1 else 0.0)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "prepared"

        def ours() -> None:
            shutil.rmtree(out, ignore_errors=True)
            prepare(source, out, options)

        def plain() -> None:
            for text in texts:
                encoding.encode_ordinary(text)

        ms = interleaved({"prepare": ours, "plain": plain}, rounds, warm_up=1)
        dataset = open_dataset(out)
        tokens = dataset.train.tokens + dataset.val.tokens
    return DataCase(
        name=source,
        tokens=tokens,
        threads=usable_cores(),
        ms={name: round(value, 1) for name, value in ms.items()},
        tokens_per_second={name: round(1e3 * tokens / value) for name, value in ms.items()},
        vs_plain=round(ms["plain"] / ms["prepare"], 3),
    )
