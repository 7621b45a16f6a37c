"""The command line as a whole: verbs, help, what is imported, and the flags that cannot grow by accident."""

import argparse
import importlib
import importlib.util
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import pytest

from expertp.cli.main import ONE_PROCESS, USAGE, VERBS, build_parser, main
from expertp.errors import InputError

ROOT = Path(__file__).parents[2]
MOST_FLAGS = 9
# Modules of expertp.cli that serve the verbs; every other module there is a verb.
SHARED_MODULES = {
    "__init__",
    "main",
    "arguments",
    "text",
    "progress",
    "signals",
    "verdicts",
    "plan_hf",
    "browser",
    "next",
}


def has_module(verb: str) -> bool:
    return importlib.util.find_spec(f"expertp.cli.{verb}") is not None


def options(verb: str) -> list[argparse.Action]:
    """Return the arguments of a verb, --help aside."""
    return [action for action in build_parser(verb)._actions if action.dest != "help"]


def flags(verb: str) -> list[str]:
    """Return the options of a verb, then its positional arguments in capitals."""
    named = sorted(max(action.option_strings, key=len) for action in options(verb) if action.option_strings)
    return named + [action.dest.upper() for action in options(verb) if not action.option_strings]


there = pytest.mark.parametrize("verb", [verb for verb in VERBS if has_module(verb)])


def test_the_flags_of_every_verb_are_pinned(matches_golden: Callable[[str, str], None]) -> None:
    """A verb that is announced but has no module is in the golden file as such, so that its arrival shows."""
    lines = [f"{verb}: {' '.join(flags(verb)) if has_module(verb) else '(no module)'}" for verb in VERBS]
    matches_golden("flags.txt", "\n".join(lines) + "\n")


def test_every_module_of_a_verb_is_announced() -> None:
    modules = {path.stem for path in (ROOT / "src/expertp/cli").glob("*.py")}
    assert modules - SHARED_MODULES <= set(VERBS)


@there
def test_a_verb_explains_itself_with_two_examples(verb: str) -> None:
    module = importlib.import_module(f"expertp.cli.{verb}")
    assert module.__doc__
    examples = [line for line in module.EXAMPLES.splitlines() if line.strip()]
    assert len(examples) == 2
    assert all(line.startswith(f"  expertp {verb} ") or line == f"  expertp {verb}" for line in examples)


@there
def test_the_examples_of_a_verb_parse(verb: str) -> None:
    for line in importlib.import_module(f"expertp.cli.{verb}").EXAMPLES.splitlines():
        arguments = shlex.split(line, comments=True)[2:]
        assert build_parser(verb).parse_intermixed_args(arguments).run


@there
def test_a_verb_has_few_flags_and_each_has_help(verb: str) -> None:
    named = [action for action in options(verb) if action.option_strings]
    assert len(named) <= MOST_FLAGS
    assert all(action.help for action in options(verb))


@there
def test_help_exits_with_success_and_shows_the_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([verb, "--help"])
    assert leaving.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: expertp {verb}")
    assert importlib.import_module(f"expertp.cli.{verb}").EXAMPLES.strip() in out


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_bare_expertp_prints_verbs_and_three_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for verb, summary in VERBS.items():
        assert re.search(rf"^  {verb} +{re.escape(summary)}$", out, re.MULTILINE)
    examples = out.partition("examples:\n")[2].strip().splitlines()
    assert len(examples) == 3
    assert {line.split()[1] for line in examples} <= set(VERBS)


def test_ctrl_c_while_python_shuts_down_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["expertp"])
    try:
        assert main() == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
    assert main([]) == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_that_an_extension_turns_into_its_own_error_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """matplotlib's renderer does so: it asks Python for a clip box and calls whatever goes wrong an invalid one."""

    def draw(argv: list[str]) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("Invalid bounding box") from None
        raise AssertionError

    monkeypatch.setattr("expertp.cli.main.dispatch", draw)
    assert main(["report"]) == 130
    assert capsys.readouterr().err == "expertp: interrupted; run the same command to resume\n"


