"""The mutations of the fuzzer can be repeated: a case depends on its seed alone."""

import random
import tracemalloc
from pathlib import Path

from fuzz.grammar import SPARSE_BYTES, VALUES, YAML_FRAGMENTS, as_yaml, mutate_file, mutated
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
