#!/usr/bin/env bash
# Set-up in .venv, then lint, types and tests.
#   ./test.sh               everything that CI runs
#   ./test.sh quick         lint, types, and the tests that need under a minute in all
#   ./test.sh -m slow       arguments go to pytest; slow: the full versions of long checks
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$root/scripts/setup.sh" dev
cd "$root"
# Tests start many processes; compiled modules make each of them start sooner.
unset PYTHONDONTWRITEBYTECODE
if [ "${1:-}" = quick ]; then
  shift
  set -- -m "not slow and not heavy" "$@"
fi
ruff format --check .
ruff check .
mypy
pytest -q -n auto --dist loadgroup "$@"
