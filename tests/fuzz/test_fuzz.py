"""Hostile inputs of every kind keep the contract of the command line.

300 cases with a fixed seed run in ./test.sh; `pytest -m slow tests/fuzz -n 2` runs 20,000 with a fresh seed, which it
prints. `--fuzz-seed SEED --fuzz-case NUMBER` repeats one case and keeps its directory.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz.cases import make_case
from fuzz.contract import remove, run_case, violations
from fuzz.templates import Templates

QUICK, FULL, CHUNKS = 300, 20_000, 20


def run_cases(
    numbers: range, seed: str, templates: Templates, folder: Path, log: Callable[[str], None] = print
) -> tuple[list[str], Counter[str]]:
    """Run cases and return how they broke the contract, and their numbers by kind and exit code.

    Violations are logged at once. The directory of a case is removed after it, so that the one that is left over when
    the process dies tells the case.
    """
    found, counts = [], Counter[str]()
    for number in numbers:
        root = folder / str(number)
        root.mkdir()
        case = make_case(f"{seed}:{number}", templates, root)
        outcome = run_case(case, root)
        counts[f"{case.kind} -> {outcome.code}"] += 1
        if broken := violations(case, outcome):
            shown = " ".join(each[:80] for each in case.argv)
            found.append(f"--fuzz-seed {seed} --fuzz-case {number}: expertp {shown!r}: {'; '.join(broken)}")
            log(found[-1])
        remove(root)
    return found, counts


@pytest.mark.heavy
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_few_hostile_inputs_keep_the_contract(chunk: int, templates: Templates, tmp_path: Path) -> None:
    each = QUICK // CHUNKS
    found, _ = run_cases(range(chunk * each, (chunk + 1) * each), "quick", templates, tmp_path)
    assert not found, "\n\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_many_hostile_inputs_keep_the_contract(
    chunk: int, templates: Templates, tmp_path: Path, fuzz_seed: str, fuzz_log: Callable[[str], None]
) -> None:
    each = FULL // CHUNKS
    found, counts = run_cases(range(chunk * each, (chunk + 1) * each), fuzz_seed, templates, tmp_path, fuzz_log)
    fuzz_log(f"chunk {chunk}: " + json.dumps({"violations": len(found), **dict(sorted(counts.items()))}))
    assert not found, f"{len(found)} of {each}\n" + "\n\n".join(found[:20])


def test_one_case_can_be_repeated(templates: Templates, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed, number = (request.config.getoption(name) for name in ("--fuzz-seed", "--fuzz-case"))
    root = tmp_path / "case"
    root.mkdir()
    case = make_case(f"{seed or 'quick'}:{number or 0}", templates, root)
    outcome = run_case(case, root)
    print(f"in {root}: expertp {case.argv}\nexit code {outcome.code}\n{outcome.out}\n{outcome.err}")
    assert not violations(case, outcome)
