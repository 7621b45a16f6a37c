#!/usr/bin/env bash
# Set-up in .venv, then the verb it is given: ./run.sh plan --base configs/base.yaml --target configs/target.yaml
# With no argument: prepare the built-in corpus, train a small MoE on it, and sample from it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$root/scripts/setup.sh" ""
if [ $# -gt 0 ]; then
  exec expertp "$@"
fi
cd "$root"
expertp prepare builtin --out prepared/builtin --tokenizer bpe --vocab-size 4096
expertp train configs/run.yaml --out out/first-run
expertp generate out/first-run --prompt "def main(" --tokens 120 --seed 1
