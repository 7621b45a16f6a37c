#!/usr/bin/env bash
# Set-up in .venv, then the verb it is given: ./run.sh plan --base configs/base.yaml --target configs/target.yaml
# With no argument: a transfer study at demo scale on the built-in corpus, its verdicts and its report (`expertp demo`).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$root/scripts/setup.sh" ""
if [ $# -eq 0 ]; then
  cd "$root"
  set -- demo
fi
exec expertp "$@"
