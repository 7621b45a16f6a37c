"""Batches as a pure function of (seed, step): no loader state, so resuming can neither repeat nor skip.

A shard is cut into windows of `context + 1` ids that start each `context` ids, so that every id but a shard's
first is predicted once an epoch. Epoch `e` visits all windows in the order of a permutation made from (seed, e).
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
    """Return how many windows of `context + 1` ids a split has: the length of an epoch in sequences."""
    return int(_windows_of(shards, context).sum())


def train_batch(shards: TokenShards, context: int, sequences: int, seed: int, step: int) -> Batch:
    """Return the batch of one step, the same one whenever it is asked for.

    Args:
        shards: the train split.
        context: ids a model sees at once; inputs are `batch[:, :-1]`, targets `batch[:, 1:]`.
        sequences: windows in the batch, over all micro-batches and processes.
        seed: of the order; another seed gives another order in every epoch.
        step: optimizer step, from 0.

    Returns:
        int64 array [sequences, context + 1]. An epoch may end within a batch.
    """
    windows = count_windows(shards, context)
    if windows < sequences:
        raise InputError(
            f"the train split has {shards.tokens} tokens = {windows} windows of {context + 1}, fewer than one batch "
            f"of {sequences}; prepare more text, or take a smaller context or batch"
        )
    epochs, places = np.divmod(step * sequences + np.arange(sequences, dtype=np.int64), windows)
    chosen = np.empty(sequences, dtype=np.int64)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        chosen[epochs == epoch] = permute(places[epochs == epoch], windows, seed, epoch)
    return _gather(shards, context, chosen)


def eval_batches(shards: TokenShards, context: int, sequences: int, tokens: int) -> Iterator[Batch]:
    """Yield a fixed set of windows, spread evenly over the split: about `tokens` ids, or all there are.

    Which windows these are depends on the split, `context` and `tokens` only, not on the batch size, a seed or a
    step. The last batch may have fewer than `sequences` rows, so weigh batches by their rows.
    """
    windows = count_windows(shards, context)
    if windows == 0:
        raise InputError(
            f"the val split has {shards.tokens} tokens, too few for one window of {context + 1}; prepare more text "
            "or a larger --val-fraction, take a smaller context, or set train.eval_every=0"
        )
    wanted = min(windows, max(1, tokens // context))
    chosen = np.arange(wanted, dtype=np.int64) * windows // wanted
    return (_gather(shards, context, chosen[at : at + sequences]) for at in range(0, wanted, sequences))


def permute(places: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return where a seeded permutation of `range(size)` sends each of `places`.

    A Feistel network on the pairs (left, right) of an a x b grid that just covers `size`:
    left += hash(right) mod a, right += hash(left) mod b, and so on. Each round can be undone, so all rounds
    together permute the grid; a place that falls on one of the few cells beyond `size` walks on until it is
    inside. It needs no table of `size` entries, and unlike NumPy's shuffle it is the same in every version.

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
    """Scramble 64-bit values with SplitMix64's finaliser (Steele, Lea, Flood 2014); arrays wrap silently."""
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
