"""Commands that pages and verbs print run as printed, in their order, in an empty directory.

The tests make the starter files smaller and keep the command lines; `SMALLER` has what else they change. ./test.sh runs
the commands of README.md but the long ones, in one process; `pytest -m slow` runs all of them in a shell, and those of
the pages of docs/.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from expertp.cli.main import main
from expertp.study.load import load_study

ROOT = Path(__file__).parents[1]
# What replaces what in the starter files: patterns and their replacements.
SMALLER_FILES = {
    r" steps: \d+": " steps: 2", r"batch_tokens: \d+": "batch_tokens: 256", r"warmup_steps: \d+": "warmup_steps: 1",
    r"eval_every: \d+": "eval_every: 2", r"eval_tokens: \d+": "eval_tokens: 256",
    r"\[64, 128, 256\]": "[64, 128]", r"\[64, 256\]": "[64, 128]", r"\[2, 4, 8\]|\[2, 8\]": "[2, 4]",
    r"\[4, 8, 16\]|\[4, 16\]": "[4, 8]",
    r"\[8, 32\]": "[8, 16]", r"\[1, 2, 4\]|\[1, 4\]": "[1, 2]", r", sweep_at: \[\d+\]": "",
    r"log2_lr: \[.*\]": "log2_lr: [-8, -7]", r"log2_init_std: \[.*\]": "log2_init_std: null",
    r"seeds: \[0, 1, 2\]": "seeds: [0, 1]", r"^T: \d+": "T: 6", r"^P: \d+": "P: 5",
}  # fmt: skip
# What replaces what in command lines: a small folder of text, less time.
SMALLER = {
    "prepare builtin": "prepare texts",
    "--minutes 30": "--minutes 0.05",
    "studies/own/study.json --out": "studies/own/study.json --steps 3 --out",
    "--devices 4 parallel.experts=4 train.micro_batch=8": "--devices 2 parallel.experts=2 train.micro_batch=1",
    '--prompt "The"': '--prompt "The" --tokens 8',
    "study.yaml --out studies/first/coordcheck": "study.yaml --steps 4 --out studies/first/coordcheck",
    "study.yaml --out out/coordcheck": "study.yaml --steps 4 --out out/coordcheck",
}
# Commands that take minutes: those of README.md run in its slow version only, those of docs/ in none.
LONG = (
    "theory size",
    "theory verify",
    "theory soft-router",
    "bench ",
    "tune ",
    "paper make transfer",
    "paper all",
    "paper page",
)
# Commands that serve until Ctrl-C; tests/report/test_live.py runs them.
SERVERS = ("expertp watch ",)
# A check or a verdict may fail at this scale.
MAY_FAIL = {"coordcheck": (0, 1), "report": (0, 3)}

Shell = Callable[[str], str]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Run a line in a shell in an empty directory; return its output."""
    program = tmp_path / "bin/expertp"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m expertp.cli.main "$@"\n')
    program.chmod(0o755)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    (tmp_path / "work").mkdir()

    def run(line: str) -> str:
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, cwd=tmp_path / "work")
        return checked(line, done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], in_process: None
) -> Shell:
    """Run the commands of a line in this process in an empty directory; return their output and the next command."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("expertp.cli.next.is_read_by_people", lambda: True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def run(line: str) -> str:
        out = ""
        for command in line.split(" && "):
            program, *arguments = shlex.split(command)
            assert program == "expertp"
            assert not {";", "|", ">", "<"} & set(arguments), f"{command}: needs a shell"
            code = main(arguments)
            printed, err = capsys.readouterr()
            suggested = re.findall(r"^next: expertp .*$", err, re.M)
            assert len(suggested) == (code == 0), f"{command}\n{err}"
            out += checked(command, code, printed, err) + "".join(f"{line}\n" for line in suggested)
        return out

    return run


def checked(line: str, code: int, out: str, err: str) -> str:
    """Return the output of a line that has ended with an allowed exit code; its tables fit into 80 columns."""
    verb = re.findall(r"expertp (\w+)", line)[-1]
    assert code in MAY_FAIL.get(verb, (0,)), f"{line}\n{out}{err}"
    rules = [text for text in out.splitlines() if text and set(text) == {"-"}]  # as wide as their tables
    assert all(len(text) <= 80 for text in rules), out
    return out


def commands_of(page: Path) -> list[str]:
    """Return the commands in the code blocks of a page, without their comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = [re.sub(r"\s+#.*", "", line) for language, block in blocks if not language for line in block.splitlines()]
    return [line for line in lines if line.startswith("expertp ")]


def make_smaller(folder: Path) -> None:
    for path in folder.glob("*.yaml"):
        text = path.read_text()
        for pattern, replacement in SMALLER_FILES.items():
            text = re.sub(pattern, replacement, text, flags=re.M)
        path.write_text(text)


def write_texts(folder: Path) -> None:
    """Write about a megabyte of text."""
    folder.mkdir()
    for path in sorted(Path(subprocess.__file__).parent.glob("[a-d]*.py")):
        (folder / path.name).write_bytes(path.read_bytes())


def run_in_order(lines: list[str], work: Path, shell: Shell, without: tuple[str, ...] = LONG) -> int:
    """Run commands with smaller starter files, but for those that contain a text; return how many ran."""
    write_texts(work / "texts")
    ran = 0
    for line in lines:
        if any(text in line for text in (*without, *SERVERS)):
            continue
        small = line
        for long, short in SMALLER.items():
            small = small.replace(long, short)
        shell(small)
        ran += 1
        if "expertp init" in line:
            make_smaller(work / [*line.split(), "configs"][2])
    return ran


