"""What is shown of a training run, and what `eagled status` says of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from eagled.commands import look
from eagled.errors import UsageError
from eagled.training_view import MAX_POINTS, newest_training


def _run(drafts: Path, name: str, n: int) -> Path:
    folder = drafts / name
    folder.mkdir(parents=True)
    lines = [{"kind": "step", "step": i, "loss": 9.0 / i} for i in range(1, n + 1)]
    lines.append({"kind": "estimate", "step": n, "total": {"length": 1.5}})
    raw = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    (folder / "metrics.jsonl").write_bytes(raw + b'{"kind": "st')
    (folder / "status.json").write_bytes(orjson.dumps({"step": n, "total": 2 * n}))
    return folder


def test_the_newest_run_is_thinned(tmp_path: Path) -> None:
    """First and last step stay, a torn line does not count; a brief answer has no steps."""
    folder = _run(tmp_path, "v001", 1000)
    full = newest_training(tmp_path)
    brief = newest_training(tmp_path, brief=True)
    (folder / "draft").mkdir()
    (folder / "draft/config.json").touch()

    assert ("v001", MAX_POINTS, 1, 1000, False) == (
        full["name"], len(full["steps"]), full["steps"][0]["step"], full["steps"][-1]["step"],
        full["done"],
    )  # fmt: skip
    assert [{"step": 1000, "length": 1.5}] == full["estimates"]
    assert ("v001", [], [], {"step": 1000, "total": 2000}) == tuple(
        brief[key] for key in ("name", "steps", "estimates", "status")
    )
    assert newest_training(tmp_path)["done"] is True
    assert newest_training(tmp_path / "none")["name"] is None


_NOW = {
    "name": "v1\x1b[2J", "done": False,
    "status": {"step": 7, "total": 22, "loss": 2.5, "eta_s": 64.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, True), ({"done": True}, False), ({"name": None}, False), ({"status": {}}, False),
        ({"updated_ms": 1_000}, False),
    ],
)  # fmt: skip
def test_status_tells_of_a_run_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any], *, told: bool,
) -> None:  # fmt: skip
    """A run that is done, silent or none is not told; the name comes without control characters."""
    found = {**_NOW, "updated_ms": time.time() * 1000, **changes}
    monkeypatch.setattr(look, "call_get", lambda *_, **__: found)
    look._show_training(None)
    out = capsys.readouterr().out

    assert told == ("step 7 of 22, loss 2.500" in out)
    assert "\x1b" not in out


def test_a_daemon_that_cannot_tell_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older daemon's refusal changes nothing."""

    def refuses(*_: object, **__: object) -> None:
        raise UsageError("no such query")

    monkeypatch.setattr(look, "call_get", refuses)
    look._show_training(None)
