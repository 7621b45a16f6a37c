"""`expertp train` on two ranks: every rank refuses bad input with exit code 2, and the reason is printed once."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import yaml
from hugging_face import model_tree
from ranks import do_commands
from runs import run_tree, write_tokens

from expertp.config import build
from expertp.spec import RunSpec
from expertp.training.train import train
from expertp.util.files import exclusive

RUN = ["train", "run.yaml", "--out", "out"]
# Words of both ranks, or of rank 0 and of rank 1, and what the line says.
REFUSED: dict[str, tuple[list[str] | tuple[list[str], list[str]], str]] = {
    "verb": (["trian", *RUN[1:]], "unknown verb 'trian'; did you mean 'train'?"),
    "flag": ([*RUN, "--lr", "1"], "unrecognized arguments: --lr"),
    "no file": (["train", "nowhere.yaml", "--out", "out"], "nowhere.yaml: no such file"),
    "file": (["train", "bad.yaml", "--out", "out"], "bad.yaml: model.n_embed: unknown key; did you mean 'n_embd'?"),
    "override": ([*RUN, "train.stepz=3"], "unknown key; did you mean 'steps'?"),
    "place": (["train", "run.yaml", "--out", "bad.yaml"], "bad.yaml"),
    "other files": (["train", "run.yaml", "--out", "."], "has files but is not a run of expertp"),
    "busy": (["train", "run.yaml", "--out", "busy"], "busy: another process is training this run"),
    "damaged": (["train", "run.yaml", "--out", "damaged"], "damaged: all checkpoints are damaged"),
    "device": ([*RUN, "train.device=cuda"], "train.device=cuda, but torch finds no CUDA device"),
    "tracker": ([*RUN, "--track", "trackio"], "the tracker trackio is not installed"),
    "transformers": (["train", "hf.yaml", "--out", "out"], "is trained by one process, not by 2"),
    "batch": ([*RUN, "train.micro_batch=8"], "2 processes cannot share a batch of 1 micro-batches"),
    "auxiliary": ([*RUN, "train.micro_batch=null", "train.balance=aux_loss"], "set train.micro_batch, such as 4"),
    "replicas": ([*RUN, "parallel.replicas=3"], "parallel.replicas=3 does not divide the 2 processes of the run"),
    "replicas and experts": (
        [*RUN, "parallel.replicas=2", "parallel.experts=2"],
        "parallel.replicas=2 times parallel.experts=2 does not divide the 2 processes",
    ),
    "dense experts": (["train", "dense.yaml", "--out", "out", "parallel.experts=2"], "cannot share a dense model"),
    "odd experts": (["train", "odd.yaml", "--out", "out", "parallel.experts=2"], "cannot share model.n_exp=5 evenly"),
    "vocabulary": (["train", "words.yaml", "--out", "out"], "vocab_size 40 is too small"),
    "layout of rank 1": ((RUN, [*RUN, "parallel.replicas=2"]), "(parallel.replicas=2 there, 1 here); give all ranks"),
    "checkpoints of rank 1": ((RUN, [*RUN, "train.checkpoint_steps=2"]), "rank 1 has other settings than rank 0"),
    "checkpoints of rank 0": (([*RUN, "train.checkpoint_steps=2"], RUN), "(train.checkpoint_steps=None there, 2 here)"),
    "override of rank 1": ((RUN, [*RUN, "train.stepz=3"]), "rank 1: 'train.stepz=3': stepz: unknown key"),
    "data of rank 1": ((RUN, [*RUN, "train.data=other"]), "rank 1 has other data than rank 0 (hash"),
}  # fmt: skip
if torch.cuda.is_available():
    del REFUSED["device"]
FAILED: dict[str, tuple[list[int], str]] = {
    "rank 1": ([1], "rank 1 has failed (RuntimeError: DefaultCPUAllocator: can't allocate memory); run the same"),
    "both": ([0, 1], "out of memory; use a smaller model"),
}


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """Return the outcomes of all commands, which two ranks run in turn in one folder."""
    folder = tmp_path_factory.mktemp("commands")
    data, other = write_tokens(folder / "tokens"), write_tokens(folder / "other", train=39_000)
    assert other != data
    tree = run_tree(data, train={"micro_batch": 4, "steps": 4, "eval_tokens": 128, "checkpoint_steps": 2})
    train(build(RunSpec, tree, "run"), folder / "damaged", should_stop=iter([False, False, True]).__next__)
    for file in (folder / "damaged/checkpoints").glob("*/weights.safetensors"):
        file.write_bytes(file.read_bytes()[:-4])
    del tree["train"]["checkpoint_steps"]
    of_transformers = {**tree, **dict.fromkeys(("base", "model"), model_tree("mixtral"))}
    of_transformers["train"] = {**tree["train"], "balance": "none"}
    bad = {**tree, "model": {"n_embed": 32}}
    models = {"dense": {"ffn": "dense", "n_exp": 1, "n_act": 1}, "odd": {"n_exp": 5}, "words": {"vocab_size": 40}}
    others = {name: {**tree, **dict.fromkeys(("base", "model"), tree["model"] | each)} for name, each in models.items()}
    for name, each in {"run": tree, "bad": bad, "hf": of_transformers, **others}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(each))
    refused = [words if isinstance(words, tuple) else (words, words) for words, _ in REFUSED.values()]
    commands = [{"argv": words, "short": []} for words in refused]
    commands += [{"argv": [[*RUN[:3], name]] * 2, "short": short} for name, (short, _) in FAILED.items()]
    with pytest.MonkeyPatch.context() as patched, exclusive(folder / "busy", "busy"):
        patched.chdir(folder)
        found = do_commands(2, folder / "outcomes", commands)
    yield dict(zip([*REFUSED, *FAILED], found, strict=True))
    assert not (folder / "out").exists(), "nothing is written"


def errors(outcome: dict[str, Any]) -> list[str]:
    """Return what was printed, but for warnings and the progress of the run."""
    return [line for line in outcome["lines"] if not line.startswith(("expertp: warning: ", "train: "))]


@pytest.mark.heavy
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_of_all_ranks_is_said_once(name: str, on_two_ranks: dict[str, dict[str, Any]]) -> None:
    (line,) = errors(on_two_ranks[name])
    assert REFUSED[name][1] in line
    assert on_two_ranks[name]["codes"] == [2, 2]


@pytest.mark.heavy
@pytest.mark.parametrize("name", FAILED)
def test_what_only_a_rank_knows_is_said_by_rank_0(name: str, on_two_ranks: dict[str, dict[str, Any]]) -> None:
    (line,) = errors(on_two_ranks[name])
    assert FAILED[name][1] in line
    assert on_two_ranks[name]["codes"] == [1, 1]
