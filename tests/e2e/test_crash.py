"""The crash harness, short: what the daemon acknowledges it keeps, over a few SIGKILLs.

They take the daemon, the simulated server, or both at once.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.crash.__main__ import kill_test


@pytest.mark.slow
def test_a_few_kills_lose_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four kills under load, then everything is finished and compared by an outsider."""
    held = kill_test(
        tmp_path / "w", kills=4, conversations=150, seed=9, mean_ms=150, kind="sim",
        with_server=True,
    )  # fmt: skip
    said = capsys.readouterr().out

    assert held, said
    # A machine that is fast enough is done with the work before the last kill.
    kills = re.search(r"^kills=([1-4]) of_server=([1-3]) ", said, re.MULTILINE)
    assert kills is not None, said
