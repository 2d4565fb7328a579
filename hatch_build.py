"""Hatch's hook: the commit goes into wheel and sdist, so that `eagled --version` can name it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NAME = "_commit.txt"


class CommitHook(BuildHookInterface[Any]):
    """Adds eagled/_commit.txt; an sdist that is built again keeps the one it came with."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put the file in, but not into an editable installation, which reads the checkout."""
        made = _commit(Path(self.root))
        if version == "editable" or not made:
            return
        path = Path(self.directory) / _NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made + "\n", encoding="ascii")
        build_data["force_include"][str(path)] = f"eagled/{_NAME}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatch's signature
        """Leave nothing but the artefact behind."""
        (Path(self.directory) / _NAME).unlink(missing_ok=True)


def _commit(root: Path) -> str:
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return ""
    done = subprocess.run(
        [git, "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""
