"""A stand-in for SGLang's launcher: takes its flags, spawns a child, serves, or fails as told.

`python -m tests.servers.launchable --port N [--config FILE] [flags]`. LAUNCHABLE (JSON) in the
environment says what is wrong: {"exit": code} ends at once, {"mute": true} listens nowhere,
{"settings": {...}} are those of `misbehaving`. It writes its own pid and its child's to
LAUNCHABLE_PIDS, a line a start. Context and model of /server_info and /model_info come from its
flags, as SGLang's do.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.servers.misbehaving import INFO, MODEL, main


def value_of(flag: str, default: str = "") -> str:
    """Return what follows a flag on the command line."""
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else default


def settings() -> dict[str, Any]:
    """Return what the server says about itself: its own flags."""
    context = int(value_of("--context-length", "10240"))
    info = INFO | {"context_length": context, "max_req_input_len": context - 6}
    algorithm = value_of("--speculative-algorithm") or None
    info |= {
        "speculative_algorithm": algorithm,
        "speculative_draft_model_path": value_of("--speculative-draft-model-path") or None,
        "disable_radix_cache": "--disable-radix-cache" in sys.argv,
        "enable_metrics": "--enable-metrics" in sys.argv,
        "enable_return_hidden_states": "--enable-return-hidden-states" in sys.argv,
        "reasoning_parser": value_of("--reasoning-parser") or None,
    }
    path = value_of("--model-path", "/models/toy")
    model = MODEL | {"model_path": path, "served_model_name": path, "tokenizer_path": path}
    return {"info": info, "model": model, "loads": "moving"}


if __name__ == "__main__":
    told = json.loads(os.environ.get("LAUNCHABLE", "{}"))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if record := os.environ.get("LAUNCHABLE_PIDS"):
        with Path(record).open("a", encoding="ascii") as file:
            file.write(f"{os.getpid()} {child.pid}\n")
    sys.stdout.write(f"argv {json.dumps(sys.argv[1:])}\n")
    sys.stdout.flush()
    if "exit" in told:
        sys.stdout.write("out of memory on GPU 0\n")
        sys.stdout.flush()
        os._exit(int(told["exit"]))
    while told.get("mute"):
        time.sleep(60)
    asyncio.run(main(int(value_of("--port", "0")), settings() | told.get("settings", {})))
