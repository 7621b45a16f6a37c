"""Several ranks train one run: the bits of one process, agreed ends, refusals on all ranks."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from ranks import do_jobs, records
from runs import run_tree, tiny_run, write_tokens
from torch.distributed.checkpoint import HuggingFaceStorageReader, load

from expertp.cli.main import main
from expertp.data import PrepareOptions, open_dataset, prepare, train_batch
from expertp.errors import InputError
from expertp.model.seeding import fill_part_, generator_of
from expertp.spec import ParallelSpec, RunSpec
from expertp.training.checkpoints import newest_weights, resume
from expertp.training.parallel import clip_gradients_, micro_batch, own_rows
from expertp.training.ranks import Ranks, meeting_place
from expertp.training.store import read_run
from expertp.training.train import _check_same, train

# Every kind of run whose 20 steps on two ranks, one micro-batch each, have the bits of one process.
BITWISE: dict[str, dict[str, dict[str, Any]]] = {
    "float32": {"train": {"schedule": "cosine"}, "hps": {"weight_decay": 0.1}},
    "bfloat16": {"train": {"dtype": "bfloat16", "activation_checkpointing": True}},
    "bfloat16, kept": {"train": {"dtype": "bfloat16"}},
    "untied": {"model": {"tied_embeddings": False}, "train": {"balance": "aux_loss", "steps": 4}},
    "dense": {
        "model": {"ffn": "dense", "n_exp": 1, "n_act": 1, "linear_bias": True},
        "train": {"dtype": "bfloat16", "steps": 3},
    },
    "replicas": {"train": {"steps": 4}},
}
# Refused before anything is written; {size} is the number of ranks.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "micro-batches": (
        {"train": {"micro_batch": 8}},
        "2 processes cannot share a batch of 1 micro-batches of 8 sequences",
    ),
    "auxiliary": ({"train": {"micro_batch": None, "balance": "aux_loss"}}, "set train.micro_batch, such as 4"),
    "replicas": ({"parallel": {"replicas": 3}}, "parallel.replicas=3 does not divide the 2 processes of the run"),
    "data": ({"train": {"data": "/nowhere"}}, "/nowhere"),
    "dense experts": (
        {"model": {"ffn": "dense", "n_exp": 1, "n_act": 1}, "parallel": {"experts": 2}},
        "parallel.experts=2 cannot share a dense model without experts evenly",
    ),
    "vocabulary": ({"model": {"vocab_size": 40}}, "vocab_size 40 is too small"),
    "memory": ({"model": {"n_embd": 2**18}}, "GiB; choose a smaller model"),
}
# Refused because rank 1 has other files than rank 0.
PARTED: dict[str, tuple[dict[str, Any], str]] = {
    "another run": ({"train": {"seed": 7}}, "rank 1 has other settings than rank 0 (train.seed=7 "),
    "no data": ({"train": {"data": "/nowhere"}}, "rank 1: "),
    "another interval": ({"train": {"checkpoint_steps": 3}}, "(train.checkpoint_steps=3 there, None here)"),
    "another layout": ({"parallel": {"replicas": 2}}, "(parallel.replicas=2 there, 1 here)"),
    "no layout": ({"parallel": {"replicas": 3}}, "rank 1: parallel.replicas=3 does not divide the 2 processes"),
}


# What happens to a file of a checkpoint.
DAMAGED = ("cut", "missing")
SHORT = {"steps": 8, "checkpoint_steps": 5}
# The jobs of BITWISE begin here.
FIRST = 8
# The job in which rank 1 is killed.
LAST = FIRST + len(BITWISE) + len(REFUSED) + len(PARTED) + 5


def tree(data: Path, **sections: Any) -> dict[str, Any]:
    """Return the tree of a run of 20 steps in two micro-batches."""
    train_section = {"micro_batch": 4, "steps": 20, "eval_every": 5, "eval_tokens": 240, **sections.pop("train", {})}
    return {**run_tree(data, train=train_section, **sections), "parallel": sections.get("parallel", {})}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def two_ranks(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Any]]]:
    """Everything that two ranks do, in one launch: the folder of the runs, and the outcomes by rank and job.

    A refusal on which they hang fails the launch.
    """
    folder = tmp_path_factory.mktemp("two")
    jobs = [
        {"do": "train", "run": tree(data, **sections), "out": str(folder / name)} for name, sections in BITWISE.items()
    ]
    jobs[-1]["run"]["parallel"] = {"replicas": 2}
    jobs += [
        {"do": "train", "run": tree(data, **sections), "out": str(folder / "refused" / name)}
        for name, (sections, _) in REFUSED.items()
    ]
    jobs += [
        {
            "do": "train",
            "run": tree(data),
            "out": str(folder / "refused" / name),
            "instead": [1, tree(data, **sections)],
        }
        for name, (sections, _) in PARTED.items()
    ]
    # The directory of another run.
    jobs.append({"do": "train", "run": tree(data), "out": str(folder / "short")})
    jobs += [
        {"do": "train", "run": tree(data, hps={"clip": 0.1}), "out": str(folder / "clip")},
        {"do": "train", "run": tree(data, train=SHORT), "out": str(folder / "stopped"), "stop": [1, 5]},
        {"do": "train", "run": tree(data), "out": str(folder / "diverged"), "poison": [1, 3]},
        {"do": "train", "run": tree(data, **BITWISE["float32"]), "out": str(folder / "float32")},
    ]
    # Interrupted runs that end with the bits of the uninterrupted one.
    run = tree(data, train=SHORT)
    stopping_in_one_process(run, folder / "from one", after=5)
    in_one_process(run, folder / "short")
    jobs = [
        {"do": "train", "run": run, "out": str(folder / "from one")},
        *(job for how in DAMAGED for job in damaging(run, str(folder / how), how)),
        {"do": "train", "run": on_bytes(folder), "out": str(folder / "bytes")},
        *jobs,
    ]
    jobs.append({"do": "train", "run": run, "out": str(folder / "killed"), "kill": [1, 7]})
    return folder, do_jobs(2, folder, jobs, lost=1)


def on_bytes(folder: Path) -> dict[str, Any]:
    """Return the tree of a run whose tokens are bytes of a text."""
    (folder / "text").mkdir()
    for number in range(4):
        (folder / "text" / f"{number}.txt").write_text("the cat sat on the mat. " * 80, encoding="utf-8")
    prepare(str(folder / "text"), folder / "tokens", PrepareOptions(tokenizer="bytes", val_fraction=0.2))
    return tree(folder / "tokens", model={"vocab_size": 320}, train={"steps": 4, "eval_every": 0})


def damaging(run: dict[str, Any], out: str, how: str) -> list[dict[str, Any]]:
    """Return jobs that stop a run, damage its newest checkpoint and continue it."""
    train_again = {"do": "train", "run": run, "out": out}
    return [{**train_again, "stop": [0, 7]}, {"do": "damage", "out": out, "how": how}, train_again]


def stopping_in_one_process(tree: dict[str, Any], out: Path, after: int) -> None:
    calls = iter(range(1, 100))
    result = train(RunSpec.model_validate(tree), out, should_stop=lambda: next(calls) == after)
    assert (result.status, result.step) == ("stopped", after)


def in_one_process(tree: dict[str, Any], out: Path) -> Path:
    train(RunSpec.model_validate({**tree, "parallel": {}}), out)
    return out


def state(out: Path) -> dict[str, torch.Tensor]:
    checkpoint = resume(read_run(out))
    assert checkpoint is not None
    return checkpoint.tensors.whole()


@pytest.mark.heavy
def test_two_ranks_have_the_bits_of_one_process(
    two_ranks: tuple[Path, list[list[Any]]], data: Path, tmp_path: Path
) -> None:
    folder, outcomes = two_ranks
    for number, (name, sections) in enumerate(BITWISE.items(), FIRST):
        alone = in_one_process(tree(data, **sections), tmp_path / name)
        assert records(folder / name) == records(alone), name
        here, there = state(alone), state(folder / name)
        assert here.keys() == there.keys()
        assert all(torch.equal(value, there[key]) for key, value in here.items()), name
        for result in (rank[number] for rank in outcomes):
            assert (result["status"], result["world_size"]) == ("finished", 2), result
            assert result == read_run(folder / name).summary().to_dict()


def equal(first: Path, second: Path) -> bool:
    """Return whether two runs have the same records and the same state."""
    here, there = state(first), state(second)
    same = here.keys() == there.keys() and all(torch.equal(value, there[key]) for key, value in here.items())
    return same and records(first) == records(second)


@pytest.mark.heavy
def test_an_interrupted_run_ends_with_the_same_bits_on_any_number_of_ranks(
    two_ranks: tuple[Path, list[list[Any]]], data: Path, tmp_path: Path
) -> None:
    folder, outcomes = two_ranks
    assert equal(folder / "from one", folder / "short"), "begun by one process, continued by two"
    assert all(rank[0]["status"] == "finished" for rank in outcomes)
    shutil.copytree(folder / "stopped", tmp_path / "to one")
    with pytest.warns(UserWarning, match="started with ranks 2, now 1; results may differ in the last bits"):
        train(RunSpec.model_validate(tree(data, train=SHORT)), tmp_path / "to one")
    assert equal(tmp_path / "to one", folder / "short"), "begun by two ranks, continued by one process"


@pytest.mark.heavy
@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_part_falls_back_to_the_checkpoint_before(two_ranks: tuple[Path, list[list[Any]]], how: str) -> None:
    folder, outcomes = two_ranks
    begin = 1 + 3 * DAMAGED.index(how)
    stopped, file, finished = outcomes[1][begin : begin + 3]
    assert (stopped["step"], finished["step"]) == (7, 8)
    assert file == "step-00000007/shard-00002-model-00002-of-00002.safetensors"
    aside = folder / how / "checkpoints" / "damaged-step-00000007-1"
    assert (aside / Path(file).name).exists() == (how == "cut")
    assert equal(folder / how, folder / "short")


@pytest.mark.heavy
def test_a_checkpoint_of_ranks_has_all_tensors_and_no_pickle(two_ranks: tuple[Path, list[list[Any]]]) -> None:
    """The last one was saved right after a validation, which leaves gathered tensors in the model."""
    folder, _ = two_ranks
    newest = folder / "float32" / "checkpoints" / "step-00000020"
    assert sorted(path.name for path in newest.iterdir()) == [
        *(f"shard-{rank:05d}-model-{kind:05d}-of-00002.safetensors" for rank in (1, 2) for kind in (1, 2)),
        "state.json",
    ]
    mine = state(folder / "float32")
    parameters = [name.partition("/")[2] for name in mine if name.startswith("exp_avg/")]
    assert len(mine) == 4 * len(parameters) + 2  # two expert biases
    read = {name: torch.zeros_like(value) for name, value in mine.items()}
    with pytest.warns(UserWarning, match="load in a single process"):
        load(read, storage_reader=HuggingFaceStorageReader(str(newest)), no_dist=True)
    assert all(torch.equal(value, read[name]) for name, value in mine.items()), "torch reads the same"
    weights = newest_weights(read_run(folder / "float32"))
    assert weights is not None
    assert all(torch.equal(value, mine[name]) for name, value in weights.items())


@pytest.mark.heavy
def test_clipped_gradients_are_those_of_one_process_to_rounding(
    two_ranks: tuple[Path, list[list[Any]]], data: Path, tmp_path: Path
) -> None:
    """20 steps in float32."""
    alone = in_one_process(tree(data, hps={"clip": 0.1}), tmp_path / "clip")
    pairs = list(zip(records(two_ranks[0] / "clip"), records(alone), strict=True))
    assert len(pairs) == 20
    assert max(abs(here["loss"] - there["loss"]) / there["loss"] for here, there in pairs) < 1e-6
    mine, other = state(two_ranks[0] / "clip"), state(alone)
    weights = [name for name in mine if "/" not in name]
    worst = max((mine[name] - other[name]).abs().max().item() for name in weights)
    assert worst < 1e-6
    in_one_process(tree(data, train={"steps": 6}), tmp_path / "unclipped")
    assert records(tmp_path / "unclipped")[-1]["loss"] != records(alone)[5]["loss"], "clipping must change something"


@pytest.mark.heavy
def test_text_is_generated_from_the_checkpoint_of_two_ranks(
    two_ranks: tuple[Path, list[list[Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the text of the same run by one process, whose weights are the same."""
    folder, outcomes = two_ranks
    assert [rank[FIRST - 1]["world_size"] for rank in outcomes] == [2, 2]
    in_one_process(json.loads((folder / "jobs.json").read_text())[FIRST - 1]["run"], tmp_path / "one")
    texts = []
    for out in (folder / "bytes", tmp_path / "one"):
        assert main(["generate", str(out), "--prompt", "the", "--tokens", "12", "--seed", "3"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0].startswith("the")
    assert texts[0] == texts[1]


@pytest.mark.heavy
def test_ends_are_agreed(two_ranks: tuple[Path, list[list[Any]]]) -> None:
    folder, outcomes = two_ranks
    for rank in outcomes:
        stopped, diverged, again = rank[LAST - 3 : LAST]
        assert (stopped["status"], stopped["step"]) == ("stopped", 5)
        assert (diverged["status"], diverged["step"], diverged["train_loss"]) == ("diverged", 3, None)
        assert (again["status"], again["step"]) == ("finished", 20)
    assert resume(read_run(folder / "stopped")).step == 5
    assert records(folder / "stopped") == records(folder / "short")[:5]


@pytest.mark.heavy
def test_a_rank_that_is_killed_is_noticed_and_nothing_is_lost(
    two_ranks: tuple[Path, list[list[Any]]], data: Path, tmp_path: Path
) -> None:
    folder, outcomes = two_ranks
    noticed = "RunError: another process of the run has ended or cannot be reached; run the same command again"
    assert outcomes[0][LAST].startswith(noticed)
    assert len(outcomes[1]) == LAST
    shutil.copytree(folder / "killed", tmp_path / "killed")
    assert resume(read_run(tmp_path / "killed")).step == 5
    with pytest.warns(UserWarning, match="started with ranks 2, now 1"):
        train(RunSpec.model_validate(tree(data, train=SHORT)), tmp_path / "killed")
    assert equal(tmp_path / "killed", folder / "short")


@pytest.mark.heavy
def test_bad_input_is_refused_by_all_ranks(two_ranks: tuple[Path, list[list[Any]]]) -> None:
    folder, outcomes = two_ranks
    cases = {**REFUSED, **PARTED, "directory of another run": ({}, f"{folder / 'short'}: ")}
    for number, (name, (_, message)) in enumerate(cases.items(), FIRST + len(BITWISE)):
        for rank in outcomes:
            assert rank[number].startswith("InputError: "), name
            assert message in rank[number], name
    assert not (folder / "refused").exists(), "nothing is written"


@pytest.mark.heavy
def test_torchrun_reports_bad_input_once_and_every_rank_exits_with_2(data: Path, tmp_path: Path) -> None:
    """torchrun's own code is 1 whatever the ranks return; its report has the codes of the ranks."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree(data, train={"micro_batch": 8})))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "expertp", "train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in finished.stderr.splitlines() if line.startswith("expertp: ")]
    assert len(lines) == 1
    assert "cannot share a batch" in lines[0]
    assert set(re.findall(r"exitcode *: (-?\d+)", finished.stderr)) == {"2"}
    assert not (tmp_path / "out").exists()


@dataclass(frozen=True)
class WithRank1(Ranks):
    """Rank 0, and what rank 1 gives."""

    other: Any = None

    def gathered(self, value: Any) -> list[Any]:
        return [value, self.other]


def test_ranks_on_other_devices_are_refused(data: Path) -> None:
    """`device: auto` may be a GPU on one machine only."""
    run, dataset = tiny_run(data), open_dataset(data)
    same = run.replace(train=run.train.replace(data="", device="auto"))
    found = (same, dataset.content_hash, "cpu")
    _check_same(run, dataset, "cpu", WithRank1(size=2, other=found))
    with pytest.raises(InputError, match=r"rank 1 computes on cpu, but rank 0 on cuda; set train\.device"):
        _check_same(run, dataset, "cuda", WithRank1(size=2, other=found))


def test_ranks_read_their_rows_of_the_batch(data: Path) -> None:
    run, shards = tiny_run(data), open_dataset(data).train
    arguments = (run.model.context, run.sequences, 3, 5)
    whole = torch.from_numpy(train_batch(shards, *arguments))
    ranks = [Ranks(rank, 4) for rank in range(4)]
    parts = [torch.from_numpy(train_batch(shards, *arguments, rows=own_rows(run, rank))) for rank in ranks]
    assert torch.equal(torch.cat(parts), whole)
    assert micro_batch(run, ranks[0]) == 2
    assert micro_batch(tiny_run(data, train={"micro_batch": 1}), ranks[0]) == 1


@pytest.mark.parametrize("shape", [(7, 32), (5, 4, 48), (6, 3), (40,)])
def test_a_part_of_a_tensor_is_drawn_as_the_whole(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = 0.5 * torch.randn(shape, generator=generator_of(1, "x"))
    for drawn in (1, 70, 2**22):
        monkeypatch.setattr("expertp.model.seeding.DRAWN_AT_ONCE", drawn)
        for start, stop in ((0, shape[0]), (0, 2), (2, 5), (shape[0], shape[0])):
            for inner in (slice(0, shape[1]), slice(1, 3)) if len(shape) > 1 else ():
                place = (slice(start, stop), inner, *(slice(0, size) for size in shape[2:]))
                part = torch.full_like(whole[place], torch.nan)
                fill_part_(part, place, whole.shape, 0.5, generator_of(1, "x"))
                assert torch.equal(part, whole[place]), (place, drawn)


@pytest.mark.parametrize("max_norm", [0.1, 100.0])
def test_one_process_clips_as_torch_does(max_norm: float) -> None:
    first, second = (torch.nn.Linear(5, 3) for _ in range(2))
    second.load_state_dict(first.state_dict())
    for module in (first, second):
        module(torch.linspace(-2, 2, 20).view(4, 5)).square().sum().backward()
    clip_gradients_(first.parameters(), max_norm, ParallelSpec(), Ranks())
    torch.nn.utils.clip_grad_norm_(second.parameters(), max_norm)
    for here, there in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(here.grad, there.grad)


def test_the_ranks_of_srun_meet_at_the_first_node() -> None:
    slurm = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2"}
    assert meeting_place({**slurm, "SLURM_STEP_NODELIST": "a-7,b[1-3]"}) == "tcp://a-7:21200"
    assert meeting_place({**slurm, "SLURM_STEP_NODELIST": "n[09,11]x,m"}) == "tcp://n09x:21200"
    assert meeting_place({**slurm, "SLURM_STEP_NUM_NODES": "1"}) == "tcp://127.0.0.1:21200"
    assert meeting_place({**slurm, "MASTER_ADDR": "head", "MASTER_PORT": "5"}) == "tcp://head:5"
    assert meeting_place({**slurm, "RANK": "0", "MASTER_ADDR": "head", "MASTER_PORT": "5"}) == "env://"
