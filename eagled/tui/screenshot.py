"""Draw a status document as an SVG picture of the screen.

`python -m eagled.tui.screenshot --status FILE --out docs/images/top.svg --size 160x50`

The clock stands at the document's own time (UTC), so the same document gives the same picture.
`--events FILE` adds the log below: one JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from eagled.clock import FakeClock

TITLE = "eagled top"


class _Still:
    """A daemon that is never asked."""

    async def status(self) -> Mapping[str, object]:
        return {}

    async def events(self, after: int) -> Sequence[Mapping[str, object]]:
        del after
        return ()

    async def get(self, path: str, query: Mapping[str, str | int]) -> object:
        del path, query
        return {}

    async def post(self, path: str, body: Mapping[str, object]) -> object:
        del path, body
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
    from rich.terminal_theme import TerminalTheme

    from eagled.tui.browse import BrowseApp
    from eagled.tui.svg import tidy

    made = document.get("at_ms")
    clock = FakeClock(made if isinstance(made, int) else FakeClock().now_ms())
    clock.advance(0.2)
    app = BrowseApp(_Still(), clock=clock, refresh_hz=None)
    app.ansi_theme_dark = TerminalTheme(
        (24, 27, 33),
        (205, 209, 216),
        [
            (24, 27, 33), (232, 104, 104), (126, 198, 128), (226, 184, 96),
            (98, 150, 204), (186, 140, 210), (94, 190, 200), (205, 209, 216),
        ],
    )  # fmt: skip
    app.ansi_color = False  # the picture carries its own colours
    async with app.run_test(size=(width, height)) as pilot:
        app.state.take_events(events)
        app.apply(document)
        await pilot.pause()
        return tidy(app.export_screenshot(title=title, simplify=True))


def main() -> None:
    """Read the arguments, write the picture."""
    parser = argparse.ArgumentParser(description="Draw a status document as an SVG picture.")
    parser.add_argument("--status", type=Path, required=True, help="a status.json")
    parser.add_argument("--events", type=Path, help="lines of `eagled events --json`")
    parser.add_argument("--out", type=Path, required=True, help="the SVG to write")
    parser.add_argument("--title", default=TITLE, help="what stands over the picture")
    parser.add_argument("--size", default="160x50", help="columns x rows")
    options = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    width, _, height = str(options.size).partition("x")
    document = json.loads(options.status.read_bytes())
    lines = options.events.read_bytes().splitlines() if options.events else []
    events = [json.loads(line) for line in lines if line.strip()]
    svg = asyncio.run(picture(document, int(width), int(height), events, options.title))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
