"""`python -m eagled.tui [--socket PATH]`: the screen without the rest of the command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from eagled.tui.launch import run_top


def main() -> int:
    """Read the arguments and run the screen."""
    parser = argparse.ArgumentParser(prog="python -m eagled.tui", description="Watch a daemon.")
    parser.add_argument("--socket", type=Path, help="the control socket; none plays a recording")
    parser.add_argument("--hz", type=float, help="status requests a second, at most 4")
    parser.add_argument("--readonly", action="store_true", help="keys that change the run are off")
    parser.add_argument(
        "--ascii", action=argparse.BooleanOptionalAction, help="draw with ASCII characters only"
    )
    options = parser.parse_args()
    return run_top(
        options.socket, refresh_hz=options.hz, readonly=options.readonly, ascii_only=options.ascii
    )


if __name__ == "__main__":
    sys.exit(main())
