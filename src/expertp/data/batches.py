"""Batches as a pure function of (seed, step): no loader state, so a resumed run neither repeats nor skips data.

A shard is cut into windows of `context + 1` ids with stride `context`, so that every id except the first of a shard is
predicted once per epoch. Epoch `e` visits all windows in a pseudorandom order that depends on (seed, e).
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expertp.data.shards import TokenShards
from expertp.errors import InputError

Batch = NDArray[np.int64]

_ROUNDS = 8
_MASK = 2**64 - 1


def count_windows(shards: TokenShards, context: int) -> int:
    """Return the number of windows of `context + 1` ids in a split, which is the number of sequences per epoch."""
    return int(_windows_of(shards, context).sum())


def train_batch(
    shards: TokenShards, context: int, sequences: int, seed: int, step: int, rows: slice = slice(None)
) -> Batch:
    """Return the batch of one step, or some of its rows.

    Args:
        shards: the train split.
        context: tokens per sequence; inputs are `batch[:, :-1]`, targets `batch[:, 1:]`.
        sequences: sequences per batch, over all micro-batches and processes.
        seed: seed of the order.
        step: optimizer step, starting at 0.
        rows: the sequences that are read (default: all).

    Returns:
        int64 array [sequences, context + 1], or its `rows`. An epoch may end within a batch.
    """
    windows = count_windows(shards, context)
    if windows < sequences:
        raise InputError(
            f"the train split has {shards.tokens} tokens = {windows} windows of {context + 1}, fewer than one batch "
            f"of {sequences}; prepare more text, or reduce model.context or train.batch_tokens"
        )
    epochs, places = np.divmod(step * sequences + np.arange(sequences, dtype=np.int64)[rows], windows)
    chosen = np.empty_like(places)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        chosen[epochs == epoch] = permute(places[epochs == epoch], windows, seed, epoch)
    return _gather(shards, context, chosen)


def eval_batches(shards: TokenShards, context: int, sequences: int, tokens: int) -> Iterator[Batch]:
    """Yield about `tokens` ids (at most the whole split) as windows spread evenly over the split.

    The windows depend on the split, `context` and `tokens` only. The last batch may have fewer than `sequences` rows,
    so weight batches by their number of rows.
    """
    windows = count_windows(shards, context)
    if windows == 0:
        raise InputError(
            f"the val split has {shards.tokens} tokens, too few for one window of {context + 1}; prepare more text "
            "or a larger --val-fraction, reduce model.context, or set train.eval_every=0"
        )
    wanted = min(windows, max(1, tokens // context))
    chosen = np.arange(wanted, dtype=np.int64) * windows // wanted
    return (_gather(shards, context, chosen[at : at + sequences]) for at in range(0, wanted, sequences))


def permute(places: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Apply a seeded permutation of `range(size)` to `places`.

    A Feistel network on the pairs (left, right) of the smallest a x b grid with at least `size` cells:
    left += hash(right) mod a, right += hash(left) mod b, and so on. Every round is invertible, so the rounds permute
    the grid; values of `size` and above are permuted again until they are in range (cycle walking). Unlike a shuffle,
    it needs no table of `size` entries, and the result does not depend on NumPy's version.

    >>> sorted(permute(np.arange(10), 10, seed=1, epoch=0).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    columns = math.isqrt(size - 1) + 1
    rows = -(-size // columns)
    keys = _round_keys(seed, epoch)
    result = places.astype(np.uint64)
    walking = np.ones(len(result), dtype=bool)
    while walking.any():
        result[walking] = _feistel(result[walking], rows, columns, keys)
        walking = result >= size
    return result.astype(np.int64)


def _feistel(cells: NDArray[np.uint64], rows: int, columns: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    left, right = np.divmod(cells, np.uint64(columns))
    for first, second in keys.reshape(-1, 2):
        left = (left + _mix(right + first) % np.uint64(rows)) % np.uint64(rows)
        right = (right + _mix(left + second) % np.uint64(columns)) % np.uint64(columns)
    return left * np.uint64(columns) + right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit values with SplitMix64's finalizer (Steele, Lea, Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _round_keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    start = _mix(np.array([seed & _MASK], dtype=np.uint64)) ^ np.uint64(epoch)
    golden = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return _mix(_mix(start) + golden)


def _windows_of(shards: TokenShards, context: int) -> NDArray[np.int64]:
    return np.maximum(shards.lengths - 1, 0) // context


def _gather(shards: TokenShards, context: int, windows: NDArray[np.int64]) -> Batch:
    ends = np.cumsum(_windows_of(shards, context))
    shard_of = np.searchsorted(ends, windows, side="right")
    first = ends - _windows_of(shards, context)
    batch = np.empty((len(windows), context + 1), dtype=np.int64)
    ids: NDArray[np.unsignedinteger[Any]]
    for row, (window, shard) in enumerate(zip(windows.tolist(), shard_of.tolist(), strict=True)):
        start = (window - int(first[shard])) * context
        ids = shards.ids(shard)
        batch[row] = ids[start : start + context + 1]
    return batch
