"""The fuzzer finds defects: five of the past, put back one at a time, break the contract within 2,000 cases."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz.cases import make_case
from fuzz.contract import remove, run_case, violations
from fuzz.templates import Templates

from expertp import config
from expertp.cli import main
from expertp.data import formats
from expertp.errors import InputError
from expertp.training import store as run_store
from expertp.util import leases, plain_yaml

MOST_CASES = 2_000


def yaml_is_not_bounded(patch: pytest.MonkeyPatch) -> None:
    """Lists as keys raise TypeError, tagged values KeyError, and aliases multiply values."""
    patch.setattr(plain_yaml._Loader, "_count", lambda *_: 1)


def messages_are_printed_raw(patch: pytest.MonkeyPatch) -> None:
    """A message repeats values of any length, with their control characters."""
    patch.setattr(main, "one_line", lambda text: text)
    patch.setattr(config, "shown", repr)


def every_step_folder_is_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """A copy such as `step-00000004.bak` beside a checkpoint raises ValueError."""

    def folders(directory: run_store.RunDirectory) -> list[Path]:
        found = (directory.path / "checkpoints").glob("step-*")
        return sorted(found, key=lambda folder: int(folder.name.removeprefix("step-")))

    patch.setattr(run_store.RunDirectory, "checkpoint_folders", folders)


def a_line_of_json_may_be_anything(patch: pytest.MonkeyPatch) -> None:
    """An integer of 5,000 digits raises ValueError, and deep nesting RecursionError."""

    def text_of_line(line: str, where: str, text_key: str) -> str:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where} is not JSON ({error.msg})") from None
        return formats._text_field(row if isinstance(row, dict) else {}, where, text_key)

    patch.setattr(formats, "_text_of_line", text_of_line)


def every_file_is_a_lease(patch: pytest.MonkeyPatch) -> None:
    """A stray file among the leases of a run breaks `status`."""
    patch.setattr(leases, "LEASE_FILE", re.compile(".*"))


DEFECTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    yaml_is_not_bounded,
    messages_are_printed_raw,
    every_step_folder_is_a_checkpoint,
    a_line_of_json_may_be_anything,
    every_file_is_a_lease,
)


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_defect_that_is_put_back_is_found(
    defect: Callable[[pytest.MonkeyPatch], None],
    templates: Templates,
    tmp_path: Path,
    fuzz_seed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defect(monkeypatch)
    for number in range(MOST_CASES):
        root = tmp_path / str(number)
        root.mkdir()
        case = make_case(f"{fuzz_seed}:proof:{number}", templates, root)
        if broken := violations(case, run_case(case, root)):
            monkeypatch.undo()
            again = tmp_path / "again"
            again.mkdir()
            case = make_case(f"{fuzz_seed}:proof:{number}", templates, again)
            assert not violations(case, run_case(case, again)), "the case breaks the contract without the defect too"
            print(f"found by case {number + 1} ({case.kind}): {broken[0].splitlines()[-1][:200]}")
            return
        remove(root)
    pytest.fail(f"not found within {MOST_CASES} cases")
