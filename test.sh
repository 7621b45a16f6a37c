#!/usr/bin/env bash
# Set-up in .venv, then lint, types and tests. Arguments go to pytest: ./test.sh -m slow
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$root/scripts/setup.sh" dev
cd "$root"
ruff format --check .
ruff check .
mypy
pytest -q "$@"
