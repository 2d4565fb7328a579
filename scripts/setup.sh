#!/usr/bin/env bash
# Make the environment in $1 from constraints.txt. Safe to run again; says what to do when it can't.
set -euo pipefail
venv=${1:?usage: setup.sh VENV_DIR}
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "eagled needs Python 3.11 or newer; $("$python" --version 2>&1) was found. Set PYTHON=…" >&2
  exit 1
}
if [ ! -x "$venv/bin/pip" ]; then
  "$python" -m venv "$venv" || {
    echo "Could not make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2
    exit 1
  }
fi
echo "Installing eagled's dependencies into $venv (1.6 GB, once) …"
# torch first and alone: nothing after it may choose another build of it.
# shellcheck disable=SC2086  # TORCH_ARGS is a list of words
"$venv/bin/pip" install -q --disable-pip-version-check ${TORCH_ARGS:-} -c constraints.txt torch
"$venv/bin/pip" install -q --disable-pip-version-check -c constraints.txt hatchling editables
"$venv/bin/pip" install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
"$venv/bin/pip" check
