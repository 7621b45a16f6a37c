"""`expertp status` imports nothing that is slow to import."""

import subprocess
import sys
from pathlib import Path

import pytest

FIXTURE = Path(__file__).parents[1] / "fixtures/study-format-1"
SLOW = ("torch", "numpy", "scipy", "matplotlib", "pandas", "datasets", "safetensors", "tokenizers")
PROGRAM = f"""
import sys
from expertp.cli.main import main
code = main(["status", sys.argv[1], "--json"])
print([name for name in {SLOW} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.heavy
def test_status_imports_neither_torch_nor_numpy() -> None:
    command = [sys.executable, "-c", PROGRAM, str(FIXTURE)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert '"finished": 33' in finished.stdout
    assert finished.stderr == "[]\n"
