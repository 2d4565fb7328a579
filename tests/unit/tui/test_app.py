"""The screen under Textual's pilot: what it shows, what its keys do, what it survives."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from rich.cells import cell_len
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from eagled.clock import FakeClock
from eagled.errors import UnreachableError, UsageError
from eagled.tui import panels
from eagled.tui.app import BLURRED_HZ, LOST_S, TopApp, stepped
from eagled.tui.dialogs import ConfirmDialog, NumberDialog
from eagled.tui.state import STALE_S
from eagled.tui.widgets import Look, Table
from tests.unit.tui.doubles import AT_MS, FakeSource, make_app, screen_text, status, wait_for

SMALL, LARGE = (80, 24), (160, 50)


async def _shown(app: TopApp, pilot: Pilot[Any]) -> str:
    await app.ask()
    await pilot.pause()
    await pilot.pause()
    return screen_text(app)


async def test_small_screen_has_everything() -> None:
    """At 80x24 lanes, datasets, server, extraction, disk, rate and the first alarm are there."""
    app, _, _ = make_app()
    async with app.run_test(size=SMALL) as pilot:
        lines = (await _shown(app, pilot)).split("\n")

    assert [80] * 24 == [len(line) for line in lines]
    assert " eagled top ▸ kimi-k2.5" in lines[0]
    assert "LIVE 0.2s  up 5h10  14:22:07  !2 alarms" in lines[0]
    assert "▸short      187/200 31 204 48 808   41 1 962 2 140  1m38  4m02" in lines[4]
    assert lines[5].rstrip().endswith("11h50◂")
    for word in (" server  UP  run 195", "extract running", "disk ", "out/s ", "WARN  13:57"):
        assert any(word in line for line in lines)
    assert "q quit" in lines[23]


async def test_large_screen_has_everything() -> None:
    """At 160x50 every panel is there in full, at its place."""
    app, _, _ = make_app()
    async with app.run_test(size=LARGE) as pilot:
        text = await _shown(app, pilot)
    lines = text.split("\n")

    assert [160] * 50 == [len(line) for line in lines]
    for title in ("LANES", "DATASETS", "SERVER", "EXTRACTION", "DISK", "ALARMS 2", "THROUGHPUT"):
        assert f"─ {title} ─" in text
    for told in (
        "running    195   waiting 0", "71%", "9m55", "4 297 shards", "92.4 MB/sample",
        "43 008 B ", "9.83 TB   94%", "reserve 500 GB", "kimi-k25-2000x", "15 000/15 000",
        "server_down", "now 2 233",
    ):  # fmt: skip
        assert told in text


async def test_no_size_breaks_it() -> None:
    """Any size is drawn, however little fits."""
    app, _, _ = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await _shown(app, pilot)
        for width, height in ((50, 10), (20, 5), (60, 12), (100, 40), (300, 90)):
            await pilot.resize_terminal(width, height)
            await wait_for(pilot, partial(_is_as_large, app, width, height))
            await app.ask()
            await pilot.pause()

            assert "cannot show" not in screen_text(app)


def _is_as_large(app: TopApp, width: int, height: int) -> bool:
    lines = screen_text(app).split("\n")
    return (width, height) == (cell_len(lines[0]), len(lines))


async def test_resize_rearranges() -> None:
    """Making the terminal smaller and larger again gives the same picture."""
    app, _, _ = make_app()
    async with app.run_test(size=LARGE) as pilot:
        before = await _shown(app, pilot)
        await pilot.resize_terminal(*SMALL)
        await wait_for(pilot, lambda: "─ SERVER ─" not in screen_text(app))
        assert " server  UP" in screen_text(app)
        await pilot.resize_terminal(*LARGE)
        await wait_for(pilot, lambda: before == screen_text(app))


async def test_pause_goes_to_the_selected_lane() -> None:
    """Key p posts to the lane under the cursor and the row says that the change is on its way."""
    app, source, _ = make_app()
    async with app.run_test(size=SMALL, notifications=True) as pilot:
        await _shown(app, pilot)
        await pilot.press("j", "p")
        await wait_for(pilot, lambda: bool(source.posts))

        assert [("/v1/lanes/long", {"paused": True})] == source.posts
        await wait_for(pilot, lambda: "lane long: paused" in screen_text(app))


async def test_pause_on_a_paused_dataset_resumes_it() -> None:
    """Key p on a paused dataset resumes it; names are escaped in the path."""
    document = status(datasets={"a/b ?": {"paused": True, "priority": 1}})
    app, source, _ = make_app(FakeSource(document))
    async with app.run_test(size=SMALL) as pilot:
        await _shown(app, pilot)
        await pilot.press("tab", "p")
        await wait_for(pilot, lambda: bool(source.posts))

        assert [("/v1/datasets/a%2Fb%20%3F", {"paused": False})] == source.posts


async def test_steps_add_up() -> None:
    """Three quick presses of + ask for three steps, not three times for one."""
    app, source, _ = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await _shown(app, pilot)
        await pilot.press("plus", "plus", "minus")
        await wait_for(pilot, lambda: len(source.posts) == 3)

    assert [210, 220, 210] == [body["limit"] for _, body in source.posts]


@pytest.mark.parametrize(
    ("kind", "now", "by", "then"),
    [
        ("lane", 200, 1, 210), ("lane", 200, -1, 190), ("lane", 20, 1, 30), ("lane", 20, -1, 19),
        ("lane", 16, 1, 17), ("lane", 1, -1, 1), ("lane", 0, 1, None), ("dataset", 0, -1, -1),
        ("dataset", 1000, 1, 1000),
    ],
)  # fmt: skip
def test_step_sizes(kind: Any, now: int, by: int, then: int | None) -> None:
    """Limits move by ten above twenty and never reach 0, which would mean no limit."""
    assert then == stepped(kind, now, by)


async def test_limit_dialog_sets_the_frozen_target() -> None:
    """The limit goes to the lane that the dialog was opened for, although the rows changed."""
    app, source, _ = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await _shown(app, pilot)
        await pilot.press("c")
        await wait_for(pilot, lambda: isinstance(app.screen, NumberDialog))
        changed = status(lanes={"another": {}, **status()["lanes"]})
        app.apply(changed)
        await pilot.pause()
        app.screen.query_one(Input).value = "180"
        await pilot.press("enter")
        await wait_for(pilot, lambda: bool(source.posts))

    assert [("/v1/lanes/short", {"limit": 180})] == source.posts


async def test_limit_dialog_refuses() -> None:
    """What is no sensible limit is told and nothing is sent; Esc changes nothing."""
    app, source, _ = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await _shown(app, pilot)
        for typed in ("", "abc", "-1", "1e3", "100001", "٣", "9" * 40):
            await pilot.press("c")
            await wait_for(pilot, lambda: isinstance(app.screen, NumberDialog))
            app.screen.query_one(Input).value = typed
            await pilot.press("enter")
            await wait_for(pilot, lambda: "needs" in screen_text(app))
            await pilot.press("escape")
            await wait_for(pilot, lambda: not isinstance(app.screen, NumberDialog))

    assert [] == source.posts


async def test_priority_dialog() -> None:
    """On a dataset c sets the priority, also a negative one."""
    app, source, _ = make_app()
    async with app.run_test(size=LARGE, notifications=True) as pilot:
        await _shown(app, pilot)
        await pilot.press("tab", "down", "c")
        await wait_for(pilot, lambda: isinstance(app.screen, NumberDialog))
        app.screen.query_one(Input).value = "-7"
        await pilot.press("enter")
        await wait_for(pilot, lambda: bool(source.posts))

    assert [("/v1/datasets/mixture-of-thoughts", {"priority": -7})] == source.posts


@pytest.mark.parametrize(("phase", "path"), [("generating", "/v1/pause"), ("paused", "/v1/resume")])
async def test_everything_is_held_after_a_question(phase: str, path: str) -> None:
    """P asks first: Enter and Esc change nothing, y pauses all, or resumes what stands still."""
    app, source, _ = make_app(FakeSource(status(phase=phase)))
    async with app.run_test(size=SMALL) as pilot:
        await _shown(app, pilot)
        for key in ("enter", "escape", "y"):
            assert [] == source.posts
            await pilot.press("P")
            await wait_for(pilot, lambda: isinstance(app.screen, ConfirmDialog))
            await pilot.press(key)
            await wait_for(pilot, lambda: not isinstance(app.screen, ConfirmDialog))
        await wait_for(pilot, lambda: bool(source.posts))

    assert [(path, {})] == source.posts


REFUSALS: tuple[tuple[Exception | None, str], ...] = (
    (UsageError("there is [nothing]"), "undo refused: there is [nothing]"),
    (UnreachableError("gone"), "undo not confirmed: gone"),
    (TimeoutError(), "undo not confirmed: no answer in time"),
    (None, "it was [taken] back"),
)


async def test_undo_and_refusals() -> None:
    """Key u posts an undo; a refusal is told apart from an answer that never came.

    When the daemon says what it did, its words are what the operator reads.
    """
    app, source, _ = make_app()
    source.reply = {"undone": "x", "message": "it was [taken] back"}
    async with app.run_test(size=LARGE, notifications=True) as pilot:
        await _shown(app, pilot)
        for error, told in REFUSALS:
            source.post_error = error
            await pilot.press("u")
            await wait_for(pilot, partial(_says, app, told))

    assert [("/v1/undo", {})] * len(REFUSALS) == source.posts


def _says(app: TopApp, words: str) -> bool:
    return words in screen_text(app)


async def test_a_lost_reply_does_nothing_twice() -> None:
    """An undo asked for again after its reply was lost has its first key; later wishes do not.

    A pause has a key of its own each time: it may be right to do it again.
    """
    app, source, clock = make_app()
    lost = UnreachableError("gone")
    keys: dict[str, list[str]] = {"u": [], "p": []}
    async with app.run_test(size=SMALL) as pilot:
        await _shown(app, pilot)
        for key, error in (
            ("u", lost), ("u", TimeoutError()), ("u", None), ("u", UsageError("no")), ("u", lost),
            ("p", lost), ("p", None), ("u", lost), ("", None), ("u", None),
        ):  # fmt: skip
            source.post_error = error
            if key:
                await pilot.press(key)
                await app.workers.wait_for_complete()
                keys[key].append(source.keys[-1])
            else:
                clock.advance(LOST_S)
                source.document = status(at_ms=clock.now_ms())
                await app.ask()

    first, *others = keys["u"]
    assert [first, first] == others[:2]
    assert 5 == len({first, *others})
    assert 2 == len(set(keys["p"]))


async def test_cursor_follows_its_row() -> None:
    """The cursor stays on its dataset when rows come before it, and moves on when it goes."""
    app, _, _ = make_app()
    async with app.run_test(size=LARGE) as pilot:
        await _shown(app, pilot)
        table = app.query_one("#datasets", Table)
        await pilot.press("tab", "j", "j")
        assert "openthoughts-114k" == table.selected

        app.apply(status(datasets={"new": {}, **status()["datasets"]}))
        assert "openthoughts-114k" == table.selected
        fewer = {k: v for k, v in status()["datasets"].items() if k != "openthoughts-114k"}
        app.apply(status(datasets={"new": {}, **fewer}))
        assert "ultrachat-200k" == table.selected
        app.apply(status(datasets={}))
        assert [None] == [table.selected]
        await pilot.press("G", "p")
        app.apply(status())
        assert "deepswe-kimi-k2" == table.selected


async def test_rows_scroll_with_the_cursor() -> None:
    """In a small window the cursor's row is always seen."""
    app, _, _ = make_app()
    async with app.run_test(size=SMALL) as pilot:
        assert "kimi-k25" not in await _shown(app, pilot)
        await pilot.press("tab", "G")
        await wait_for(pilot, lambda: "▸kimi-k25-2000x" in screen_text(app))
        await pilot.press("g")
        await wait_for(pilot, lambda: "▸deepswe-kimi-k2" in screen_text(app))


