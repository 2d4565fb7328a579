"""`python -m eagled.engine --model DIR`: the embedded server as a process of its own."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from eagled.engine.main import DEFAULT_SLOTS, run_engine
from eagled.errors import EagledError

KEY_VARIABLE = "EAGLED_ENGINE_API_KEY"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m eagled.engine", description="Serve a model folder the way SGLang does."
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="transformers folder with safetensors")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=30000, help="port to listen on; 0 picks a free one")
    add("--api-key", help=f"bearer key that clients must send; or set {KEY_VARIABLE}")
    add("--slots", type=int, default=DEFAULT_SLOTS, help="requests that run at once")
    add("--max-total-tokens", type=int, default=0, help="key/value pool; 0: slots x context")
    add("--max-queued", type=int, help="waiting requests beyond which 503 is answered")
    add("--context-length", type=int, help="tokens a request may reach; default: the model's")
    add("--threads", type=int, default=1, help="torch threads; all torch processes <= cores")
    add("--dtype", default="auto", help="auto, bfloat16, float16 or float32")
    add("--device", default="auto", help="auto, cpu or cuda")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the server; return its exit code."""
    args = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    try:
        run_engine(
            args.model,
            args.host,
            args.port,
            api_key=args.api_key or os.environ.get(KEY_VARIABLE) or None,
            slots=args.slots,
            max_total_tokens=args.max_total_tokens,
            context_length=args.context_length,
            threads=args.threads,
            dtype=args.dtype,
            max_queued=args.max_queued,
            device=args.device,
        )
    except EagledError as exc:
        print(f"error: {exc}", file=sys.stderr)  # noqa: T201 - a command's message
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
