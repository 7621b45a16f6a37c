"""Cut long texts such that the pieces encode to the same ids as the whole text.

GPT-2's pre-tokeniser (used by `gpt2` and `bpe`) splits text into words before any merge happens:

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

No match joins a non-space to a following space, and a run of two or more spaces before a non-space gives up its last
space only. A cut before the first or before the last space of a run therefore does not change the ids. Cutting lets
all cores encode one long document, and keeps runs of spaces short: tiktoken's regular expression engine overflows its
stack on a run of about a million spaces that is followed by a word.
"""

import re

PIECE_CHARACTERS = 16_384

# Unicode's White_Space, as in the tokenizers' `\s`; Python's `\s` also has U+001C..U+001F.
_SPACES = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
_CUT = re.compile(f"(?<=[^{_SPACES}])(?=[{_SPACES}])|(?<=[{_SPACES}])(?=[{_SPACES}][^{_SPACES}])")


def cut(text: str, piece_characters: int = PIECE_CHARACTERS) -> list[str]:
    """Cut `text` into pieces of about `piece_characters` that encode to the same ids.

    Pieces are longer where the text has no place to cut, for example in a word of a million letters.

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