@pytest.mark.heavy
def test_the_commands_of_the_readme_run_in_their_order(tmp_path: Path, process: Shell) -> None:
    assert run_in_order(commands_of(ROOT / "README.md"), tmp_path / "work", process) >= 11
    assert (tmp_path / "work/studies/first/report.html").exists()


@pytest.mark.parametrize(
    "minutes",
    [pytest.param("0.05", marks=pytest.mark.heavy), pytest.param("5", marks=pytest.mark.slow)],  # slow: it is decided
)
def test_the_tutorial_goes_from_text_to_a_decided_study_in_ten_commands(
    minutes: str, tmp_path: Path, process: Shell
) -> None:
    """The study has one axis, two widths and a tolerance that a few runs of two steps decide; tutorial.log has all."""
    lines, work = commands_of(ROOT / "docs/tutorial.md"), tmp_path / "work"
    assert [line.split()[1] for line in lines] == [
        *("init", "prepare", "show", "train", "generate", "sweep", "sweep", "status", "coordcheck", "report"),
    ]
    write_texts(work / "texts")
    for line in lines:
        small = line
        for long, short in {**SMALLER, "--minutes 90": f"--minutes {minutes}"}.items():
            small = small.replace(long, short)
        printed = process(small)
        with (tmp_path / "tutorial.log").open("a") as log:
            log.write(f"$ {small}\n{printed}\n")
        if line.startswith("expertp init"):
            make_smaller(work / "my-model")
            study = work / "my-model/study.yaml"
            text = re.sub(r"^  (depth|experts|alpha): \{.*\n", "", study.read_text(), flags=re.M)
            for large, tiny in (("n_embd: 64", "n_embd: 32"), ("[64, 128]", "[32, 64]"), ("nats: 0.005", "nats: 20")):
                assert large in text
                text = text.replace(large, tiny)
            study.write_text(text)
    [verdict] = json.loads((work / "studies/own/verdict.json").read_text())["axes"]
    assert verdict["verdict"] in (("TRANSFERS",) if minutes == "5" else ("TRANSFERS", "UNDECIDED"))
    assert (work / "studies/own/report.html").is_file()
    assert (work / "studies/own/coordcheck/coordcheck.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["study", "training", "coordcheck", "theory", "paper", "capacity"])
def test_the_commands_of_a_page_run_in_their_order(name: str, tmp_path: Path, shell: Shell) -> None:
    before = ["expertp init", "expertp prepare builtin --out prepared/builtin --tokenizer bpe --vocab-size 4096"]
    before += ["expertp prepare builtin --out prepared/builtin-1024 --tokenizer bpe --vocab-size 1024"]
    needs = {"training": before[:2], "coordcheck": [before[0], before[2]], "theory": before[:1], "capacity": before[:1]}
    lines = commands_of(ROOT / f"docs/{name}.md")
    assert run_in_order([*needs.get(name, []), *lines], tmp_path / "work", shell) >= 1


@pytest.mark.slow
def test_all_commands_of_the_readme_run_in_their_order(tmp_path: Path, shell: Shell) -> None:
    lines = [line for line in commands_of(ROOT / "README.md") if not line.startswith(SERVERS)]
    assert run_in_order(lines, tmp_path / "work", shell, without=()) == len(lines)


@pytest.mark.heavy
def test_every_command_that_the_demo_prints_runs_as_printed(tmp_path: Path, process: Shell) -> None:
    demo = tmp_path / "work/my demo"
    demo.mkdir()
    (demo / "study.yaml").write_bytes((ROOT / "configs/demo.yaml").read_bytes())
    make_smaller(demo)
    text = (demo / "study.yaml").read_text()  # two axes are enough
    text = re.sub(r"^  (experts|alpha): .*\n", "", text, flags=re.M).replace(
        "[width, experts, depth, alpha]", "[width]"
    )
    (demo / "study.yaml").write_text(text)
    assert load_study(demo / "study.yaml").train.steps == 2
    printed = process("expertp demo --out 'my demo'")
    ran = re.findall(r"^\$ (expertp .*)$", printed, re.M)
    suggested = re.findall(r"^next: (expertp .*)$", printed, re.M)
    suggested += re.findall(r"^to decide .*?: (expertp [^(\n]*)", printed, re.M)
    assert [line.split()[1] for line in ran] == ["plan", "prepare", "sweep", "coordcheck", "report"]
    assert {line.split()[-1 if "--until" in line else 1] for line in suggested} == {"init", "decided"}
    process("expertp init")  # as suggested
    after = [again for line in ran for again in re.findall(r"^next: (expertp .*)$", process(line), re.M)]
    assert {line.split()[1] for line in after} >= {"capacity", "train", "report"}
    after += re.findall(r"^next: (expertp .*)$", process("expertp demo --out 'my demo'"), re.M)
    assert after[-1] == "expertp plan --base configs/base.yaml --target configs/target.yaml"
    for line in dict.fromkeys([*after, *suggested]):
        if "--open" in line or line == "expertp init":  # a browser; has run above
            continue
        small = " train.steps=3 train.warmup_steps=1 train.eval_every=0" if "expertp train" in line else ""
        process(line.replace("--until decided", "--until decided --minutes 0.05") + small)