@pytest.mark.parametrize("example", USAGE.partition("examples:\n")[2].strip().splitlines())
def test_the_examples_of_bare_expertp_parse(example: str) -> None:
    _, verb, *arguments = shlex.split(example)
    assert build_parser(verb).parse_intermixed_args(arguments).run


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("plam", "unknown verb 'plam'; did you mean 'plan'?"),
        ("trian", "unknown verb 'trian'; did you mean 'train'?"),
        ("xyzzy", "unknown verb 'xyzzy'; choose one of demo, plan, planner, capacity, show"),
        ("--json", "unknown verb '--json'; choose one of demo"),
        ("main", "unknown verb 'main'; "),
    ],
)
def test_an_unknown_verb_gets_one_line_with_a_hint(verb: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"expertp: {message}")
    assert captured.err.count("\n") == 1


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"expertp {version('expertp')}\n"


OUT_OF_MEMORY = (
    "expertp: out of memory; use a smaller model, a smaller train.micro_batch or fewer --workers, and run again\n"
)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("two\nlines"), 2, "expertp: two lines\n"),
        (
            PermissionError(13, "Permission denied", "secret"),
            2,
            "expertp: secret: Permission denied; choose another path or change its permissions\n",
        ),
        (
            IsADirectoryError(21, "Is a directory", ".results.csv.tmp", None, "results.csv"),
            2,
            "expertp: results.csv: Is a directory; check the path\n",
        ),
        (OSError("disk on fire"), 2, "expertp: disk on fire; check the path\n"),
        (KeyboardInterrupt(), 130, "expertp: interrupted; run the same command to resume\n"),
        (MemoryError(), 1, OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."), 1, OUT_OF_MEMORY),
    ],
)
def test_what_goes_wrong_becomes_a_code_and_one_line(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("expertp.cli.main.dispatch", fail)
    assert main([]) == code
    assert capsys.readouterr().err == line


def run_python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.heavy
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["plan", "--base", "configs/base.yaml", "--target", "configs/target.yaml"],
        ["plan", "--base", "configs/base.yaml", "--target", "configs/target.yaml", "--json"],
    ],
)
def test_planning_and_help_do_not_import_torch(arguments: list[str]) -> None:
    program = (
        "import sys; from expertp.cli.main import main; code = main(sys.argv[1:]); "
        "sys.exit('torch was imported' if 'torch' in sys.modules else code)"
    )
    finished = run_python(program, *arguments)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout


