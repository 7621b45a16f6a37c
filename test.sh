#!/usr/bin/env bash
# Set-up in .venv, then lint, types and tests. Arguments go to pytest: ./test.sh -m slow
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh dev
ruff format --check .
ruff check .
mypy
pytest -q "$@"
