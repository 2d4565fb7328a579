"""The servers of the crash harness: started on one port, killed, started there again.

`canned` answers in a few lines, `sim` is the simulated engine (`bench/sim_server.py`), `sglang` is
the real one on the CPU (`make sglang-env`). The answers of the first two follow from the rid, so
that one stored under another attempt, or twice, is seen.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

ROOT = Path(__file__).parents[2]
Kind: TypeAlias = Literal["canned", "sim", "sglang"]
_SIM_SCALE = 2.0  # an answer of some dozen tokens takes about as long as a canned one


@dataclass(slots=True)
class Engine:
    """One server and how it is started; `port` stays the same over its lives."""

    kind: Kind
    model: Path
    log: Path
    mean_ms: float
    venv: Path | None = None
    port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Choose a port."""
        if not self.port:
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", 0))
                self.port = sock.getsockname()[1]

    @property
    def running(self) -> bool:
        """Whether its process is there; it may still be starting."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it unless it runs; its own processes are in a group of their own."""
        if self.running:
            return
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL it with all of its processes."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes, such as SIGSTOP."""
        if self._process is not None:
            os.killpg(self._process.pid, number)

    def _command(self) -> list[str]:
        if self.kind == "sglang":
            if self.venv is None:
                raise SystemExit("real SGLang: say where its environment is (--sglang-venv)")
            script = ROOT / "scripts" / "sglang_cpu.sh"
            return [
                str(script), str(self.venv), str(self.model), str(self.port),
                "--dtype", "float32", "--max-running-requests", "8",
            ]  # fmt: skip
        vocab, first, stop = self._ids()
        if self.kind == "sim":
            return [
                sys.executable, "-m", "bench.sim_server", str(self.port), "--by-rid",
                "--scale", str(_SIM_SCALE), "--output", "30", "--context", "2048",
                "--vocab", str(vocab), "--first-id", str(first), "--stop-id", str(stop),
            ]  # fmt: skip
        return [
            sys.executable, "-m", "bench.crash.server", "--port", str(self.port),
            "--vocab", str(vocab), "--first-plain-id", str(first), "--eos", str(stop),
            "--mean-ms", str(self.mean_ms),
        ]  # fmt: skip

    def _ids(self) -> tuple[int, int, int]:
        """Return the target's number of ids, its first plain one, and the one that ends."""
        tokenizer = json.loads((self.model / "tokenizer.json").read_text())
        vocab = json.loads((self.model / "config.json").read_text())["vocab_size"]
        special = [token["id"] for token in tokenizer["added_tokens"]]
        eos = json.loads((self.model / "generation_config.json").read_text())["eos_token_id"]
        return vocab, max(special) + 1, _first(eos)


def _first(value: int | Sequence[int]) -> int:
    return value if isinstance(value, int) else value[0]
