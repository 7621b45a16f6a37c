"""The one next command: every verb has one, it parses, and only people see it."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from expertp.cli.main import VERBS, build_parser
from expertp.cli.next import NEXT

Say = Callable[..., tuple[int, str, str]]

# Command lines that end well -> the next one.
FOLLOWS = {
    "demo": "expertp init",
    "plan --base base.yaml --target target.yaml model.n_embd=4096 hps.lr=0.1": (
        "expertp capacity target.yaml --fit model.n_embd=4096"
    ),
    "plan --hf base.json target.json hps.lr=0.1": "expertp capacity target.json --fit",
    "planner": "expertp init",
    "planner --base base.yaml --target target.yaml": "expertp plan --base base.yaml --target target.yaml",
    "planner --target target.yaml --steps 50 model.n_embd=4096 hps.lr=0.1": (
        "expertp plan --base base.yaml --target target.yaml --steps 50 model.n_embd=4096 hps.lr=0.1"
    ),
    "planner --base base.yaml model.n_act=3": "expertp init",  # another sparsity, which `plan` refuses
    "planner --hf base.json target.json hps.lr=0.1": "expertp plan --hf base.json target.json hps.lr=0.1",
    "capacity target.yaml --devices 8": "expertp capacity target.yaml --devices 8 --fit",
    "capacity target.yaml --fit": "expertp planner --target target.yaml",
    "capacity run.yaml --fit parallel.experts=2": "expertp train run.yaml --out out/run parallel.experts=2",
    "capacity target.yaml --fit train.micro_batch=2 model.n_embd=4096": (
        "expertp planner --target target.yaml model.n_embd=4096"
    ),
    "capacity config.json --fit": "expertp plan --hf config.json config.json hps.lr=0.01 hps.init_std=0.02",
    "capacity plan.json --fit": "expertp doctor",
    "capacity run --fit": "expertp watch run",
    "show run.yaml train.steps=50": "expertp train run.yaml --out out/run train.steps=50",
    "show study.yaml": "expertp sweep study.yaml --dry-run",
    "show base.yaml": "expertp planner --base base.yaml",
    "show base.yaml model.n_embd=32 hps.lr=0.1": "expertp planner --base base.yaml hps.lr=0.1",
    "show other/base.yaml": "expertp init",  # of another architecture than the target that the planner starts with
    "show theory.yaml": "expertp theory solve theory.yaml",
    "init": "expertp plan --base configs/base.yaml --target configs/target.yaml",
    "train run.yaml --out 'my run'": "expertp generate 'my run' --prompt Once",
    "generate out/run --prompt 'a b'": "expertp generate out/run --prompt 'a b' --samples 3 --top-p 0.9",
    "generate out/run --top-p 0.5": "expertp generate out/run --top-p 0.5 --samples 3",
    "generate out/run --samples=1": "expertp generate out/run --samples=1 --top-p 0.9",
    "generate out/run --top-p 0.5 --samples 1": "expertp demo",
    "generate out/run --samples 2": "expertp demo",
    "generate out/run --temperature 0": "expertp demo",  # all samples are the same
    "sweep study.yaml --dry-run --until decided": "expertp sweep study.yaml --until decided --out studies/study",
    "sweep study.yaml --out s --workers 2 --dry-run": "expertp sweep study.yaml --out s --workers 2",
    "sweep study.yaml --out s": "expertp report s",
    "tune study.yaml --dry-run --out t": "expertp tune study.yaml --out t",
    "tune study.yaml --out tuned hps.lr=1 seeds=[0,1]": (
        "expertp sweep study.yaml --dry-run 'seeds=[0,1]' hps.lr=1/128 hps.init_std=0.5 "
        '\'hps.constants={"router_lr": "1/16"}\''
    ),
    "coordcheck study.yaml --out out/check": "expertp sweep study.yaml --dry-run",
    "coordcheck study.yaml --out swept/check": "expertp report swept",
    "report s --strict": "expertp report s --strict --open",
    "report s --open": "expertp coordcheck s/study.json --out s/coordcheck",
    "paper list": "expertp paper make bias-shift --dry-run",
    "paper make bias-shift --out p --dry-run": "expertp paper make bias-shift --out p",
    "paper make bias-shift --out p": "expertp paper page --out p",
    "paper page": "expertp theory compare",
    "theory solve theory.yaml eta=0.1": "expertp theory compare theory.yaml eta=0.1",
    "theory size": "expertp theory verify",
    "theory verify --only gates": "expertp theory verify --only gates --full",
    "theory verify --full": "expertp paper list",
    "bench experts": "expertp doctor",
    "watch swept": "expertp status swept",
    "watch run": "expertp capacity run --fit",
    "watch nothing": "expertp init",
    "completion bash": 'eval "$(expertp completion bash)"',
    "completion fish": "expertp completion fish | source",
    "doctor": "expertp demo",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with starter files, tuned hyperparameters and a study."""
    from expertp.cli.init import write_starters

    write_starters(tmp_path)
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned/preset.yaml").write_text(
        "hps:\n  lr: 1/128\n  init_std: 0.5\n  constants:\n    router_lr: 1/16\n"
    )
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept/study.json").write_text("{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "olmoe"}')
    (tmp_path / "other").mkdir()
    base = (tmp_path / "base.yaml").read_text()
    (tmp_path / "other/base.yaml").write_text(re.sub(r"(n_embd: .*)", r"\1\n  d_head: 16", base))
    assert "d_head: 16" in (tmp_path / "other/base.yaml").read_text()
    (tmp_path / "plan.json").write_text('{"target": {}, "groups": {}}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_verb_has_a_next_command() -> None:
    assert list(NEXT) == list(VERBS)
    tested = {line.split()[0] for line in FOLLOWS}
    assert tested == set(VERBS) - {"prepare", "status"}  # which read directories: their own tests have them


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("line", FOLLOWS)
def test_the_next_command_follows_and_parses(line: str) -> None:
    verb, *words = shlex.split(line)
    found = NEXT[verb](build_parser(verb).parse_intermixed_args(words), words)
    assert found == FOLLOWS[line]
    if found.startswith("expertp "):
        _, verb, *words = shlex.split(found.removesuffix(" | source"))
        assert build_parser(verb).parse_intermixed_args(words).run


@pytest.mark.usefixtures("on_terminal")
@pytest.mark.parametrize("before", ["demo", "planner", "planner --base configs/base.yaml"])
def test_starter_files_that_exist_are_planned_and_never_overwritten(
    before: str, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verb, *words = before.split()

    def follow() -> str:
        """Return the next command after running it."""
        line = NEXT[verb](build_parser(verb).parse_intermixed_args(words), words)
        assert say(*shlex.split(line)[1:])[0] == 0
        return line

    if "--base" in before:
        assert say("init")[0] == 0
    else:
        assert follow() == "expertp init"
    assert follow() == "expertp plan --base configs/base.yaml --target configs/target.yaml"
    Path("configs/target.yaml").unlink()
    assert [follow(), follow()] == ["expertp init my-model", "expertp init my-model-2"]


@pytest.mark.usefixtures("folder", "on_terminal")
def test_json_and_errors_are_not_followed_by_a_suggestion(say: Say) -> None:
    assert say("show", "run.yaml")[2] == "next: expertp train run.yaml --out out/run\n"
    assert say("show", "run.yaml", "--json")[2] == ""
    assert "next" not in say("show", "nothing.yaml")[2]
    assert "next" not in say("capacity", "target.yaml", "model.n_layer=2000")[2]  # exit code 1


@pytest.mark.usefixtures("on_terminal")
def test_a_suggestion_that_fails_does_not_fail_the_command(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setitem(NEXT, "completion", fail)  # type: ignore[arg-type]
    code, _, err = say("completion", "bash")
    assert (code, err) == (0, "")


@pytest.mark.heavy
@pytest.mark.parametrize("is_piped", [False, True])
def test_a_terminal_shows_it_and_a_pipe_does_not(is_piped: bool, folder: Path) -> None:
    reader, terminal = os.openpty()
    program = [sys.executable, "-m", "expertp", "show", "run.yaml"]
    out = subprocess.DEVNULL if is_piped else terminal
    done = subprocess.run(program, stdout=out, stderr=terminal, check=False, cwd=folder)
    os.close(terminal)
    shown = b""
    while True:
        try:
            piece = os.read(reader, 4096)
        except OSError:  # all that was written has been read
            break
        shown += piece
        if not piece:
            break
    os.close(reader)
    assert done.returncode == 0
    assert (b"next: expertp train run.yaml --out out/run" in shown) == (not is_piped)
