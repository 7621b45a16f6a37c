"""Where a text may be cut so that its pieces, encoded one by one, give the same ids as the whole text.

GPT-2's pre-tokeniser (used by `gpt2` and `bpe`) splits text into words before any merge happens:

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

No word of it joins a non-space to a space on its right, and a run of two or more spaces before a non-space gives
up its last space only. So a cut is free of consequences before the first and before the last space of a run.
Cutting long documents lets all cores work on one of them, and it keeps runs of spaces short: the regular
expression engine of tiktoken overflows its stack on a run of about a million that is followed by a word.
"""

import re

PIECE_CHARACTERS = 16_384

# Exactly Unicode's White_Space, as in the tokenizers' `\s`; Python's own `\s` has U+001C..U+001F in addition.
_SPACES = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
_CUT = re.compile(f"(?<=[^{_SPACES}])(?=[{_SPACES}])|(?<=[{_SPACES}])(?=[{_SPACES}][^{_SPACES}])")


def cut(text: str, piece_characters: int = PIECE_CHARACTERS) -> list[str]:
    """Cut `text` into pieces of about `piece_characters` without changing what it encodes to.

    A piece is longer where the text has no place to cut, such as within a word of a million letters.

    >>> cut("one two three", piece_characters=5)
    ['one two', ' three']
    """
    pieces, start = [], 0
    while len(text) - start > piece_characters:
        place = _CUT.search(text, start + piece_characters)
        if place is None:
            break
        pieces.append(text[start : place.start()])
        start = place.start()
    pieces.append(text[start:])
    return pieces
