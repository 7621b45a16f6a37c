# Sourced by run.sh and test.sh, with $root: makes $root/.venv once, and installs again when the requirements change.
# Argument: the extras to install ("" or "dev").
extras=${1:+[$1]}
venv=$root/.venv
stamp=$venv/.installed${1:+-$1}
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 || ! "$venv/bin/python" -c "$new_enough"; then
  for python in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    command -v "$python" >/dev/null && "$python" -c "$new_enough" && break
  done
  "$python" -c "$new_enough" || { echo "set-up: needs python 3.11 or newer; set PYTHON=/path/to/it" >&2; exit 2; }
  echo "set-up: making .venv (once; about 1.5 GB)" >&2
  "$python" -m venv --clear "$venv"
fi
export VIRTUAL_ENV="$venv" PATH="$venv/bin:$PATH"
wanted=$(cat "$root/pyproject.toml" "$root/constraints.txt" "$root/scripts/setup.sh" | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  echo "set-up: installing expertp$extras" >&2
  install=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt")
  "${install[@]}" -e "$root$extras"
  if [ -n "$extras" ]; then
    # mup's own requirements name a bare torch and torchvision; the tests need neither.
    "${install[@]}" --no-deps mup
  fi
  printf '%s\n' "$wanted" >"$stamp"
fi
