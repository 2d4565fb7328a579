"""Real SGLang as a process: on a GPU from a folder of wheels, or on the CPU for a dry run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_STOP_S = 20.0
_POLL_S = 0.5
_FREED_S = 2.0  # the driver frees a process's memory a moment after its exit
_GPU_FLAGS = (
    *("--attention-backend", "triton", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--mem-fraction-static", "0.8"),
    *("--max-running-requests", "256", "--cuda-graph-max-bs", "256"),
)
_CPU_FLAGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph"),
    *("--max-total-tokens", "65536", "--max-running-requests", "32"),
    *("--mem-fraction-static", "0.3", "--skip-server-warmup"),
)


@dataclass(frozen=True)
class Machine:
    """Where SGLang runs.

    Attributes:
        python: its interpreter.
        site: folder of packages in front of all others, or None.
        work: folder for models, spools and logs.
        dry: a dry run on the CPU.
        start_s: longest start of a server.
    """

    python: str
    site: Path | None
    work: Path
    dry: bool
    start_s: float = 280.0

    def environment(self, **more: str) -> dict[str, str]:
        """Return the variables of SGLang's process."""
        paths = [str(plugin_site(self.work)), *([str(self.site)] if self.site else [])]
        if self.dry:
            paths.append(str(ROOT / "tests" / "sglang_cpu"))
            more |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
        skip = {"SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1"}
        return os.environ | skip | more | {"PYTHONPATH": os.pathsep.join(paths)}


def plugin_site(work: Path) -> Path:
    """Make the plugin importable and discoverable without pip; return the folder."""
    site = work / "plugin_site"
    facts = site / "eagled-0.dist-info"
    facts.mkdir(parents=True, exist_ok=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: eagled\nVersion: 0\n")
    (facts / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\neagled = eagled.sglang_plugin:register\n"
    )
    link = site / "eagled"
    if not link.exists():
        link.symlink_to(ROOT / "eagled")
    return site


@dataclass
class Server:
    """A running server."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]
    started_s: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)

    def get(self, path: str) -> dict[str, Any]:
        """GET a JSON object."""
        with urllib.request.urlopen(self.url + path, timeout=30) as reply:  # noqa: S310 - our own http address
            return dict(json.loads(reply.read()))

    def memory(self) -> dict[str, Any]:
        """Return host memory of all its processes, and of the GPU."""
        return {"host_rss_gib": _group_rss_gib(self.process.pid), "gpu": _gpu_memory()}


def capture_variables(spool: Path, layers: tuple[int, ...], *, fsync: str) -> dict[str, str]:
    """Return the variables that switch the plugin on."""
    return {
        "EAGLED_CAPTURE": "1",
        "EAGLED_CAPTURE_SPOOL": str(spool),
        "EAGLED_CAPTURE_LAYERS": ",".join(map(str, layers)),
        "EAGLED_CAPTURE_FSYNC": fsync,
        "EAGLED_CAPTURE_WRITERS": str(max(2, min(8, (os.cpu_count() or 2) // 2))),
    }


@contextmanager
def serving(
    machine: Machine, model: Path, tag: str, *flags: str, env: dict[str, str] | None = None
) -> Iterator[Server]:
    """Serve `model`, yield when healthy, end all of its processes.

    Raises:
        RuntimeError: with the end of the log, if it does not come up.
    """
    port = 30000 + os.getpid() % 1000
    log = machine.work / f"{tag}.log"
    fixed = _CPU_FLAGS if machine.dry else _GPU_FLAGS
    where = ["--model-path", str(model), "--port", str(port), "--host", "127.0.0.1"]
    command = [machine.python, "-m", "sglang.launch_server", *where, "--skip-tokenizer-init"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *fixed, "--disable-radix-cache", *flags],
            stdout=out,
            stderr=out,
            env=machine.environment(**(env or {})),
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", log, process)
    try:
        _wait_healthy(server, machine.start_s)
        yield server
    finally:
        _stop(process)


def _wait_healthy(server: Server, seconds: float) -> None:
    began = time.monotonic()
    while time.monotonic() < began + seconds and server.process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(server.url + "/health", timeout=25).close()  # noqa: S310 - our own http address
            server.started_s = round(time.monotonic() - began, 1)
            server.info = server.get("/server_info")
            return
        time.sleep(_POLL_S)
    raise RuntimeError(f"no server after {seconds} s; end of its log:\n{tail(server.log)}")


def tail(log: Path, nbytes: int = 4000) -> str:
    """Return the end of a log."""
    return log.read_bytes()[-nbytes:].decode(errors="replace") if log.exists() else ""


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    time.sleep(_FREED_S)


def _group_rss_gib(group: int) -> dict[str, float]:
    """Return resident memory of each process of a group, by its title and pid."""
    found = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if folder.name.isdigit() and os.getpgid(int(folder.name)) == group:
                status = dict(
                    line.split(":", 1) for line in (folder / "status").read_text().splitlines()
                )
                name = f"{status['Name'].strip()}-{folder.name}"
                found[name] = round(int(status["VmRSS"].split()[0]) / 2**20, 2)
    return found


def _gpu_memory() -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"],  # noqa: S607 - the driver's, on the path
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
