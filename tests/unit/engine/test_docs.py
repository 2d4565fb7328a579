"""The page about the engine keeps up with its command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eagled.engine.__main__ import KEY_VARIABLE, _parser, main

_PAGE = Path(__file__).parents[3] / "docs" / "engine.md"


def test_every_flag_is_on_the_page() -> None:
    """docs/engine.md names each flag and the key's variable."""
    page = _PAGE.read_text(encoding="utf-8")
    flags = [flag for action in _parser()._actions for flag in action.option_strings]

    missing = [f for f in flags if f.startswith("--") and f != "--help" and f not in page]

    assert [] == missing
    assert KEY_VARIABLE in page


def test_errors_become_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration error is printed without a traceback and ends with 78."""
    code = main(["--model", str(tmp_path), "--port", "0", "--slots", "0"])

    assert 78 == code
    assert "slots must be at least 1, got 0" in capsys.readouterr().err


def test_the_command_line_does_not_load_torch() -> None:
    """What the CLI imports from the engine stays free of torch and transformers."""
    code = (
        "import sys, eagled.engine.__main__, eagled.engine.main;"
        "print([m for m in ('torch', 'transformers', 'aiohttp') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == done.stdout.strip()
