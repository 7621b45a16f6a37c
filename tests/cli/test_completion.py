"""The scripts complete what the parsers declare; bash runs its own here, zsh and fish where they are installed."""

import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

from expertp.cli.completion import OVERRIDDEN, SHELLS, bash, describe_verbs, fish, zsh
from expertp.cli.main import VERBS, build_parser, main

SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}


@pytest.fixture(scope="module")
def verbs():
    return describe_verbs()


def complete(script, line):
    """Return what bash offers at the end of a command line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    program = f"""
    {script}
    COMP_LINE='{line}' COMP_POINT={len(line)} COMP_CWORD={len(words) - 1} COMP_WORDS=({quoted})
    _expertp
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [offer for offer in done.stdout.split("\n") if offer]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("expertp pl", ["plan", "planner"]),
        ("expertp ", list(VERBS)),
        ("expertp plan --al", ["--allow-kappa-change"]),
        ("expertp plan hps.l", ["hps.lr="]),
        ("expertp plan model.n_", ["model.n_embd=", "model.n_layer=", "model.n_exp=", "model.n_act="]),
        ("expertp plan --base base.yaml hps.lr=", []),
        ("expertp plan train.", []),
        ("expertp sweep study.yaml train.st", ["train.steps="]),
        ("expertp bench --dtype b", ["bfloat16"]),
        ("expertp bench e", ["experts"]),
        ("expertp plan --export ", ["torchtitan", "automodel"]),
        ("expertp report studies/", []),  # files, by the shell itself
        ("expertp train run.yaml --out ", []),
        ("expertp train run.yaml --out tr", []),  # a prefix of train.steps=
        ("expertp plan --base ", []),
        ("expertp plan --hf base.json ", []),
        ("expertp nothing --x", []),
    ],
)
def test_bash_offers(verbs, line, expected):
    assert complete(bash(verbs), line) == expected


@pytest.mark.heavy
def test_bash_offers_files_beside_words_and_keys_where_both_may_stand(verbs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"my study.yaml", "train-long.yaml"}
    for name in names:
        (tmp_path / name).touch()
    of = {verb.name: verb for verb in verbs}
    for verb in ("train", "capacity", "sweep"):
        assert set(complete(bash(verbs), f"expertp {verb} ")) == {*of[verb].keys, *names}
    assert set(complete(bash(verbs), "expertp theory ")) == {*of["theory"].words, *names}
    assert set(complete(bash(verbs), "expertp sweep train")) == {
        *(key for key in of["sweep"].keys if key.startswith("train.")), "train-long.yaml",
    }  # fmt: skip
    assert set(complete(bash(verbs), "expertp plan ")) == set(of["plan"].keys)  # whose files follow flags


def needs(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")


def run_with_tab(program, script, line, folder):
    """Return the arguments that an interactive shell gives to expertp when a line, Tab and Enter are typed."""
    setup = folder / "setup.sh"
    setup.write_text(f"{script}\nexpertp() {{ printf '[[%s%s]]\\n' '[' \"$*]\"; }}\nprintf 'REA%s\\n' DY\n")
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "HOME": str(folder), "INPUTRC": "/dev/null"}
    shell = subprocess.Popen(program, stdin=end, stdout=end, stderr=end, start_new_session=True, env=environment)
    os.close(end)
    seen, until = b"", time.monotonic() + 60

    def wait_for(mark):
        nonlocal seen
        while mark not in seen:
            assert time.monotonic() < until, seen.decode()
            if select.select([terminal], [], [], 0.2)[0]:
                seen += os.read(terminal, 65536)

    try:
        os.write(terminal, f". {setup}\n".encode())
        wait_for(b"READY")
        os.write(terminal, f"{line}\t\n".encode())
        wait_for(b"]]]")
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)
    return re.search(r"\[\[\[(.*)\]\]\]", seen.decode())[1]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("expertp plann", "planner"),
        ("expertp plan --al", "plan --allow-kappa-change"),
        ("expertp plan hps.l", "plan hps.lr="),
        ("expertp sweep study.yaml train.st", "sweep study.yaml train.steps="),
        ("expertp bench --dtype b", "bench --dtype bfloat16"),
        ("expertp bench ex", "bench experts"),
        ("expertp plan --export to", "plan --export torchtitan"),
        ("expertp report set", "report setup.sh"),  # files
        ("expertp train run.yaml --out ", "train run.yaml --out setup.sh"),
        ("expertp plan --base ", "plan --base setup.sh"),
        ("expertp plan --hf base.json ", "plan --hf base.json setup.sh"),
        ("expertp nothing --x", "nothing --x"),
    ],
)
def test_zsh_completes(verbs, line, expected, tmp_path, monkeypatch):
    needs("zsh")
    monkeypatch.chdir(tmp_path)
    assert run_with_tab(["zsh", "-f", "-i"], zsh(verbs), line, tmp_path) == expected


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("expertp plann", "planner"),
        ("expertp plan hps.l", "plan hps.lr="),
        ("expertp report set", "report setup.sh"),
        ("expertp report ", "report setup.sh"),
        ("expertp train run.yaml --out ", "train run.yaml --out setup.sh"),
        ("expertp plan --base ", "plan --base setup.sh"),
        ("expertp plan --hf base.json ", "plan --hf base.json setup.sh"),
    ],
)
def test_bash_completes(verbs, line, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_with_tab(["bash", "--norc", "-i"], bash(verbs), line, tmp_path) == expected


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("expertp pl", {"plan", "planner"}),
        ("expertp ", set(VERBS)),
        ("expertp plan --al", {"--allow-kappa-change"}),
        ("expertp plan model.n_", {"model.n_embd=", "model.n_layer=", "model.n_exp=", "model.n_act="}),
        ("expertp sweep study.yaml train.st", {"train.steps="}),
        ("expertp bench --dtype b", {"bfloat16"}),
        ("expertp bench e", {"experts"}),
        ("expertp plan --export ", {"torchtitan", "automodel"}),
        ("expertp report set", {"setup.fish"}),  # files
        ("expertp train run.yaml --out ", {"setup.fish"}),
        ("expertp plan --base ", {"setup.fish"}),
        ("expertp bench generate --d", {"--dtype"}),  # `generate` is a verb, too; only the first word is the verb
        ("expertp bench generate --t", set()),
        ("expertp nothing --x", set()),
    ],
)
def test_fish_offers(verbs, line, expected, tmp_path, monkeypatch):
    needs("fish")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "setup.fish").write_text(fish(verbs))
    done = subprocess.run(
        ["fish", "--no-config", "-c", "source setup.fish; complete -C $argv[1]", line],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert {offer.split("\t")[0] for offer in done.stdout.splitlines()} == expected


@pytest.mark.heavy
@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_and_flag_is_in_the_script(verbs, shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script == SCRIPTS[shell](verbs)
    for verb in verbs:
        assert verb.name in script
        for flag in verb.flags:
            assert flag.name.removeprefix("--") in script


@pytest.mark.heavy
@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_can_read_its_script(verbs, shell):
    needs(shell)
    options = ["--no-execute"] if shell == "fish" else ["-n"]
    done = subprocess.run([shell, *options], input=SCRIPTS[shell](verbs), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", OVERRIDDEN)
def test_keys_are_offered_where_overrides_are_taken(verb):
    assert any(action.dest == "overrides" for action in build_parser(verb)._actions)


def test_an_unknown_shell_is_one_line(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
