"""Draw the screen as an SVG picture: of the packaged recording, or of a status document.

`python -m eagled.tui.screenshot --out FILE.svg [--size 160x50] [--view V] [--at SECONDS]` draws
the recording that `eagled top --demo` plays, with the clock at the recorded time (UTC), so that it
gives the same picture everywhere. `--docs FOLDER` draws those of the documentation (`make docs`; a
test holds that they are up to date). `--status FILE` draws a document of your own instead, with
`--events FILE` as its log: one JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.terminal_theme import TerminalTheme

from eagled.clock import FakeClock
from eagled.tui.desk import Wanted
from eagled.tui.replay import Replay, load_recording

if TYPE_CHECKING:
    from eagled.tui.browse import BrowseApp
    from eagled.tui.source import StatusSource

TITLE = "eagled top"
DEMO_AT_S = 250.0  # of the recording: every panel has something to show
DEMO_TITLE = "eagled top --demo"
_STILL_ROUNDS = 3
_ROUND_S = 0.05  # several times the time between two layouts
DOCS_PICTURES = {
    "top.svg": ("overview", (160, 50), DEMO_AT_S),
    "top-sample.svg": ("inspector", (100, 32), DEMO_AT_S),
}  # file: view, size in cells, second of the recording
_PALETTE = (
    (24, 27, 33), (232, 104, 104), (126, 198, 128), (226, 184, 96),
    (98, 150, 204), (186, 140, 210), (94, 190, 200), (205, 209, 216),
)  # fmt: skip


class _Still:
    """A daemon that always says the same."""

    def __init__(self, document: Mapping[str, object], events: Sequence[object]) -> None:
        self._document, self._events = document, events

    async def status(self) -> Mapping[str, object]:
        return self._document

    async def events(self, after: int) -> Sequence[Mapping[str, object]]:
        del after
        return [event for event in self._events if isinstance(event, Mapping)]

    async def get(self, path: str, query: Mapping[str, str | int]) -> object:
        del path, query
        return {}

    async def post(self, path: str, body: Mapping[str, object], *, key: str = "") -> object:
        del path, body, key
        return {}

    async def close(self) -> None:
        return


async def picture(
    document: Mapping[str, object],
    width: int,
    height: int,
    events: Sequence[object] = (),
    title: str = TITLE,
) -> str:
    """Return the SVG of the first screen at `width` x `height` cells."""
    made = document.get("at_ms")
    clock = FakeClock(made if isinstance(made, int) else FakeClock().now_ms())
    clock.advance(0.2)
    app = _app(_Still(document, events), clock)
    return await _drawn(app, (width, height), "overview", title)


async def demo_picture(
    width: int, height: int, *, view: str = "overview", at_s: float = DEMO_AT_S
) -> str:
    """Return the SVG of a view of the packaged recording; `inspector` is its first answer."""
    lines = load_recording()
    first = next(line["status"]["at_ms"] for line in lines if "status" in line)
    clock = FakeClock(first + round(at_s * 1000))
    app = _app(Replay(lines, clock, start_s=at_s), clock)
    app.state.live_word = "DEMO"
    return await _drawn(app, (width, height), view, DEMO_TITLE)


def _app(source: StatusSource, clock: FakeClock) -> BrowseApp:
    from eagled.tui.browse import BrowseApp

    return BrowseApp(source, clock=clock, refresh_hz=None)


def paint(app: BrowseApp) -> None:
    """Give a screen that is not started yet the colours of our pictures."""
    app.ansi_theme_dark = app.ansi_theme_light = _theme()
    app.ansi_color = False  # the picture carries its own colours


async def _drawn(app: BrowseApp, size: tuple[int, int], view: str, title: str) -> str:
    from eagled.tui.svg import tidy

    paint(app)
    async with app.run_test(size=size) as pilot:
        await app.ask()
        await pilot.pause()
        if view != "overview":
            await _go(app, view)
        await pilot.pause()
        await app.workers.wait_for_complete()
        await _stands_still(app)
        return tidy(app.export_screenshot(title=title, simplify=True))


async def _stands_still(app: BrowseApp) -> None:
    """Wait until the sizes of the panels have settled: each depends on the others'."""
    same, before = 0, ""
    while same < _STILL_ROUNDS:
        app.redraw()
        await asyncio.sleep(_ROUND_S)
        now = app.export_screenshot(simplify=True)
        same, before = (same + 1 if now == before else 0), now


async def _go(app: BrowseApp, view: str) -> None:
    if view != "inspector":
        app.action_view(view)
        return
    app.list_samples(Wanted("extracted"))
    await app.workers.wait_for_complete()
    app.open_sample(app.state.desk.samples[0].uid)


def _theme() -> TerminalTheme:
    return TerminalTheme(_PALETTE[0], _PALETTE[-1], list(_PALETTE))


async def _docs(folder: Path) -> None:
    for name, (view, size, at_s) in DOCS_PICTURES.items():
        svg = await demo_picture(*size, view=view, at_s=at_s)
        (folder / name).write_text(svg, encoding="utf-8")


async def _asked_for(options: argparse.Namespace) -> str:
    width, _, height = str(options.size).partition("x")
    size = int(width), int(height)
    if options.status is None:
        return await demo_picture(*size, view=options.view, at_s=options.at)
    document = json.loads(options.status.read_bytes())
    lines = options.events.read_bytes().splitlines() if options.events else []
    events = [json.loads(line) for line in lines if line.strip()]
    return await picture(document, *size, events, options.title)


def main() -> None:
    """Read the arguments, write the picture."""
    parser = argparse.ArgumentParser(description="Draw the screen as an SVG picture.")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--out", type=Path, help="the SVG to write")
    target.add_argument("--docs", type=Path, help="write the documentation's pictures here")
    parser.add_argument("--status", type=Path, help="a status.json; else the recording is drawn")
    parser.add_argument("--events", type=Path, help="lines of `eagled events --json`")
    parser.add_argument("--title", default=TITLE, help="what stands over the picture")
    parser.add_argument("--size", default="160x50", help="columns x rows")
    parser.add_argument("--view", default="overview", help="view of the recording")
    parser.add_argument("--at", type=float, default=DEMO_AT_S, help="second of the recording")
    options = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    if options.docs is not None:
        options.docs.mkdir(parents=True, exist_ok=True)
        asyncio.run(_docs(options.docs))
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(asyncio.run(_asked_for(options)), encoding="utf-8")


if __name__ == "__main__":
    main()
