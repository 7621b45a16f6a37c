"""examples/theory_in_ten_lines.py: the loss of larger networks is nearer to that of the limit."""

import ast
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "theory_in_ten_lines.py"


@pytest.mark.heavy
def test_the_example_has_ten_lines_and_larger_networks_are_nearer_to_the_limit(capsys):
    statements = [node for node in ast.walk(ast.parse(EXAMPLE.read_text())) if isinstance(node, ast.stmt)]
    assert len(statements) - 1 <= 10  # without the docstring
    runpy.run_path(str(EXAMPLE))
    _, *rows, error = capsys.readouterr().out.splitlines()
    losses = [[float(cell) for cell in row.split()] for row in rows]
    assert [row[0] for row in losses] == [0, 4, 8, 12]
    assert all(abs(large - limit) < abs(small - limit) for _, limit, small, large in losses)
    assert error.startswith("Monte-Carlo error")
