"""Start `eagled top`: what has to be right before Textual is imported.

Decisions: SIGHUP ends the process even under nohup (a screen without a terminal would burn CPU for
ever); a terminal that cannot draw, or none, gets the plain text once; logs and warnings are kept
off stderr, because Textual draws there.
"""

from __future__ import annotations

import asyncio
import gc
import locale
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from eagled.clock import SystemClock
from eagled.errors import UnreachableError
from eagled.paths import StatePaths
from eagled.printable import printable
from eagled.tui.source import SocketSource, StatusSource, last_snapshot, reason_of

LOCAL_HZ = 2.0
REMOTE_HZ = 1.0  # over ssh every byte crosses the line
MAX_HZ = 4.0
_PLAIN_TIMEOUT_S = 10.0
_GARBAGE_EVERY = 20_000  # objects kept since; a tick makes thousands, most gone when it is over


def run_top(
    socket: Path | None,
    *,
    refresh_hz: float | None = None,
    readonly: bool = False,
    ascii_only: bool | None = None,
    state_dir: Path | None = None,
    once: bool = False,
    light: bool | None = None,
) -> int:
    """Run the screen until the operator leaves; return the process's exit code.

    Args:
        socket: the daemon's control socket, which need not exist yet; None plays the recording
            that comes with eagled.
        refresh_hz: status requests a second, at most 4; None: 2, or 1 over ssh.
        readonly: keys that change the run are off.
        ascii_only: draw with ASCII characters; None: when the locale is not UTF-8.
        state_dir: where the daemon's last status lies; None: beside the socket.
        once: print one frame as plain text, for logs, and leave.
        light: colours for a light background; None: as the terminal says in COLORFGBG.

    Returns:
        0, or 69 when a plain status was asked of a daemon that does not answer.
    """
    ascii_chars = not _utf8() if ascii_only is None else ascii_only
    if not once and not can_draw():
        sys.stderr.write(
            "eagled top: this terminal cannot draw a screen; here is one frame. "
            "`eagled status --watch` repeats, `eagled status --json` is for programs\n"
        )
    source = _source(socket)
    if once or not can_draw():
        return asyncio.run(print_plain(source, ascii_only=ascii_chars))
    for stuck in ("COLUMNS", "LINES"):  # exported ones would hide the terminal's real size
        os.environ.pop(stuck, None)
    os.environ.setdefault("TEXTUAL_FPS", "15")
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    colour = not os.environ.get("NO_COLOR")  # read before Textual takes it out of the environment
    if colour:
        os.environ.pop("NO_COLOR", None)  # set but empty means colour; Textual takes it for a wish
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    gc.disable()  # while modules load, nothing that is made becomes garbage
    gc.set_threshold(_GARBAGE_EVERY)
    from eagled.tui.browse import BrowseApp
    from eagled.tui.widgets import Look

    app = BrowseApp(
        source,
        refresh_hz=_rate(refresh_hz),
        readonly=readonly,
        look=Look(colour=colour, ascii_only=ascii_chars, light=_is_light(light)),
        first=_first(socket, state_dir),
        watch_terminal=True,
    )
    app.state.live_word = "DEMO" if socket is None else "LIVE"
    gc.freeze()  # modules and classes stay; looking through them took a sixth of a tick
    gc.enable()
    with _quiet_stderr():
        code = app.run()
    return code if code is not None else app.return_code or 0


def _source(socket: Path | None) -> StatusSource:
    if socket is not None:
        return SocketSource(socket)
    from eagled.tui.replay import FIRST_ANSWERS_S, Replay, load_recording

    return Replay(load_recording(), SystemClock(), start_s=FIRST_ANSWERS_S)


def _first(socket: Path | None, state_dir: Path | None) -> Mapping[str, object] | None:
    if socket is None:
        return None
    return last_snapshot(StatePaths(state_dir or socket.parent).snapshot)


def can_draw() -> bool:
    """Whether standard input and error are a terminal that understands more than text."""
    real = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))
    return real and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", ""}


def _utf8() -> bool:
    return locale.getpreferredencoding(do_setlocale=False).lower().replace("-", "") == "utf8"


def _is_light(wanted: bool | None) -> bool:  # noqa: FBT001 - three-valued
    """Whether the background is light; `15;0` means light letters on black."""
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return background in {"7", "15"} if wanted is None else wanted


def _rate(wanted: float | None) -> float:
    if wanted is None:
        return REMOTE_HZ if os.environ.get("SSH_CONNECTION") else LOCAL_HZ
    return min(max(wanted, 0.1), MAX_HZ)


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Keep log lines and warnings off the screen while it is drawn."""
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [logging.NullHandler()]
    logging.captureWarnings(capture=True)
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        root.handlers[:] = before


async def print_plain(source: StatusSource, *, ascii_only: bool) -> int:
    """Print the status once as plain text; return 0, or 69 when the daemon does not answer."""
    from eagled.tui.plain import plain_text
    from eagled.tui.state import TopState

    state = TopState(SystemClock())
    try:
        async with asyncio.timeout(_PLAIN_TIMEOUT_S):
            state.take(await source.status())
    except Exception as error:  # noqa: BLE001 - every way of not answering is told the same way
        sys.stderr.write(f"eagled top: no status: {printable(reason_of(error))}\n")
        return UnreachableError.exit_code
    finally:
        await source.close()
    sys.stdout.write(plain_text(state.view(), ascii_only=ascii_only))
    return 0
