from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expertp.data.batches import count_windows, eval_batches, permute, train_batch
from expertp.data.shards import TokenShards, open_dataset
from expertp.errors import InputError

SHARD_LENGTHS = [50, 3, 0, 121, 1, 64]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    """Shards in which every id is different, so that a batch says where it comes from."""
    directory = tmp_path_factory.mktemp("shards")
    first = 0
    for number, length in enumerate(SHARD_LENGTHS):
        header = np.zeros(256, dtype="<i4")
        header[:3] = 20240520, 1, length
        ids = np.arange(first, first + length, dtype="<u2")
        (directory / f"x_train_{number}.bin").write_bytes(header.tobytes() + ids.tobytes())
        first += 1000
    return open_dataset(directory).train


def all_windows(context: int) -> list[list[int]]:
    return [
        list(range(1000 * shard + start, 1000 * shard + start + context + 1))
        for shard, length in enumerate(SHARD_LENGTHS)
        for start in range(0, length - context, context)
    ]


@pytest.mark.heavy
@given(context=st.integers(1, 40), sequences=st.integers(1, 5), seed=st.integers(0, 2**63), epochs=st.integers(1, 3))
def test_each_window_once_an_epoch_in_whole_batches(
    shards: TokenShards, context: int, sequences: int, seed: int, epochs: int
) -> None:
    windows = all_windows(context)
    assert count_windows(shards, context) == len(windows)
    steps = -(-epochs * len(windows) // sequences)
    rows = np.concatenate([train_batch(shards, context, sequences, seed, step) for step in range(steps)]).tolist()
    for epoch in range(epochs):
        assert sorted(rows[epoch * len(windows) : (epoch + 1) * len(windows)]) == windows


@pytest.mark.heavy
@given(seed=st.integers(0, 2**40), step=st.integers(0, 10**9), other=st.integers(0, 10**9))
def test_a_batch_depends_on_seed_and_step_only(shards: TokenShards, seed: int, step: int, other: int) -> None:
    before = train_batch(shards, 8, 4, seed, step)
    train_batch(shards, 8, 4, seed, other)
    train_batch(shards, 8, 4, seed + 1, step)
    again = train_batch(shards, 8, 4, seed, step)
    assert (before == again).all()
    assert (before.dtype, before.shape) == (np.int64, (4, 9))


@given(k=st.integers(0, 60), sequences=st.sampled_from([1, 2, 4, 8]))
def test_resuming_at_step_k_and_regrouping_give_the_same_rows(shards: TokenShards, k: int, sequences: int) -> None:
    rows = np.concatenate([train_batch(shards, 8, 1, 3, step) for step in range(k * sequences, (k + 1) * sequences)])
    assert (train_batch(shards, 8, sequences, 3, k) == rows).all()


def test_seeds_and_epochs_differ(shards: TokenShards) -> None:
    windows = count_windows(shards, 8)
    orders = {
        tuple(train_batch(shards, 8, windows, seed, epoch)[:, 0].tolist()) for seed in range(20) for epoch in range(20)
    }
    assert len(orders) == 400


def test_the_order_never_changes_between_versions() -> None:
    assert permute(np.arange(10), 10, seed=0, epoch=0).tolist() == [9, 8, 7, 5, 3, 4, 6, 0, 2, 1]
    assert permute(np.array([0, 1, 10**12]), 10**12 + 7, seed=5, epoch=3).tolist() == [
        183442267556,
        138998341854,
        988666611492,
    ]


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63), epoch=st.integers(0, 100))
def test_permute_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    assert sorted(permute(np.arange(size), size, seed, epoch).tolist()) == list(range(size))


@pytest.mark.heavy
def test_permute_looks_random() -> None:
    size, seeds = 101, 2000
    orders = np.stack([permute(np.arange(size), size, seed, 0) for seed in range(seeds)])
    for place in (0, 1, 50, 100):  # every window is equally likely at every place
        counts = np.bincount(orders[:, place], minlength=size)
        chi_square = ((counts - seeds / size) ** 2 / (seeds / size)).sum()
        assert chi_square < 100 + 5 * np.sqrt(200)  # mean 100, s.d. sqrt(2 * 100)
    fixed_points = (orders == np.arange(size)).sum(axis=1)
    assert abs(fixed_points.mean() - 1) < 5 / np.sqrt(seeds)
    neighbours = (np.diff(orders, axis=1) == 1).sum(axis=1)  # windows that stay side by side
    assert abs(neighbours.mean() - (size - 1) / size) < 5 / np.sqrt(seeds)
    large = permute(np.arange(20_000), 20_000, 1, 0).astype(float)
    assert abs(np.corrcoef(large[:-1], large[1:])[0, 1]) < 5 / np.sqrt(20_000)


@given(context=st.integers(1, 30), sequences=st.integers(1, 9), tokens=st.integers(1, 400))
def test_eval_windows_do_not_depend_on_the_batch_size(
    shards: TokenShards, context: int, sequences: int, tokens: int
) -> None:
    batches = list(eval_batches(shards, context, sequences, tokens))
    rows = np.concatenate(batches).tolist()
    assert rows == np.concatenate(list(eval_batches(shards, context, 1, tokens))).tolist()
    assert all(len(batch) == sequences for batch in batches[:-1])
    windows = all_windows(context)
    assert len(rows) == min(len(windows), max(1, tokens // context))
    assert len({tuple(row) for row in rows}) == len(rows)
    assert all(row in windows for row in rows)


def test_eval_windows_are_spread_over_the_split(shards: TokenShards) -> None:
    rows = np.concatenate(list(eval_batches(shards, 8, 4, 40)))
    assert rows[:, 0].tolist() == [0, 40, 3040, 3080, 5008]  # windows 0, 5, 11, 16 and 22 of 6 + 15 + 7


def test_too_little_data(shards: TokenShards) -> None:
    with pytest.raises(InputError, match=r"train split has 239 tokens = 1 windows of 101, fewer than one batch of 3"):
        train_batch(shards, 100, 3, 0, 0)
    with pytest.raises(InputError, match=r"val split has 239 tokens, too few for one window of 201; prepare more"):
        eval_batches(shards, 200, 1, 100)
    with pytest.raises(InputError, match="val split has 0 tokens"):
        eval_batches(TokenShards(()), 8, 1, 100)


def test_a_batch_is_fast(tmp_path: Path) -> None:
    import time

    np.arange(4_000_000, dtype="<u4").astype("<u2").tofile(tmp_path / "train.bin")
    train = open_dataset(tmp_path).train
    seconds = []
    for step in range(30):
        start = time.perf_counter()
        train_batch(train, 1024, 32, 0, step)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.002