async def test_unreachable_is_a_normal_state() -> None:
    """Without a daemon the last numbers stay, their age and the reason are told, keys are off."""
    app, source, clock = make_app()
    async with app.run_test(size=LARGE) as pilot:
        await _shown(app, pilot)
        source.error = UnreachableError("connection refused")
        clock.advance(42)
        await app.ask()
        await app.ask()
        await pilot.press("p", "u", "plus", "c")
        await pilot.pause()
        text = screen_text(app)
        source.error, source.document = None, status(at_ms=AT_MS + 42_000)
        await app.ask()
        await pilot.pause()

        assert "STALE 42 s" in text
        assert "DAEMON UNREACHABLE for 0.0s (try 2): connection refused" in text
        assert "48 808" in text
        assert "keys that change the run are off" in text
        assert [] == source.posts
        assert "LIVE 0.2s" in screen_text(app)


async def test_never_reached() -> None:
    """A daemon that was never there is shown as such, with an empty frame."""
    app, source, _ = make_app()
    source.error = TimeoutError()
    async with app.run_test(size=SMALL) as pilot:
        text = await _shown(app, pilot)

    assert "CONNECTING" in text
    assert "no answer in time" in text


async def test_asks_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen keeps asking through errors of any kind."""
    monkeypatch.setattr("eagled.tui.app.BACKOFF_S", (0.001, 0.002))
    source = FakeSource()
    source.error = ValueError("[odd]")
    app = TopApp(source, refresh_hz=1000)
    async with app.run_test(size=SMALL) as pilot:
        await wait_for(pilot, lambda: source.asked > 20)
        source.error = None
        await wait_for(pilot, lambda: "kimi-k2.5" in screen_text(app))

    assert source.closed


async def test_a_broken_document_does_not_end_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in reading a document is told in the header; the screen lives."""
    app, _, _ = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await _shown(app, pilot)

        def broken(_: object) -> None:
            raise KeyError("limit")

        monkeypatch.setattr("eagled.tui.state.parse_status", broken)
        app.apply(status())
        await pilot.pause()

        assert "CANNOT SHOW THIS STATUS: KeyError" in screen_text(app)


