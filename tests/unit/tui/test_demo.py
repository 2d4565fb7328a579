"""`eagled top --demo`: a recording plays as it was, and the packaged one shows every view."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eagled.clock import FakeClock
from eagled.errors import ContentError, UnreachableError, UsageError
from eagled.tui import launch
from eagled.tui.browse import BrowseApp
from eagled.tui.desk import Wanted
from eagled.tui.record import Recorder, pack, renamed
from eagled.tui.replay import Replay, load_recording
from eagled.tui.views import VIEWS
from tests.unit.tui.answers import ANSWERS, UID, sample_row
from tests.unit.tui.doubles import AT_MS, EVENTS, FakeSource, screen_text, status, wait_for

LATER_MS = 86_400_000
LINES: list[dict[str, Any]] = [
    {"t": 0.0, "status": status()},
    {"t": 0.0, "events": EVENTS[:2]},
    {"t": 0.0, "samples": [sample_row(1), sample_row(2, lane="long")]},
    {"t": 0.0, "path": "/v1/failures", "query": {}, "reply": ANSWERS["/v1/failures"]},
    {"t": 10.0, "down": "connection refused"},
    {"t": 20.0, "status": status(run="later", at_ms=AT_MS + 20_000)},
    {"t": 20.0, "events": EVENTS[2:3]},
    {"t": 20.0, "path": "/v1/failures", "query": {}, "reply": {"failures": []}},
]


def _playing() -> tuple[Replay, FakeClock]:
    clock = FakeClock(AT_MS + LATER_MS)
    return Replay(LINES, clock), clock


async def test_a_recording_plays_as_it_was(tmp_path: Path) -> None:
    """Status, events, lists, texts and a time without a daemon come back, moved to now."""
    source = FakeSource()
    listed = {"samples": [sample_row(7, uid=UID, state="extracted"), sample_row(8)]}
    source.answers = {**ANSWERS, "/v1/samples": listed}
    recorder = Recorder(source)
    await recorder.ask()
    file = tmp_path / "run.jsonl.zst"
    file.write_bytes(pack([{**line, "t": 0.0} for line in recorder.lines]))
    source.error = UnreachableError("gone")
    await recorder.ask()
    played = Replay(load_recording(file), FakeClock(AT_MS + LATER_MS))

    shown = await played.status()
    assert status()["lanes"] == shown["lanes"]
    assert abs(shown["at_ms"] - AT_MS - LATER_MS) < 1000  # type: ignore[operator] # a number
    assert [e["seq"] for e in EVENTS] == [e["seq"] for e in await played.events(0)]
    found: Any = await played.get("/v1/samples", {"state": "extracted", "limit": 5})
    assert [UID] == [row["uid"] for row in found["samples"]]
    assert ANSWERS[f"/v1/samples/{UID}/text"] == await played.get(f"/v1/samples/{UID}/text", {})
    assert {"down": "gone"} == {k: v for k, v in recorder.lines[-1].items() if k != "t"}


def test_folders_of_the_machine_have_other_names_in_a_recording() -> None:
    """A folder and what is in it are renamed wherever they stand; a longer name is another one."""
    names = {"/home/me/state": "/var/lib/eagled/demo", "/root/.cache": "/var/lib/eagled/cache"}
    given = {"n": 7, "lost": None, "rows": [
        {"detail": "is /root/.cache/models/m"}, ("/home/me/state", "cannot reach /home/me/state/s"),
        "/home/me/states", "/srv/home/me/state",
    ]}  # fmt: skip

    assert {"n": 7, "lost": None, "rows": [
        {"detail": "is /var/lib/eagled/cache/models/m"},
        ["/var/lib/eagled/demo", "cannot reach /var/lib/eagled/demo/s"],
        "/home/me/states", "/srv/home/me/state",
    ]} == renamed(given, names)  # fmt: skip


def test_the_packaged_recording_names_no_folder_of_a_machine() -> None:
    """What stands in it is under /var/lib/eagled; the demo's prompts may name what they like."""
    lines = [line for line in load_recording() if not str(line.get("path", "")).endswith("/text")]
    found = re.findall(r"(?<![\w.<])/[a-z][\w.]*(?:/[\w.-]+)+", repr(lines))
    paths = {path for path in found if not path.startswith("/v1/")}

    assert len(paths) >= 3
    assert [] == [path for path in paths if not path.startswith("/var/lib/eagled/")]


async def test_time_goes_on_and_begins_anew() -> None:
    """Answers are those of the second that is played; after the last second comes the first."""
    played, clock = _playing()
    seen = []
    for _ in range(4):
        try:
            seen.append((await played.status())["run"])
        except UnreachableError as error:
            seen.append("down" if "on purpose" in str(error) else "?")
        clock.advance(10.0 if len(seen) < 3 else 1.0)
    failures: Any = await played.get("/v1/failures", {"limit": 5})
    again = [int(str(e["seq"])) for e in await played.events(0)]

    assert ["kimi-k2.5", "down", "later", "kimi-k2.5"] == seen
    assert 2 == len(failures["failures"])
    assert sorted(again) == again
    assert 5 == len(set(again))


async def test_a_recording_changes_nothing() -> None:
    """A dry run counts; every change is refused in words; an unknown question has no answer."""
    played, _ = _playing()
    counted = [
        await played.post("/v1/retry", {"cause": "a1b2c3d4", "dry_run": True}),
        await played.post("/v1/retry", {"samples": ["a", "b"], "dry_run": True}),
    ]

    assert [{"n": 118, "dry_run": True}, {"n": 2, "dry_run": True}] == counted
    for call in (played.post("/v1/undo", {}), played.get("/v1/none", {})):
        with pytest.raises(UsageError, match="recording"):
            await call


@pytest.mark.parametrize("raw", [b"", b"xx", pack([])[:-3], pack([]), pack([{}])[:9]])
def test_what_is_no_recording_is_refused(tmp_path: Path, raw: bytes) -> None:
    """Torn, empty and foreign files end in an error of ours."""
    file = tmp_path / "x"
    file.write_bytes(raw)
    with pytest.raises(ContentError):
        load_recording(file)


def _shows(app: BrowseApp, mark: str) -> bool:
    app.redraw()
    return mark in screen_text(app)


async def test_every_view_of_the_packaged_recording() -> None:
    """Each view has something to show, and the daemon goes away and comes back in it."""
    lines = load_recording()
    downs = [line["t"] for line in lines if "down" in line and line["t"] > 60]
    clock = FakeClock(AT_MS)
    app = BrowseApp(Replay(lines, clock, start_s=300.0), clock=clock, refresh_hz=None)
    drawn = {}
    async with app.run_test(size=(120, 40)) as pilot:
        for view in (*VIEWS, "inspector"):
            await app.ask()
            if view == "inspector":
                app.list_samples(Wanted("extracted"))
                await app.workers.wait_for_complete()
                app.open_sample(app.state.desk.samples[0].uid)
            else:
                app.action_view(view)
            await app.workers.wait_for_complete()
            mark = "⟦<|im_start|>⟧" if view == "inspector" else f"[{view}]"
            await wait_for(pilot, partial(_shows, app, mark))
            drawn[view] = screen_text(app)

    assert downs
    for text in drawn.values():
        for fault in ("cannot show", "not up to date", "has not told yet"):
            assert fault not in text


def test_demo_needs_no_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a socket the recording is shown; with `once` as text."""
    assert 0 == launch.run_top(None, once=True, ascii_only=False)
    assert "LANES" in capsys.readouterr().out
