# Sourced by run.sh and test.sh: makes .venv once and again whenever the requirements change.
# Argument: the extras to install ("" or "dev").
extras=${1:+[$1]}
stamp=.venv/.installed${1:+-$1}
wanted=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum)
if [ ! -x .venv/bin/python ]; then
  echo "set-up: making .venv (once; needs python3.11 or newer and about 1.5 GB)" >&2
  "${PYTHON:-python3}" -m venv .venv
fi
export VIRTUAL_ENV="$PWD/.venv" PATH="$PWD/.venv/bin:$PATH"
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  echo "set-up: installing expertp$extras" >&2
  pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$extras"
  if [ -n "$extras" ]; then
    # mup's own requirements name a bare torch and torchvision; the tests need neither.
    pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt mup
  fi
  printf '%s\n' "$wanted" >"$stamp"
fi
