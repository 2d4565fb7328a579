"""The journal gets each record with fields; nothing that a text holds can make one of its own."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagled.daemon_log import LineFormatter, set_up_logging
from eagled.journal import JournalHandler, datagram, named_values, reads_stderr
from eagled.printable import hide

KEY = "sk-planted-for-the-journal"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket such as the journal listens on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "socket"))
        sock.settimeout(60)
        yield sock


class _Kept(logging.Handler):
    """Keeps the messages of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _fields(raw: bytes) -> dict[str, str]:
    """Read the protocol as its page describes it."""
    fields: dict[str, str] = {}
    while raw:
        line, _, rest = raw.partition(b"\n")
        key, mark, value = line.partition(b"=")
        if not mark:
            size = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + size], rest[8 + size + 1 :]
        fields[key.decode()] = value.decode()
        raw = rest
    return fields


def _logger(handler: logging.Handler) -> logging.Logger:
    logger = logging.getLogger("eagled.somewhere")
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    return logger


def test_values_of_a_message_become_fields(tmp_path: Path, journal: socket.socket) -> None:
    """Each key=%s is found by its own name; the text is whole."""
    handler = JournalHandler(_Kept(), tmp_path / "socket")
    _logger(handler).warning("%s late by_s=%.2f url=%s", "loop", 1.234, "http://a b")
    got = _fields(journal.recv(65_536))
    handler.close()

    assert "loop late by_s=1.23 url=http://a b" == got["MESSAGE"]
    assert ["4", "eagled.somewhere", "1.23", "http://a b"] == [
        got[name] for name in ("PRIORITY", "LOGGER", "EAGLED_BY_S", "EAGLED_URL")
    ]
    assert __file__ == got["CODE_FILE"]


def test_a_hostile_value_is_one_field_and_shows_no_secret(
    tmp_path: Path, journal: socket.socket
) -> None:
    """A line feed in a value begins no field; a known key is hidden in every one."""
    hide(KEY)
    handler = JournalHandler(_Kept(), tmp_path / "socket")
    handler.setFormatter(LineFormatter())
    _logger(handler).error("failed error=%s", f"{KEY}\nPRIORITY=0\x1b[2J")
    raw = journal.recv(65_536)
    handler.close()

    assert "3" == _fields(raw)["PRIORITY"]
    assert KEY.encode() not in raw
    assert b"\x1b" not in raw


def test_a_value_of_several_lines_keeps_them() -> None:
    """A traceback goes as one value with its length."""
    assert {"MESSAGE": "a\nB=1\n", "X": "y"} == _fields(datagram({"MESSAGE": "a\nB=1\n", "X": "y"}))


def test_what_the_journal_does_not_take_goes_to_stderr(tmp_path: Path) -> None:
    """No socket, and a record that is too large for a datagram: the line is not lost."""
    otherwise = _Kept()
    handler = JournalHandler(otherwise, tmp_path / "absent")
    _logger(handler).info("kept n=%d", 1)
    handler.close()

    assert ["kept n=1"] == otherwise.messages


@pytest.mark.parametrize(
    ("text", "args", "values"),
    [
        ("100%% of n=%d", (3,), {"n": "3"}),
        ("n=%d", ("x",), {}),  # the text's own handler complains
        ("a=%s b=%s", (1,), {"a": "1", "b": "None"}),
        ("what=%r", ("q",), {"what": "'q'"}),
        ("url=http://plain", (), {}),
        ("n=%(n)d", ({"n": 1},), {}),
    ],
)
def test_formats_of_all_kinds_are_read(
    text: str, args: tuple[object, ...], values: dict[str, str]
) -> None:
    """The values belong to their names whatever stands between; a wrong format gives none."""
    record = logging.LogRecord("x", logging.INFO, "f", 1, text, args, None)

    assert values == dict(named_values(record))


def test_the_journal_is_used_only_when_it_reads_stderr(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A child whose stderr is a file writes there, whatever its parent's environment says."""
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "log").open("w") as file, ours.makefile("w") as stderr:
        found = os.fstat(ours.fileno())
        environ = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        monkeypatch.setattr(sys, "stderr", stderr)
        journal = reads_stderr(environ), reads_stderr({}), reads_stderr({"JOURNAL_STREAM": "1:2"})
        monkeypatch.setattr(sys, "stderr", file)
        other = reads_stderr(environ)

    assert ((True, False, False), False) == (journal, other)


def test_a_traceback_shows_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that quotes a key is printed without it."""
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    hide(KEY)
    try:
        set_up_logging()
        try:
            dict[str, int]()[KEY]
        except KeyError:
            logging.getLogger("eagled.x").exception("failed what=%s", KEY)
        said = capsys.readouterr().err
    finally:
        root.handlers[:] = before
        root.setLevel(level)

    assert KEY not in said
    assert "Traceback" in said
    assert "KeyError: " in said