async def test_a_broken_panel_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panel that cannot be drawn says so in its place; the tables go on."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(panels, "throughput", broken)
    app, _, _ = make_app()
    async with app.run_test(size=LARGE) as pilot:
        text = await _shown(app, pilot)

    assert "cannot show this: ZeroDivisionError" in text
    assert "48 808" in text


async def test_freeze() -> None:
    """Key z holds the picture and says so; z again lets it go on."""
    app, _, clock = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await _shown(app, pilot)
        await pilot.press("z")
        clock.advance(2)
        app.apply(status(run="another", at_ms=AT_MS + 2000))
        await pilot.pause()
        held = screen_text(app)
        await pilot.press("z")
        await pilot.pause()

        assert "kimi-k2.5" in held
        assert "FROZEN 2 s" in held
        assert "another" in screen_text(app)


async def test_readonly() -> None:
    """Read-only means that no key sends anything."""
    app, source, _ = make_app(readonly=True)
    async with app.run_test(size=SMALL) as pilot:
        await _shown(app, pilot)
        await pilot.press("p", "u", "plus", "minus", "c", "P", "tab", "p", "P")
        await pilot.pause()

        assert "read-only" in screen_text(app)
        assert not isinstance(app.screen, NumberDialog)
        assert [] == source.posts


