"""The mutations of the fuzzer can be repeated: a case depends on its seed alone."""

import random
import tracemalloc
from pathlib import Path

from fuzz.grammar import SPARSE_BYTES, VALUES, YAML_FRAGMENTS, as_yaml, mutate_directory, mutate_file, mutated
from fuzz.templates import SETTINGS


def test_a_mutation_does_not_depend_on_those_before_it() -> None:
    def texts() -> list[str]:
        seeds = (f"{name}:{number}" for name in SETTINGS for number in range(400))
        return [as_yaml(mutated(SETTINGS[seed.split(":")[0]], random.Random(seed), YAML_FRAGMENTS)) for seed in seeds]

    values = repr(VALUES)
    assert texts() == texts()
    assert repr(VALUES) == values


def test_every_value_of_a_list_can_be_mutated_again_and_again() -> None:
    """A value of a list that became a value of a section has a name that can be changed."""
    for number in range(2000):
        rng, tree = random.Random(number), {"sizes": [1]}
        for _ in range(3):
            tree = mutated(tree, rng, ("x",))


def test_a_large_file_is_mutated_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(SPARSE_BYTES // 8)
    tracemalloc.start()
    mutate_file(path, random.Random(0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    assert path.stat().st_blocks > 0, "nothing was mutated"


def test_what_an_earlier_mutation_damaged_can_be_mutated_again(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    for number in range(20):
        path.write_text('{"step": ' + "[" * 100_000)
        mutate_file(path, random.Random(number))


def test_a_folder_with_few_files_is_mutated_too(tmp_path: Path) -> None:
    touched = 0
    for number in range(100):
        root = tmp_path / str(number)
        (root / "workers").mkdir(parents=True)
        for run in range(20):
            (root / f"runs/{run}").mkdir(parents=True)
            (root / f"runs/{run}/metrics.jsonl").write_text("{}")
        before = (root / "workers").lstat()
        mutate_directory(root, random.Random(number))
        touched += not (root / "workers").is_dir() or (root / "workers").lstat().st_mtime_ns != before.st_mtime_ns
    assert touched >= 20
