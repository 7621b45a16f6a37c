"""100 cases of damage to the checkpoints of a run, and more to its records: recovered or refused, and nothing is lost.

A recovered run has the same bits, and a refusal is one line. A tiny run is stopped after two checkpoints, damaged, and
continued. Every byte of it must still be somewhere in its directory, except for records that are written again with the
same content.
"""

import json
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from runs import tiny_run, write_tokens

from expertp.cli.main import main
from expertp.errors import InputError
from expertp.training.checkpoints import newest_weights
from expertp.training.records import CLOCK_FIELDS
from expertp.training.store import read_run
from expertp.training.train import train

OLD, NEW = "checkpoints/step-00000004", "checkpoints/step-00000008"
FILES = ("weights.safetensors", "optimizer.safetensors", "state.json")
QUICK_CASES = 25
# How often a kind of damage at a random place appears.
SEEDS = 6
Damage = Callable[[Path, random.Random], None]


@dataclass(frozen=True)
class Case:
    """One kind of damage at one place; `unreadable` is a file whose reading fails with an error of the system."""

    name: str
    damage: Damage = lambda *_: None
    unreadable: str = ""
    error: int = 0


def flip(file: str) -> Damage:
    def damage(run: Path, chance: random.Random) -> None:
        content = bytearray((run / file).read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        (run / file).write_bytes(content)

    return damage


def cut(file: str) -> Damage:
    def damage(run: Path, chance: random.Random) -> None:
        content = (run / file).read_bytes()
        (run / file).write_bytes(content[: chance.randrange(len(content))])

    return damage


def append(file: str) -> Damage:
    def damage(run: Path, chance: random.Random) -> None:
        with (run / file).open("ab") as opened:
            opened.write(chance.randbytes(chance.randrange(1, 100)))

    return damage


def overwrite(file: str, content: bytes) -> Damage:
    return lambda run, _: (run / file).write_bytes(content) and None


def edit(folder: str, field: str, value: object) -> Damage:
    def damage(run: Path, _: random.Random) -> None:
        path = run / folder / "state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))

    return damage


def remove(path: str) -> Damage:
    return lambda run, _: shutil.rmtree(run / path) if (run / path).is_dir() else (run / path).unlink()


def swap(one: str, other: str) -> Damage:
    def damage(run: Path, _: random.Random) -> None:
        (run / one).rename(run / "aside")
        (run / other).rename(run / one)
        (run / "aside").rename(run / other)

    return damage


def rename(one: str, other: str) -> Damage:
    return lambda run, _: (run / one).rename(run / other) and None


def copy(one: str, other: str) -> Damage:
    return lambda run, _: shutil.copytree(run / one, run / other) and None


def make_folder(path: str) -> Damage:
    def damage(run: Path, _: random.Random) -> None:
        (run / path).unlink()
        (run / path).mkdir()

    return damage


def both(one: Damage, other: Damage) -> Damage:
    def damage(run: Path, chance: random.Random) -> None:
        one(run, chance)
        other(run, chance)

    return damage


def all_cases() -> list[Case]:
    """Return all kinds of damage; those at random places appear several times."""
    cases = []
    for number in range(SEEDS):
        for how in (flip, cut, append):
            cases += [Case(f"{how.__name__} {NEW}/{file}, {number}", how(f"{NEW}/{file}")) for file in FILES]
        cases += [Case(f"{how.__name__} metrics.jsonl, {number}", how("metrics.jsonl")) for how in (flip, cut)]
    for folder in (OLD, NEW):
        cases += [Case(f"remove {folder}/{file}", remove(f"{folder}/{file}")) for file in FILES]
        cases += [Case(f"a folder as {folder}/{file}", make_folder(f"{folder}/{file}")) for file in FILES]
        cases += [Case(f"empty {folder}/{file}", overwrite(f"{folder}/{file}", b"")) for file in FILES]
        cases.append(Case(f"remove {folder}", remove(folder)))
        cases.append(Case(f"rename {folder}", rename(folder, f"{folder}.bak")))
        cases.append(Case(f"swap the files of {folder}", swap(f"{folder}/{FILES[0]}", f"{folder}/{FILES[1]}")))
        cases += [Case(f"EIO {folder}/{file}", unreadable=f"{folder}/{file}", error=5) for file in FILES]
        cases.append(Case(f"EACCES {folder}/{FILES[0]}", unreadable=f"{folder}/{FILES[0]}", error=13))
    for field, value in (
        ("step", 9), ("identity", "0" * 16), ("format", 2), ("metrics_bytes", 10), ("seconds", 1e6), ("sha256", {}),
        ("metrics_sha256", "0" * 64), ("hash", "0" * 16), ("step", -8), ("step", 10**30), ("seconds", "soon"),
    ):  # fmt: skip
        cases.append(Case(f"{field}={value} in {NEW}", edit(NEW, field, value)))
    for content in (b"null", b"[" * 10_000, b'{"step": ' + b"9" * 5000 + b"}", b"\xff\xfe"):
        cases.append(Case(f"{content[:12]!r} in {NEW}", overwrite(f"{NEW}/state.json", content)))
    cases += [
        Case("swap the checkpoints", swap(OLD, NEW)),
        Case("swap the weights of the checkpoints", swap(f"{OLD}/{FILES[0]}", f"{NEW}/{FILES[0]}")),
        Case("swap the states of the checkpoints", swap(f"{OLD}/{FILES[2]}", f"{NEW}/{FILES[2]}")),
        Case("a copy beside it", copy(NEW, f"{NEW}.bak")),
        Case("a copy as a later step", copy(NEW, "checkpoints/step-00000010")),
        Case("a copy as the last step", copy(OLD, "checkpoints/step-00000012")),
        Case("a name with fewer digits", copy(NEW, "checkpoints/step-8")),
        Case("a name without a number", copy(NEW, "checkpoints/step-x")),
        Case("both flipped", both(flip(f"{OLD}/{FILES[0]}"), flip(f"{NEW}/{FILES[0]}"))),
        Case("both without a state", both(remove(f"{OLD}/{FILES[2]}"), remove(f"{NEW}/{FILES[2]}"))),
        Case("no checkpoints", remove("checkpoints")),
        Case("no records", remove("metrics.jsonl")),
        Case("a folder as records", make_folder("metrics.jsonl")),
        Case("no run.json", remove("run.json")),
        Case("half a summary", cut("summary.json")),
        Case("half a run.json", cut("run.json")),
        Case("EIO metrics.jsonl", unreadable="metrics.jsonl", error=5),
        Case("EACCES of the folder", unreadable="checkpoints", error=13),
        Case("records and a checkpoint", both(flip("metrics.jsonl"), flip(f"{NEW}/{FILES[0]}"))),
    ]
    return cases


def chosen(count: int) -> list[Case]:
    """Return kinds of damage by chance, always the same."""
    return random.Random(0).sample(all_cases(), count)


def records(out: Path) -> list[object]:
    return [replace(record, **dict.fromkeys(CLOCK_FIELDS, 0.0)) for record in read_run(out).metrics()]


def stop_after(steps: int) -> Callable[[], bool]:
    count = iter(range(1, 100))
    return lambda: next(count) == steps


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the whole run, and the same run stopped at step 8 of 12 with checkpoints at 4 and 8."""
    folder = tmp_path_factory.mktemp("damage")
    data = write_tokens(folder / "data")
    run = tiny_run(data, train={"checkpoint_steps": 4})
    train(run, folder / "whole")
    train(run, folder / "stopped", should_stop=stop_after(8))
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuse_to_read(patched: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """Let the system refuse to open or list a path; the tests may run as root, which no permission stops."""

    def guarded(original: Callable[..., object]) -> Callable[..., object]:
        def call(self: Path, *arguments: object, **options: object) -> object:
            if self == path and (arguments or ("rb",))[0] in ("rb", "r"):
                raise OSError(number, "refused", str(self))
            return original(self, *arguments, **options)

        return call

    for name in ("open", "iterdir"):
        patched.setattr(Path, name, guarded(getattr(Path, name)))


def resumed(case: Case, made: Path, out: Path) -> tuple[str, str]:
    """Continue a run; return the text of the error if it is refused, and all warnings."""
    run = tiny_run(made / "data", train={"checkpoint_steps": 4})
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if case.unreadable:
            refuse_to_read(patched, out / case.unreadable, case.error)
        try:
            train(run, out)
        except (InputError, OSError) as error:
            return str(error), ""
    return "", " ".join(str(each.message) for each in warned)


def damages_checkpoint(case: Case, intact: dict[Path, bytes], damaged: dict[Path, bytes]) -> bool:
    """Return whether a file of a checkpoint has other bytes, is missing, or cannot be read."""
    own = {path: content for path, content in intact.items() if path.is_relative_to("checkpoints")}
    return case.unreadable.startswith("checkpoints") or any(damaged.get(path) != own[path] for path in own)


def check(case: Case, made: Path, out: Path) -> tuple[str, bool]:
    """Damage a copy of the stopped run, continue it, and return what happened and whether a checkpoint was damaged."""
    shutil.copytree(made / "stopped", out)
    case.damage(out, random.Random(case.name))
    before = contents(out)
    is_checkpoint = damages_checkpoint(case, contents(made / "stopped"), before)
    error, warned = resumed(case, made, out)
    after = contents(out)
    if error:
        assert "\n" not in error
        assert str(out) in error, "the error says where"
        assert after == before, "a refusal changes no file"
        return "refused", is_checkpoint
    assert records(out) == records(made / "whole")
    found, expected = (newest_weights(read_run(each)) for each in (out, made / "whole"))
    assert found is not None
    assert expected is not None
    assert all((found[name] == expected[name]).all() for name in expected)
    # An intact older checkpoint is dropped and the summary is replaced, as in any run; all damaged bytes are there.
    intact = set(contents(made / "stopped").values())
    lost = [path for path, content in before.items() if not any(each.startswith(content) for each in after.values())]
    assert not [path for path in lost if before[path] not in intact], case.name
    return "recovered" if "damaged" in warned else "unaffected", is_checkpoint


def outcomes_of(cases: list[Case], made: Path, folder: Path) -> tuple[Counter[str], int]:
    """Return how often each outcome occurred, and the number of cases that damaged a checkpoint."""
    found = {case.name: check(case, made, folder / str(number)) for number, case in enumerate(cases)}
    for name, (outcome, _) in found.items():
        assert case_is_refused(name) <= (outcome == "refused"), name
    return Counter(outcome for outcome, _ in found.values()), sum(is_checkpoint for _, is_checkpoint in found.values())


def case_is_refused(name: str) -> bool:
    """Return whether a kind of damage must be refused: no intact checkpoint is left, or a file cannot be read."""
    return name.startswith(
        ("both", "no ", "half", f"EIO {NEW}", f"EACCES {NEW}", "EACCES of the folder", "EIO metrics")
    )


@pytest.mark.heavy
def test_damage_is_recovered_or_refused_and_never_deleted(made, tmp_path):
    outcomes, _ = outcomes_of(chosen(QUICK_CASES), made, tmp_path)
    assert outcomes.keys() >= {"recovered", "refused"}


@pytest.mark.slow
def test_100_cases_of_damage_to_checkpoints_and_others_are_recovered_or_refused_and_never_deleted(made, tmp_path):
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases)
    outcomes, of_checkpoints = outcomes_of(cases, made, tmp_path)
    print(f"{len(cases)} cases of damage, {of_checkpoints} of them to a checkpoint: {dict(outcomes)}")
    assert of_checkpoints >= 100
    assert min(outcomes[each] for each in ("recovered", "refused", "unaffected")) >= 5


def test_the_command_refuses_damage_with_one_line(made, tmp_path, capsys):
    shutil.copytree(made / "stopped", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints")
    assert main(["generate", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
