"""What is decided before Textual is imported."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest

from eagled.errors import EagledError, UnreachableError
from eagled.tui import launch
from eagled.tui.source import SocketSource, last_snapshot, reason_of
from tests.unit.tui.doubles import FakeSource


def test_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests a second at home, one over ssh, never more than four."""
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert [2.0, 4.0, 0.5] == [launch._rate(v) for v in (None, 50, 0.5)]

    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    assert 1.0 == launch._rate(None)


def test_what_cannot_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal, TERM=dumb and no TERM cannot draw."""
    monkeypatch.setenv("TERM", "xterm")
    assert not launch.can_draw()  # pytest's streams are no terminal

    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda: True, raising=False)
    told = {}
    for term in ("xterm", "dumb", ""):
        monkeypatch.setenv("TERM", term)
        told[term] = launch.can_draw()
    assert {"xterm": True, "dumb": False, "": False} == told


async def test_plain_status(capsys: pytest.CaptureFixture[str]) -> None:
    """The plain text has the numbers of the screen, and an absent daemon gives 69."""
    source = FakeSource()
    assert 0 == await launch.print_plain(source, ascii_only=True)
    out = capsys.readouterr().out
    assert out.isascii()
    assert "187/200" in out
    assert "deepswe-kimi-k2" in out

    source.error = UnreachableError("no\x1b[2J daemon")
    assert 69 == await launch.print_plain(source, ascii_only=True)
    told = capsys.readouterr()
    assert "" == told.out
    assert "\x1b" not in told.err
    assert source.closed


def test_nothing_reaches_stderr_while_drawing(capfd: pytest.CaptureFixture[str]) -> None:
    """Log lines and warnings do not paint over the screen; afterwards they are back."""
    logger = logging.getLogger("some.library")
    before = logging.getLogger().handlers[:]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with launch._quiet_stderr():
            logger.error("over the screen")
            warnings.warn("over the screen", stacklevel=1)

    assert "" == capfd.readouterr().err
    assert before == logging.getLogger().handlers


def test_last_snapshot(tmp_path: Path) -> None:
    """The daemon's last status is read when it is whole, and nothing else is."""
    file = tmp_path / "status.json"
    assert last_snapshot(file) is None
    for text, expected in (('{"run": "x"}', {"run": "x"}), ("[1]", None), ('{"ru', None)):
        file.write_text(text)

        assert expected == last_snapshot(file)


def test_reasons() -> None:
    """A reason says what a person can use: eagled's own words, a time-out, or the class."""
    told = [reason_of(e) for e in (UnreachableError("gone"), TimeoutError(), ValueError("x"))]

    assert ["gone", "no answer in time", "ValueError: x"] == told


async def test_socket_source_without_a_daemon(tmp_path: Path) -> None:
    """Every request to a socket that is not there says so, again and again."""
    source = SocketSource(tmp_path / "none.sock")
    for _ in range(2):
        with pytest.raises(UnreachableError):
            await source.status()
    with pytest.raises(EagledError):
        await source.post("/v1/undo", {})
    await source.close()


@pytest.mark.parametrize(
    ("told", "wanted", "light"),
    [("0;15", None, True), ("15;0", None, False), ("", None, False), ("0;default;7", None, True),
     ("15;0", True, True), ("0;15", False, False)],
)  # fmt: skip
def test_light_backgrounds(
    monkeypatch: pytest.MonkeyPatch, told: str, *, wanted: bool | None, light: bool
) -> None:
    """The terminal's word counts, unless the operator says otherwise."""
    monkeypatch.setenv("COLORFGBG", told)

    assert light == launch._is_light(wanted)
