#!/usr/bin/env bash
# Serve a small dense model with real SGLang on the CPU. usage: sglang_cpu.sh VENV MODEL PORT [flags]
set -euo pipefail
venv=$1 model=$2 port=$3
shift 3
here=$(cd "$(dirname "$0")/.." && pwd)
export SGLANG_USE_CPU_ENGINE=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1
export TORCHDYNAMO_DISABLE=1  # speculation would compile small functions, minutes for nothing
export PYTHONPATH="$here/tests/sglang_cpu${PYTHONPATH:+:$PYTHONPATH}"
exec "$venv/bin/python" -m sglang.launch_server --model-path "$model" --device cpu \
  --attention-backend torch_native --host 127.0.0.1 --port "$port" --context-length 2048 \
  --max-total-tokens 65536 --max-running-requests 4 --disable-cuda-graph \
  --mem-fraction-static 0.3 --skip-server-warmup --sleep-on-idle "$@"
