"""Commands that pages and terminals suggest: the command line accepts them, and paths are quoted."""

import shlex
from pathlib import Path

import pytest

from expertp.analysis.remedies import Remedy
from expertp.cli.main import build_parser
from expertp.report import commands

DIRECTORY = Path("my studies/first")


@pytest.mark.parametrize(
    ("command", "out"),
    [
        (commands.sweep(DIRECTORY), DIRECTORY),
        (commands.coordcheck(DIRECTORY), DIRECTORY / "coordcheck"),
        (commands.theory(DIRECTORY), DIRECTORY / "theory"),
    ],
)
def test_the_command_line_accepts_the_commands(command, out):
    program, verb, *arguments = shlex.split(command)
    assert program == "expertp"
    assert Path(build_parser(verb).parse_args(arguments).out) == out


def test_the_report_is_that_of_the_directory():
    program, verb, *arguments = shlex.split(commands.report(DIRECTORY))
    assert (program, verb) == ("expertp", "report")
    assert build_parser(verb).parse_args(arguments).directory == str(DIRECTORY)


@pytest.mark.parametrize(
    ("remedy", "words"),
    [
        (Remedy("runs", runs=7), ["7 missing runs"]),
        (Remedy("runs", runs=1), ["the missing run"]),
        (Remedy("seeds", seeds=(3, 4)), ["--refine", "seeds 3, 4"]),
        (Remedy("wider", (-11.0, -10.5)), ["--refine", "log2_lr", "-11, -10.5"]),
        (Remedy("finer", (-6.5,)), ["--refine", "log2_lr", "-6.5"]),
    ],
)
def test_a_remedy_is_a_sweep_that_adds_what_it_says(remedy, words):
    sentence = commands.next_step(remedy, "log2_lr", DIRECTORY)
    assert f"`{commands.sweep(DIRECTORY)}" in sentence
    assert all(word in sentence for word in words)
    assert ("--refine" in sentence) == (remedy.kind != "runs")


def test_every_remedy_is_worded_differently():
    kinds = ("wider", "finer", "seeds", "runs")
    said = {commands.next_step(Remedy(kind, (-6.5,), (3,), 2), "log2_lr", DIRECTORY) for kind in kinds}
    assert len(said) == len(kinds)
