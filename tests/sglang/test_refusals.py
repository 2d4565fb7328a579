"""What a server with the plugin refuses at start, and what the plugin imports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.contract.server import _free_port
from tests.sglang.kit import capture_environment, kill, launch, wait_for

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
_START_S = 600.0  # a failure limit; starting takes minutes on a busy machine
_GOOD = ("--disable-radix-cache", "--enable-return-hidden-states")

_IMPORTS = """
import sys
before = set(sys.modules)
import eagled.sglang_plugin as plugin
plugin.register()
assert "torch" not in sys.modules, "an inactive plugin imports torch"
import os
os.environ.update(EAGLED_CAPTURE="1", EAGLED_CAPTURE_LAYERS="2,4,5")
os.environ["EAGLED_CAPTURE_SPOOL"] = sys.argv[1]
import eagled.sglang_plugin.hooks, eagled.sglang_plugin.writer
plugin.register()
import torch, safetensors, sglang
print([n for n in sys.modules if n.startswith("eagled") and "sglang_plugin" not in n])
"""

_SOURCES = """
import ast, pathlib, sys
import eagled.sglang_plugin as plugin
allowed = set(sys.stdlib_module_names) | {"torch", "safetensors", "sglang"}
for path in pathlib.Path(plugin.__file__).parent.glob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else (
            [node.module] if isinstance(node, ast.ImportFrom) else [])
        for name in names:
            ours = name.startswith("eagled.sglang_plugin")
            if not ours and name.partition(".")[0] not in allowed:
                print(path.name, name)
"""


def _python(venv: Path, site: Path, code: str, *arguments: str) -> str:
    done = subprocess.run(
        [str(venv / "bin" / "python"), "-c", code, *arguments],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_plugin_needs_only_stdlib_torch_safetensors_and_sglang(
    venv: Path, site: Path, tmp_path: Path
) -> None:
    """In SGLang's own environment it imports, and brings nothing else of eagled with it."""
    assert _python(venv, site, _SOURCES) == ""
    assert _python(venv, site, _IMPORTS, str(tmp_path / "spool")) == "['eagled']\n"


def _refused(
    venv: Path, site: Path, model: Path, folder: Path, *flags: str, layers: str = "2,4,5"
) -> str:
    """Return the log of a server that must not come up."""
    log = folder / "server.log"
    env = capture_environment(site, folder / "spool", layers)
    process = launch(venv, model, _free_port(), log, *flags, **env)
    try:
        wait_for(lambda: process.poll() is not None, _START_S)
    finally:
        kill(process)
    return log.read_text(errors="replace")


@pytest.mark.parametrize(
    ("flags", "layers", "words"),
    [
        (("--enable-return-hidden-states",), "2,4,5", "--disable-radix-cache"),
        (("--disable-radix-cache",), "2,4,5", "--enable-return-hidden-states"),
        ((*_GOOD, "--pp-size", "2"), "2,4,5", "--pp-size 2: capture needs all layers in one stage"),
        (_GOOD, "2,4,8", "boundary 8 is outside 0..7"),
        (_GOOD, "2,2,5", "distinct, ascending"),
        (_GOOD, "2,x", "give boundary ids"),
    ],
)
def test_server_that_cannot_capture_does_not_start(
    venv: Path,
    site: Path,
    qwen3: Path,
    tmp_path: Path,
    flags: tuple[str, ...],
    layers: str,
    words: str,
) -> None:
    """The reason stands in the log."""
    assert words in _refused(venv, site, qwen3, tmp_path, *flags, layers=layers)


def test_other_version_is_refused(venv: Path, site: Path, tmp_path: Path) -> None:
    """A version that nobody tested ends the launch, with the supported ones in the message."""
    code = (
        "import os, sys; os.environ.update(EAGLED_CAPTURE='1', EAGLED_CAPTURE_LAYERS='2',"
        "EAGLED_CAPTURE_SPOOL=sys.argv[1]);"
        "import eagled.sglang_plugin.versions as v; v.version = lambda name: '0.5.20';"
        "import eagled.sglang_plugin as p\n"
        "try: p.register()\nexcept SystemExit as exc: print(exc)"
    )

    said = _python(venv, site, code, str(tmp_path / "spool"))

    assert "SGLang 0.5.20 is not supported, only 0.5.17 and 0.5.23" in said