def test_a_reader_that_stops_early_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = "import sys; from expertp.cli.main import main; sys.exit(main([]))"
    with os.fdopen(writing, "w") as closed_pipe:
        finished = subprocess.run(
            [sys.executable, "-c", program], stdout=closed_pipe, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.heavy
@pytest.mark.parametrize("how", [("-m", "expertp"), ("--no-python", "expertp")], ids=["module", "command"])
def test_several_ranks_are_refused_by_all_of_them_and_one_says_so(how: tuple[str, ...], tmp_path: Path) -> None:
    """torchrun's own code is 1 whatever the ranks return; its report has the codes of the ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *how]
    command += ["sweep", "study.yaml", "--out", str(tmp_path / "out")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    lines = [line for line in finished.stderr.splitlines() if line.startswith("expertp: ")]
    assert lines == [
        "expertp: a launcher has started 2 processes, but `expertp sweep` is one process; start it without torchrun or "
        "srun -n (and unset WORLD_SIZE)"
    ]
    codes = set(re.findall(r"exitcode *: (-?\d+)", finished.stderr))
    assert "2" in codes
    assert codes <= {"2", "-15"}  # torchrun ends a rank that has not yet started when rank 0 has ended
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("launcher", [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")])
@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_refuses_with_exit_code_2(
    launcher: tuple[str, str], rank: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(launcher[0], str(rank))
    monkeypatch.setenv(launcher[1], "2")
    monkeypatch.setattr("expertp.cli.main.rank_0_ends", lambda: True)
    for verb in ONE_PROCESS:
        assert main([verb, "nowhere"]) == 2
        assert capsys.readouterr().err.count("a launcher has started 2 processes") == (rank == 0)
    assert main(["status", "nowhere"]) == 2
    assert "no study here" in capsys.readouterr().err
    monkeypatch.setenv(launcher[1], "1")
    assert main(["train", "nowhere", "--out", "x"]) == 2
    assert "nowhere" in capsys.readouterr().err


ALONE_OF_TWO = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' is no number of processes"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0' is no number of processes"),
        ({"RANK": "2"}, "WORLD_SIZE=2, but RANK='2' is not a number below it"),
        ({"RANK": "x"}, "WORLD_SIZE=2, but RANK='x' is not a number below it"),
        ({"RANK": None}, "WORLD_SIZE=2, but RANK is not set"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR must be set where RANK is"),
        ({"MASTER_ADDR": None, "MASTER_PORT": None}, "MASTER_ADDR and MASTER_PORT must be set where RANK is"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http' is no port"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT='65536' is no port"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT='0' is no port"),
    ],
)
def test_a_launcher_that_makes_no_sense_is_refused_at_once(
    changed: dict[str, str | None],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "."]) == 0
    for name, value in (ALONE_OF_TWO | changed).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    files = set(tmp_path.iterdir())
    capsys.readouterr()
    verbs = [["train", "run.yaml", "--out", "out"]]
    if "MASTER" not in message:
        verbs.append(["sweep", "study.yaml", "--out", "out"])
    for arguments in verbs:
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert set(tmp_path.iterdir()) == files


@pytest.mark.heavy
def test_a_port_that_another_program_has_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environment = {**os.environ, **ALONE_OF_TWO, "MASTER_PORT": str(taken.getsockname()[1])}
        command = [sys.executable, "-m", "expertp", "train", "run.yaml", "--out", "out"]
        finished = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
    assert finished.returncode == 2
    (line,) = (each for each in finished.stderr.splitlines() if each.startswith("expertp: "))
    assert "the port at which the processes meet is taken; set MASTER_PORT to a free one" in line
    assert "Traceback" not in finished.stderr


@pytest.mark.heavy
def test_a_process_that_waits_for_the_others_says_so(tmp_path: Path) -> None:
    """Rank 1 speaks as well: rank 0 may be the one that was not started."""
    program = (
        "import sys; import expertp.training.ranks as ranks; from expertp.cli.main import main; "
        "ranks.LATE_SECONDS = 0.2; sys.exit(main(['train', 'run.yaml', '--out', 'out']))"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, **ALONE_OF_TWO, "RANK": "1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.kill()
    assert f"rank 1 of 2 has waited 0 s for the others at 127.0.0.1:{port}; do all run, and reach this address?" in line


@pytest.mark.parametrize(("rank", "rank_0_ends"), [(0, True), (1, True), (1, False)])
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [(OSError(5, "Input/output error", "tokens.bin"), 2, "tokens.bin: Input"), (MemoryError(), 1, "out of memory")],
)
def test_of_several_ranks_one_reports_an_error_of_the_system(
    error: Exception,
    code: int,
    message: str,
    rank: int,
    rank_0_ends: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What only one rank may know is said by it where rank 0 has not ended, and may never hear of it."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("expertp.cli.main.rank_0_ends", lambda: rank_0_ends)

    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr("expertp.cli.main.run_verb", fail)
    assert main(["train", "run.yaml", "--out", "out"]) == code
    assert capsys.readouterr().err.count(message) == (rank == 0 or not rank_0_ends)
    assert main(["trian", "run.yaml"]) == 2
    assert capsys.readouterr().err.count("unknown verb") == (rank == 0)


def test_a_rank_ends_with_its_exit_code_whatever_happens_while_python_shuts_down() -> None:
    """A thread of torch's process groups may then abort the process."""
    program = (
        "import atexit, os, sys; atexit.register(os.abort); from expertp.cli.main import main; "
        "sys.argv = ['expertp', 'train', 'run.yaml', '--out', 'out']; sys.exit(main())"
    )
    environment = {name: value for name, value in {**os.environ, **ALONE_OF_TWO}.items() if name != "MASTER_ADDR"}
    finished = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 2
    assert "MASTER_ADDR must be set" in finished.stderr
