"""What systemd hears, on a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagled.clock import FakeClock
from eagled.notify import STATUS_EVERY_S, Notifier


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """A bound socket as systemd has it."""
    name = str(tmp_path / "n") if request.param == "file" else f"\0eagled-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name)
        sock.settimeout(0)
        yield sock


def _address(manager: socket.socket) -> str:
    name = manager.getsockname()
    return "@" + name[1:].decode() if isinstance(name, bytes) else str(name)


def _heard(manager: socket.socket) -> list[str]:
    out = []
    while True:
        try:
            out.append(manager.recv(4096).decode())
        except BlockingIOError:
            return out


def test_each_message_is_one_datagram(manager: socket.socket) -> None:
    """READY, WATCHDOG, EXTEND and STOPPING arrive, on file and abstract sockets."""
    notifier = Notifier(_address(manager), 10.0)
    notifier.extend(1.5)
    notifier.ready("12 queued")
    notifier.watchdog()
    notifier.stopping("2 left")

    assert [
        "EXTEND_TIMEOUT_USEC=1500000",
        "READY=1\nSTATUS=12 queued",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=2 left",
    ] == _heard(manager)


def test_a_status_cannot_add_a_field(manager: socket.socket) -> None:
    """A line feed in a text does not become a message of its own."""
    Notifier(_address(manager), None).ready("x\nMAINPID=1\x1b[31m")

    assert ["READY=1\nSTATUS=x␊MAINPID=1␛[31m"] == _heard(manager)


def test_the_same_status_and_a_flood_are_held_back(manager: socket.socket) -> None:
    """A status goes out when it changed, and not more often than every few seconds."""
    clock = FakeClock()
    notifier = Notifier(_address(manager), None, clock)
    for text in ("a", "b", "c"):
        notifier.status(text)
    clock.advance(STATUS_EVERY_S)
    notifier.status("c")
    clock.advance(STATUS_EVERY_S)
    notifier.status("c")

    assert ["STATUS=a", "STATUS=c"] == _heard(manager)


def test_the_environment_is_taken_and_the_watchdog_is_only_ours() -> None:
    """Children do not inherit the socket; a watchdog of another process is not answered."""
    ours = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}
    other = {**ours, "WATCHDOG_PID": "1"}

    assert 2.0 == Notifier.from_environ(ours).watchdog_s
    assert None is Notifier.from_environ(other).watchdog_s
    assert {} == ours == other


def test_nobody_listening_is_no_error(tmp_path: Path) -> None:
    """Without systemd, or with one that is gone, every call does nothing."""
    for address in (None, str(tmp_path / "gone")):
        notifier = Notifier(address, 1.0)
        notifier.ready("x")
        notifier.watchdog()
        notifier.status("x")