async def test_help_and_quit() -> None:
    """? lists the keys over the screen; q closes the help, then the screen with exit code 0."""
    app, _, _ = make_app()
    async with app.run_test(size=LARGE) as pilot:
        await _shown(app, pilot)
        await pilot.press("question_mark")
        await wait_for(pilot, lambda: "pause or resume the lane" in screen_text(app))
        await pilot.press("q")
        await wait_for(pilot, lambda: "pause or resume the lane" not in screen_text(app))
        await pilot.press("q")

    assert 0 == app.return_value


async def test_no_colour() -> None:
    """Without colours no cell has one: states are words, bold and reverse."""
    app, _, _ = make_app(look=Look(colour=False))
    async with app.run_test(size=LARGE) as pilot:
        await _shown(app, pilot)
        strips = app.screen._compositor.render_strips()
        colours = {
            segment.style.color.name
            for strip in strips
            for segment in strip
            if segment.style is not None and segment.style.color is not None
        }

    assert colours <= {"default"}


async def test_ascii_only() -> None:
    """With ASCII asked for, nothing else is on the screen, in dialogs and messages neither."""
    app, _, _ = make_app(look=Look(ascii_only=True))
    async with app.run_test(size=LARGE, notifications=True) as pilot:
        text = await _shown(app, pilot)
        await pilot.press("c")
        await wait_for(pilot, lambda: isinstance(app.screen, NumberDialog))
        await pilot.pause()
        dialog = screen_text(app)

        await pilot.press("escape", "u")
        await wait_for(pilot, lambda: "undo: done" in screen_text(app))
        toast = screen_text(app)

    assert ">short" in text
    for drawn in (text, dialog, toast):
        assert drawn.isascii(), sorted({c for c in drawn if not c.isascii()})


async def test_asks_seldom_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the focus the screen asks seldom, yet often enough not to become stale."""
    assert 1 / BLURRED_HZ < STALE_S
    monkeypatch.setattr("eagled.tui.app.BLURRED_HZ", 1e-6)
    source = FakeSource()
    app = TopApp(source, refresh_hz=1000)
    async with app.run_test(size=SMALL) as pilot:
        app.post_message(events.AppBlur())
        await wait_for(pilot, lambda: source.asked > 0)
        await pilot.pause()
        await pilot.pause()
        before = source.asked
        for _ in range(20):
            await pilot.pause()
        blurred = source.asked - before
        app.post_message(events.AppFocus())
        await wait_for(pilot, lambda: source.asked > before + 20)

    assert blurred <= 1


async def test_the_last_status_is_shown_until_a_daemon_answers() -> None:
    """A status found on disk is shown with its age; keys are off until the daemon answers."""
    source = FakeSource()
    source.error = UnreachableError("no daemon")
    clock = FakeClock(AT_MS + 90_000)
    app = TopApp(source, clock=clock, refresh_hz=None, first=status())
    async with app.run_test(size=SMALL) as pilot:
        text = await _shown(app, pilot)
        await pilot.press("p")
        await pilot.pause()

    assert "STALE 90 s" in text
    assert "48 808" in text
    assert [] == source.posts
