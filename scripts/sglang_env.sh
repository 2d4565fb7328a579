#!/usr/bin/env bash
# Real SGLang for tests on a machine without a GPU, in the environment $1 (about 7 GB). Safe to repeat.
set -euo pipefail
venv=${1:?usage: sglang_env.sh VENV_DIR}
wanted=$(sha256sum constraints-sglang.txt | cut -d' ' -f1)
if [ "$(cat "$venv/.ready" 2>/dev/null || true)" = "$wanted" ]; then
  exit 0
fi
[ -x "$venv/bin/pip" ] || "${PYTHON:-python3}" -m venv "$venv"
echo "Installing SGLang into $venv (7 GB, some minutes) …"
"$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r constraints-sglang.txt
"$venv/bin/python" -c 'import sglang; print("sglang", sglang.__version__)'
echo "$wanted" > "$venv/.ready"
