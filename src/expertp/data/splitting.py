"""Which documents, and which ends of long documents, go to val.

Whole documents are preferred. Where whole documents cannot give about the requested share, because the corpus is one
document or a few long ones, the ends of long documents go to val.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from expertp.data.manifest import Split
from expertp.data.tokenizers import Ids, Tokenizer

# Val's share of the tokens is close to the request if they differ by at most this factor.
CLOSE = 1.5
# A val split of fewer characters is not worth cutting a document.
SHORTEST_VAL = 100
# Ids of the shortest end of a document that goes to val, unless the document is the last one.
SHORTEST_END = 128
# A scan reads at least this number of documents, if there are so many, and at most about this number of characters.
SCAN_DOCUMENTS = 1000
SCAN_CHARACTERS = 2**28
# A cut is moved by at most 1/20 of the end's length, within these bounds, to a break of the text.
MOST_MOVED, LEAST_MOVED = 2048, 8


def is_close(share: float, val_fraction: float) -> bool:
    """Return whether val's share of the tokens is about the requested fraction.

    >>> is_close(0.012, 0.01), is_close(0.37, 0.01)
    (True, False)
    """
    return val_fraction / CLOSE <= share <= val_fraction * CLOSE


def goes_to_val(tokens: int, train: Split, val: Split, val_fraction: float, cut_documents: int | None = None) -> bool:
    """Return whether the next document, of `tokens` tokens, goes to val as a whole.

    With V of T tokens in val so far, a document of the mean size m goes to val if it brings val's share closer to the
    fraction f: |V + m - f (T + m)| < |V - f (T + m)|. The test uses the mean size because the document's own size
    would favour short documents. A document of n tokens that would give val more than 2 f (T + n) goes to train; where
    documents are cut, also one that would give val more than `CLOSE` f (T + n).

    >>> goes_to_val(10, Split(documents=49, tokens=490), Split(), val_fraction=0.01)
    False
    >>> goes_to_val(10, Split(documents=50, tokens=500), Split(), val_fraction=0.01)
    True
    """
    documents, all_tokens = train.documents + val.documents - (cut_documents or 0), train.tokens + val.tokens
    if documents == 0:
        return False
    mean = all_tokens / documents
    is_due = 2 * val.tokens + mean < 2 * val_fraction * (all_tokens + mean)
    return is_due and _fits(tokens, train, val, (2 if cut_documents is None else CLOSE) * val_fraction)


def train_part(
    ids: Ids,
    tokenizer: Tokenizer,
    train: Split,
    val: Split,
    val_fraction: float,
    cut_documents: int | None,
    is_last: bool,
) -> int:
    """Return how many ids of the next document, the first ones, go to train; the others go to val.

    Args:
        ids: the document without its end-of-text id.
        tokenizer: the tokenizer that encoded it.
        train: the train split so far.
        val: the validation split so far.
        val_fraction: requested share of val.
        cut_documents: number of documents cut so far; None if documents are not cut.
        is_last: no document follows.
    """
    tokens = len(ids) + 1
    if cut_documents is None:
        is_needed = is_last and val_fraction > 0 and val.documents == 0
        return 0 if is_needed or goes_to_val(tokens, train, val, val_fraction) else len(ids)
    end = tokens_due(tokens, train, val, val_fraction, is_last)
    if end * CLOSE >= tokens or goes_to_val(tokens, train, val, val_fraction, cut_documents):
        return 0
    return place_of_cut(ids, end, tokenizer) if end else len(ids)


def tokens_due(tokens: int, train: Split, val: Split, val_fraction: float, is_last: bool) -> int:
    """Return how many of the next document's `tokens` tokens, the last ones, go to val; 0 for none.

    Only documents that are too long for val are cut, and the last document if val has too little.

    >>> tokens_due(100_000, Split(), Split(), val_fraction=0.1, is_last=False)
    10000
    """
    all_tokens = train.tokens + val.tokens + tokens
    due = math.floor(val_fraction * all_tokens) - val.tokens
    if is_last and val.tokens * CLOSE < val_fraction * all_tokens:
        return min(max(due, 0), tokens)
    is_long = not _fits(tokens, train, val, CLOSE * val_fraction)
    return due if is_long and due >= SHORTEST_END else 0


def _fits(tokens: int, train: Split, val: Split, share: float) -> bool:
    """Return whether val would have at most this share with a document of `tokens` tokens."""
    return val.tokens + tokens <= share * (train.tokens + val.tokens + tokens)


@dataclass(frozen=True)
class Scan:
    """The result of placing whole documents by their characters.

    Attributes:
        documents: number of documents with text.
        characters: their characters.
        share: val's share of the characters.
        is_complete: all documents were read.
    """

    documents: int
    characters: int
    share: float
    is_complete: bool

    def cuts(self, val_fraction: float) -> bool:
        """Return whether documents must be cut for about the requested share."""
        return not is_close(self.share, val_fraction) and self.characters * val_fraction >= SHORTEST_VAL


def scan(lengths: Iterable[int], val_fraction: float) -> Scan:
    """Place documents of the given numbers of characters, until it is clear that whole documents give the share.

    >>> scan([500_000, 400_000, 600_000], val_fraction=0.01)
    Scan(documents=3, characters=1500000, share=0.4, is_complete=True)
    """
    train, val, last, is_complete = Split(), Split(), 0, True
    for length in lengths:
        if last and length:
            train, val = _placed(last, train, val, val_fraction)
        last = length or last
        documents, characters = train.documents + val.documents, train.tokens + val.tokens
        is_enough = documents >= SCAN_DOCUMENTS and documents * val_fraction >= 2
        is_enough = is_enough and is_close(val.tokens / characters, val_fraction)
        if last and (is_enough or val_fraction == 0 or characters + last >= SCAN_CHARACTERS):
            is_complete = False
            break
    if last and is_complete and not val.documents:
        val = Split(1, last)
    elif last:
        train, val = _placed(last, train, val, val_fraction)
    characters = train.tokens + val.tokens
    return Scan(train.documents + val.documents, characters, val.tokens / max(1, characters), is_complete)


def _placed(length: int, train: Split, val: Split, val_fraction: float) -> tuple[Split, Split]:
    if goes_to_val(length, train, val, val_fraction):
        return train, Split(val.documents + 1, val.tokens + length)
    return Split(train.documents + 1, train.tokens + length), val


def place_of_cut(ids: Ids, end: int, tokenizer: Tokenizer) -> int:
    """Return where to cut a document such that about the last `end` ids are its end.

    The best place near the wished one is the start of a paragraph, then of a line, then of a word, then of a character;
    of several, the nearest. If there is no such place, the result is the length of the document.
    """
    wished, moved = len(ids) - end, min(max(end // 20, LEAST_MOVED), MOST_MOVED)
    first, last = max(1, wished - moved), min(len(ids) - 1, wished + moved)
    start = max(0, first - 2 * LEAST_MOVED)
    text = tokenizer.decode_bytes(ids[start : last + 1].tolist())
    offset = len(tokenizer.decode_bytes(ids[start:first].tolist()))
    best = (-1, 0, len(ids))
    for place in range(first, last + 1):
        rank = _rank(text, offset)
        if rank >= 0:
            best = max(best, (rank, -abs(place - wished), place))
        offset += len(tokenizer.token_bytes[int(ids[place])])
    return best[2]


def _rank(text: bytes, offset: int) -> int:
    """Return how good a place is for a cut; -1 inside a character."""
    before, after = text[max(0, offset - 3) : offset], text[offset : offset + 1]
    if not after or 0x80 <= after[0] < 0xC0:
        return -1
    if before.endswith((b"\n\n", b"\n\r\n")) and after not in b"\r\n":
        return 3
    if before.endswith(b"\n"):
        return 2
    return 1 if after.isspace() else 0
