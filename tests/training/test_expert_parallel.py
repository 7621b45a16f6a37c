"""Experts on several ranks: the numbers of one process, any layout reads any checkpoint, memory and bytes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_program import HIDDEN, WIDTH, hashes, recording_loads
from ranks import do_jobs, records
from runs import run_tree, write_tokens

from expertp.capacity.anatomy import anatomy
from expertp.capacity.devices import DEVICES
from expertp.capacity.estimate import memory
from expertp.capacity.job import JobSpec
from expertp.capacity.layout import Layout, exchanged_bytes, transfers
from expertp.config import build
from expertp.data import open_dataset
from expertp.spec import RunSpec
from expertp.training.checkpoints import resume
from expertp.training.loop import TrainingLoop
from expertp.training.store import read_run
from expertp.training.train import train

SPREAD = {"experts": 2}
# Layouts of four ranks, and the number of ranks of every other one.
LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "one": (1, {}),
    "two": (2, {}),
    "experts 2": (2, {"experts": 2}),
    "four": (4, {}),
    "replicas 2": (4, {"replicas": 2}),
    "experts 2 x 2": (4, {"experts": 2}),
    "experts 4": (4, {"experts": 4}),
    "replicas 2, experts 2": (4, {"replicas": 2, "experts": 2}),
}


def tree(data: Path, parallel: dict[str, int] | None = None, model: Any = None, **settings: Any) -> dict[str, Any]:
    """Return the tree of a run in four micro-batches; it clips and validates."""
    sizes = {"n_exp": 8, "n_embd": WIDTH, "alpha_ffn": HIDDEN / WIDTH, **(model or {})}
    training = {"micro_batch": 2, "dtype": "float64", "steps": 8, "eval_every": 5, "eval_tokens": 240, **settings}
    return {**run_tree(data, model=sizes, train=training, hps={"clip": 0.5}), "parallel": parallel or {}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def in_one_process(tree: dict[str, Any], out: Path, stop_after: int = 10**9) -> Path:
    calls = iter(range(1, 1000))
    with recording_loads(out):
        train(build(RunSpec, {**tree, "parallel": {}}, "run"), out, should_stop=lambda: next(calls) == stop_after)
    return out


def saved_state(out: Path) -> dict[str, torch.Tensor]:
    saved = resume(read_run(out))
    assert saved is not None
    return saved.tensors.whole()


def check_equal(here: Path, there: Path) -> None:
    """Check that two runs have losses and weights within 1e-12, and exactly equal loads and expert biases."""
    pairs = list(zip(records(here), records(there), strict=True))
    for name in ("loss", "val_loss"):
        assert max(abs((a[name] or 1) - (b[name] or 1)) / (b[name] or 1) for a, b in pairs) <= 1e-12
    for name in ("max_load_deviation", "dead_experts", "bias_range"):
        assert [a[name] for a, _ in pairs] == [b[name] for _, b in pairs]
    mine, other = saved_state(here), saved_state(there)
    biases = [name for name in mine if name.endswith("router.bias")]
    assert len(biases) == 2
    assert all(mine[name].any() and torch.equal(mine[name], other[name]) for name in biases)
    assert mine.keys() == other.keys()
    weights = [name for name in mine if "/" not in name]
    assert len(weights) == 26
    assert max((mine[name] - other[name]).abs().max() for name in weights) <= 1e-12
    assert loads(here) == loads(there)
    assert len(loads(here)) == len(pairs)


def loads(out: Path) -> list[str]:
    """Return the loads of every step."""
    return (out / "loads.jsonl").read_text().splitlines()


@pytest.fixture(scope="module")
def four_ranks(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Any]]]:
    """Everything that four ranks do, in one launch: the folder of the runs, and the outcomes by rank and job."""
    folder = tmp_path_factory.mktemp("four")
    in_one_process(tree(data), folder / "begun by one", stop_after=5)
    jobs = [
        {"do": "train", "run": tree(data, SPREAD), "out": str(folder / "spread"), "stop": [3, 5]},
        {"do": "load", "run": tree(data, SPREAD), "out": str(folder / "begun by one")},
        {"do": "count", "run": tree(data, dtype="float32")},
        {"do": "count", "run": tree(data, SPREAD, dtype="bfloat16")},
        {"do": "count", "run": tree(data, dtype="bfloat16")},
        {"do": "count", "run": tree(data, SPREAD, dtype="float32", micro_batch=1)},
        {"do": "train", "run": tree(data, {"experts": 4}, {"n_exp": 6}), "out": str(folder / "refused")},
        {"do": "train", "run": tree(data, {"experts": 2, "replicas": 4}), "out": str(folder / "refused")},
    ]
    return folder, do_jobs(4, folder, jobs)


@pytest.mark.heavy
def test_spread_experts_are_those_of_one_process(
    four_ranks: tuple[Path, list[list[Any]]], data: Path, tmp_path: Path
) -> None:
    folder, outcomes = four_ranks
    assert all((rank[0]["status"], rank[0]["step"], rank[0]["world_size"]) == ("stopped", 5, 4) for rank in outcomes)
    check_equal(folder / "spread", folder / "begun by one")
    with pytest.warns(UserWarning, match="started with ranks 4, now 1"):
        in_one_process(tree(data), folder / "spread")
    check_equal(folder / "spread", in_one_process(tree(data), tmp_path / "one"))


@pytest.mark.heavy
def test_a_checkpoint_of_one_process_is_loaded_by_all_ranks(four_ranks: tuple[Path, list[list[Any]]]) -> None:
    folder, outcomes = four_ranks
    expected = hashes(saved_state(folder / "begun by one"))
    assert all(rank[1] == expected for rank in outcomes)


def promised(tree: dict[str, Any], layout: Layout) -> tuple[int, int, dict[tuple[str, str], int]]:
    """Return what `expertp capacity` says: the parameters, the bytes of the state, and those of buffers of a step."""
    job = JobSpec.of_run(build(RunSpec, tree, "run"))
    model = anatomy(job)
    buffers = {(each.kind, each.what): each.buffer for each in transfers(model, job, layout, DEVICES["h100"])}
    return model.numel, memory(model, job, layout).state, buffers


def check_bytes(counted: dict[str, Any], buffers: dict[tuple[str, str], int]) -> None:
    """Compare what a rank counted with what was promised, beside the norm of the gradients, of 8 bytes, for `clip`."""
    gathered = buffers["all-gather", "weights"] + buffers["all-gather", "experts"]
    scattered = buffers["reduce-scatter", "gradients of weights"] + buffers["reduce-scatter", "gradients of experts"]
    assert counted["bytes"]["all_gather"] == gathered
    assert counted["bytes"]["reduce_scatter"] == scattered
    assert counted["calls"]["all_reduce"] == 2, "one for the step, one for the norm of the gradients"
    assert counted["bytes"]["all_reduce"] == buffers["all-reduce", "loss and loads"] + 8


@pytest.mark.heavy
def test_a_rank_holds_its_part_and_gathers_what_it_computes(
    four_ranks: tuple[Path, list[list[Any]]], data: Path
) -> None:
    for dtype, number in (("float32", 2), ("bfloat16", 4)):
        total, state, buffers = promised(tree(data, dtype=dtype), Layout(4))
        for counted in (rank[number] for rank in four_ranks[1]):
            assert abs(counted["parameters"] / (total / 4) - 1) < 0.05
            assert counted["optimizer"] == 2 * counted["parameters"]
            assert counted["state"] == 16 * counted["parameters"], "weights, gradients and two moments in float32"
            assert abs(counted["state"] / state - 1) < 0.05
            assert counted["kept"] == 0, "no gathered weight, rounded or not, is kept"
            check_bytes(counted, buffers)
        assert sum(rank[number]["parameters"] for rank in four_ranks[1]) == total


@pytest.mark.heavy
def test_bytes_of_spread_experts(four_ranks: tuple[Path, list[list[Any]]], data: Path) -> None:
    """With one and with two micro-batches per rank."""
    layout = Layout(4, experts=2)
    for run, number in (
        (tree(data, SPREAD, dtype="bfloat16"), 3),
        (tree(data, SPREAD, dtype="float32", micro_batch=1), 5),
    ):
        outcomes = [rank[number] for rank in four_ranks[1]]
        job = JobSpec.of_run(build(RunSpec, run, "run"))
        _, state, buffers = promised(run, layout)
        for rank, counted in enumerate(outcomes):
            check_bytes(counted, buffers)
            assert counted["kept"] == 0, "no rounded copy of a gathered weight is kept"
            assert abs(counted["state"] / state - 1) < 0.05
            visits = visits_of(rank, [each["loads"] for each in outcomes])
            assert counted["bytes"]["all_to_all"] == sum(exchanged_bytes(job, layout, *each) for each in visits)
        # Loads are not even, so that ranks receive more or fewer visits; the sum does not depend on who does.
        assert len({counted["bytes"]["all_to_all"] for counted in outcomes}) > 1
        exchanged = buffers["all-to-all", "visits of experts"]
        assert sum(counted["bytes"]["all_to_all"] for counted in outcomes) == 4 * exchanged


def visits_of(rank: int, loads_of_ranks: list[list[list[list[int]]]]) -> list[tuple[int, int]]:
    """Return the visits that a rank sends and receives, in every micro-batch and layer; two neighbours share experts.

    Args:
        rank: the rank.
        loads_of_ranks: visits of the tokens of every rank by micro-batch, layer and expert.
    """
    first = rank - rank % 2
    found = []
    for own, *pair in zip(loads_of_ranks[rank], *loads_of_ranks[first : first + 2], strict=True):
        for layer, sent in enumerate(own):
            half = len(sent) // 2
            experts = slice(half * (rank % 2), half * (rank % 2 + 1))
            found.append((sum(sent), sum(sum(each[layer][experts]) for each in pair)))
    return found


@pytest.mark.heavy
def test_layouts_that_do_not_fit_are_refused(four_ranks: tuple[Path, list[list[Any]]]) -> None:
    folder, outcomes = four_ranks
    for rank in outcomes:
        assert rank[6] == "InputError: parallel.experts=4 cannot share model.n_exp=6 evenly; set a divisor, or 1"
        assert "parallel.replicas=4 times parallel.experts=2 does not divide the 4 processes" in rank[7]
    assert not (folder / "refused").exists()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_all_layouts_are_one_process(data: Path, tmp_path: Path, dtype: str) -> None:
    one = in_one_process(tree(data, steps=20, dtype=dtype), tmp_path / "one")
    for size in (2, 4):
        names = [name for name, (ranks, _) in LAYOUTS.items() if ranks == size]
        jobs = [
            {"do": "train", "run": tree(data, LAYOUTS[name][1], steps=20, dtype=dtype), "out": str(tmp_path / name)}
            for name in names
        ]
        do_jobs(size, tmp_path / str(size), jobs, seconds=500)
        for name in names:
            if dtype == "float64":
                check_equal(tmp_path / name, one)
            else:
                pairs = zip(records(tmp_path / name), records(one), strict=True)
                assert max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in pairs) < 2e-2


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fused", "loop", "grouped"])
def test_all_backends_apply_spread_experts(data: Path, tmp_path: Path, backend: str) -> None:
    """With one active expert of 8 and a router that starts at zero, ranks receive few rows, or none."""
    run = tree(data, {"experts": 2}, {"n_act": 1}, dtype="float32", expert_backend=backend)
    do_jobs(2, tmp_path / "ranks", [{"do": "train", "run": run, "out": str(tmp_path / "two")}])
    one = in_one_process(run, tmp_path / "one")
    pairs = zip(records(tmp_path / "two"), records(one), strict=True)
    assert max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in pairs) < 1e-5


@pytest.mark.slow
def test_every_layout_loads_the_checkpoints_of_every_layout(data: Path, tmp_path: Path) -> None:
    """Saved right after a validation; and on the same layout, 10 + 10 steps are 20 steps, to the bit."""
    for size in (2, 4):
        jobs = []
        for name in (name for name, (ranks, _) in LAYOUTS.items() if ranks == size):
            run, out, whole = (
                tree(data, LAYOUTS[name][1], steps=20),
                str(tmp_path / name),
                str(tmp_path / f"{name}, whole"),
            )
            jobs += [
                {"do": "train", "run": run, "out": out, "stop": [0, 10]},
                {"do": "train", "run": run, "out": whole},
            ]
        do_jobs(size, tmp_path / f"save {size}", jobs, seconds=500)
    in_one_process(tree(data, steps=20), tmp_path / "one", stop_after=10)
    expected = {name: hashes(saved_state(tmp_path / name)) for name in LAYOUTS}
    assert all(len(each) == 4 * 26 - 4 - 2 for each in expected.values()), "26 tensors, 24 of them with three states"
    for size in (2, 4):
        pairs = [(to, begun) for to, (ranks, _) in LAYOUTS.items() if ranks == size for begun in LAYOUTS]
        jobs = [
            {"do": "load", "run": tree(data, LAYOUTS[to][1], steps=20), "out": str(tmp_path / begun)}
            for to, begun in pairs
        ]
        for rank in do_jobs(size, tmp_path / f"load {size}", jobs, seconds=500):
            for (to, begun), found in zip(pairs, rank, strict=True):
                assert found == expected[begun], (begun, to)
    for size in (2, 4):
        again = [name for name, (ranks, _) in LAYOUTS.items() if ranks == size]
        jobs = [
            {"do": "train", "run": tree(data, LAYOUTS[name][1], steps=20), "out": str(tmp_path / name)}
            for name in again
        ]
        do_jobs(size, tmp_path / f"continue {size}", jobs, seconds=500)
        for name in again:
            assert hashes(saved_state(tmp_path / name)) == hashes(saved_state(tmp_path / f"{name}, whole")), name
            loop = TrainingLoop(build(RunSpec, tree(data, steps=20), "run"), open_dataset(data), "cpu")
            saved = resume(read_run(tmp_path / name))
            assert saved is not None
            loop.restore(saved.step, saved.tensors)
            assert hashes({**loop.weights(), **loop.optimizer_state()}) == hashes(saved_state(tmp_path / name))
