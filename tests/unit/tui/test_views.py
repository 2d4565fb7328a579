"""The views behind the first: what they show at three sizes, what their keys do."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import Input

from eagled.errors import UnreachableError, UsageError
from eagled.tui.browse import BrowseApp
from eagled.tui.dialogs import ConfirmDialog, LineDialog
from eagled.tui.inspector import make_doc
from eagled.tui.panels import Link
from eagled.tui.records import parse_text
from eagled.tui.source import kind_of
from eagled.tui.views import VIEWS
from eagled.tui.widgets import Look
from tests.unit.tui.answers import ANSWERS, UID, sample_detail, sample_row, sample_text
from tests.unit.tui.doubles import (
    AT_MS,
    EVENTS,
    FakeSource,
    Golden,
    comes_to,
    make_app,
    screen_text,
    status,
    wait_for,
)  # fmt: skip

SIZES = ((80, 24), (160, 50), (60, 12))
STATES = ("live", "connecting", "stale", "restarted", "denied", "version", "frozen", "readonly")


def _source(**answers: object) -> FakeSource:
    source = FakeSource()
    source.answers = {**ANSWERS, **answers}
    return source


def _shows(app: BrowseApp, view: str) -> bool:
    return app.state.current == view


def _has_size(app: BrowseApp, size: tuple[int, int]) -> bool:
    return _size(screen_text(app)) == size


async def _at(app: BrowseApp, pilot: Pilot[Any], view: str) -> str:
    """Go to a view and let it have its answers."""
    await app.ask()
    await pilot.pause()
    app.state.take_events(EVENTS)
    if view == "inspector":
        app.open_sample(UID)
    else:
        app.action_view(view)
    for _ in range(3):
        await pilot.pause()
        await app.workers.wait_for_complete()
    app.redraw()
    await pilot.pause()
    return screen_text(app)


async def _same(pilot: Pilot[Any], name: str) -> str:
    """Wait until the screen is as the golden file; return it."""

    def draw() -> list[str]:
        return [line.rstrip() for line in screen_text(pilot.app).split("\n")]

    await comes_to(pilot, Golden(f"{name}.txt"), draw)
    return screen_text(pilot.app)


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_every_view_at_every_size(size: tuple[int, int]) -> None:
    """Each view is drawn as it was reviewed, with every line as wide as the terminal."""
    app, _, _ = make_app(_source())
    drawn = {}
    async with app.run_test(size=size) as pilot:
        for view in (*VIEWS, "inspector"):
            await _at(app, pilot, view)
            drawn[view] = await _same(pilot, f"{view}-{size[0]}x{size[1]}")

    for text in drawn.values():
        assert "cannot show" not in text
        assert {size[0]} == {cell_len(line) for line in text.split("\n")}


async def _bring_about(app: BrowseApp, state: str, source: FakeSource, clock: Any) -> None:
    if state != "connecting":
        await app.ask()
    if state == "stale":
        source.error = UnreachableError("no daemon answers")
        await app.ask()
        clock.advance(42)
    elif state == "restarted":
        source.document = status(epoch=99)
        await app.ask()
    elif state == "denied":
        source.error = UnreachableError("belongs to another user")
        source.error.__cause__ = PermissionError(13, "denied")
        await app.ask()
    elif state == "version":
        source.document = status(api=2)
        await app.ask()
    elif state == "frozen":
        app.action_freeze()
        clock.advance(7)
    app.redraw()


@pytest.mark.parametrize("state", STATES)
async def test_every_connection_state(state: str) -> None:
    """Each state of the connection has its word; the screen stays with what it knows."""
    source = _source()
    app, _, clock = make_app(source, readonly=state == "readonly")
    drawn = {}
    async with app.run_test(size=SIZES[0]) as pilot:
        await _bring_about(app, state, source, clock)
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await wait_for(pilot, partial(_has_size, app, size))
            drawn[size] = await _same(pilot, f"state-{state}-{size[0]}x{size[1]}")

    word = {"live": "LIVE", "readonly": "read-only"}.get(state, state.upper())
    for text in drawn.values():
        assert word in text


def _size(text: str) -> tuple[int, int]:
    lines = text.split("\n")
    return cell_len(lines[0]), len(lines)


async def test_ascii_and_no_colour() -> None:
    """Every view can be drawn with ASCII characters and without a colour."""
    app, _, _ = make_app(_source(), look=Look(colour=False, ascii_only=True))
    async with app.run_test(size=(160, 50)) as pilot:
        drawn = [await _at(app, pilot, view) for view in (*VIEWS, "inspector")]

    assert [True] * len(drawn) == [text.isascii() for text in drawn]


async def test_a_view_that_gets_no_answer_says_so() -> None:
    """The reason stands in the view, what it had stays, the status goes on."""
    source = _source()
    app, _, clock = make_app(source)
    async with app.run_test(size=(160, 50)) as pilot:
        await _at(app, pilot, "failures")
        before, source.get = source.get, _refuses  # type: ignore[assignment,method-assign] # a daemon that breaks
        clock.advance(60)
        source.document = status(at_ms=AT_MS + 60_000)
        await app.ask()
        await pilot.pause()
        text = screen_text(app)
        source.get = before  # type: ignore[method-assign] # as it was

    assert "not up to date: UsageError: broken" in text
    assert "too_many_failures" in text
    assert "LIVE" in text


async def test_nothing_is_claimed_without_an_answer() -> None:
    """A view whose question was never answered does not say that there is nothing."""
    source = _source()
    source.error = UnreachableError("gone")
    app, _, _ = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        text = await _at(app, pilot, "failures")

    assert "nothing was given up" not in text
    assert "the daemon has not told yet" in text


async def _refuses(*_: object) -> object:
    raise UsageError("broken")


async def test_retry_shows_number_and_price_first() -> None:
    """R asks the daemon, shows the number and the price; Enter does nothing; y sends the number."""
    source = _source()
    source.reply = {"n": 118}
    app, _, _ = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await _at(app, pilot, "failures")
        await pilot.press("r")
        await wait_for(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.pause()
        dialog = screen_text(app)
        await pilot.press("enter")
        await wait_for(pilot, lambda: not isinstance(app.screen, ConfirmDialog))
        after_enter = list(source.posts)
        await pilot.press("r")
        await wait_for(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("y")
        await wait_for(pilot, lambda: len(source.posts) == 3)

    asked = ("/v1/retry", {"cause": "a1b2c3d4", "dry_run": True})
    assert "RETRY 118 samples" in dialog
    assert "590 000 out, about 6m00" in dialog
    assert [asked] == after_enter
    assert [asked, asked, ("/v1/retry", {"cause": "a1b2c3d4", "expect": 118})] == source.posts


async def test_reject_needs_the_number() -> None:
    """A rejection is sent only when its number is typed."""
    source = _source()
    source.reply = {"n": 3}
    app, _, _ = make_app(source)
    sent = []
    async with app.run_test(size=(80, 24)) as pilot:
        await _at(app, pilot, "samples")
        await pilot.press("space", "space", "space")
        for typed in ("4", "", "yes", "3"):
            await pilot.press("X")
            await wait_for(pilot, lambda: isinstance(app.screen, ConfirmDialog))
            app.screen.query_one(Input).value = typed
            await pilot.press("enter")
            await wait_for(pilot, lambda: not isinstance(app.screen, ConfirmDialog))
            await app.workers.wait_for_complete()
            sent.append(len([body for _, body in source.posts if "dry_run" not in body]))

    marked = [sample_row(i)["uid"] for i in (1, 2, 3)]
    assert {"samples": marked, "dry_run": True} == source.posts[0][1]
    assert [0, 0, 0, 1] == sent
    assert {"samples": marked, "expect": 3} == source.posts[-1][1]


async def test_readonly_changes_nothing() -> None:
    """With --readonly no key of any view sends anything."""
    source = _source()
    app, _, _ = make_app(source, readonly=True)
    async with app.run_test(size=(80, 24)) as pilot:
        for view in ("samples", "failures", "disk", "events"):
            await _at(app, pilot, view)
            await pilot.press("r", "X", "L", "A", "w")
            await app.workers.wait_for_complete()

    assert [] == source.posts


async def test_from_failures_to_the_sample_and_back() -> None:
    """Enter goes from a cause to its samples to one of them; escape goes back, and never out."""
    source = _source(**{f"/v1/samples/{'0001' * 8}": sample_detail(uid="0001" * 8)})
    app, _, _ = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await _at(app, pilot, "failures")
        await pilot.press("enter")
        await wait_for(pilot, lambda: app.state.current == "samples")
        await wait_for(pilot, lambda: bool(app.state.desk.samples))
        query = next(q for p, q in source.gets if p == "/v1/samples")
        await pilot.press("enter")
        await wait_for(pilot, lambda: app.state.current == "inspector")
        for name in ("samples", "failures", "overview", "overview"):
            await pilot.press("escape")
            await wait_for(pilot, partial(_shows, app, name))

    assert ("failed", "too_many_failures") == (query["state"], query["reason"])


async def test_a_million_samples_are_asked_for_by_the_page() -> None:
    """Past the last row the next page is asked for by the last number, never all of them."""
    page = {"samples": [sample_row(i) for i in range(1, 201)]}
    source = _source(**{"/v1/samples": page})
    app, _, _ = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await _at(app, pilot, "samples")
        await pilot.press("end", "down")
        await wait_for(pilot, lambda: source.gets[-1][1].get("after") == 200)

    asked = [q for path, q in source.gets if path == "/v1/samples"]
    assert [(0, 200), (200, 200)] == [(q["after"], q["limit"]) for q in asked]


async def test_find_inside_a_sample() -> None:
    """/ finds whatever the case, n goes on, the line is shown."""
    answer = "\n".join(f"line {i}" for i in range(500)) + "\nThe NEEDLE"
    source = _source(**{f"/v1/samples/{UID}/text": sample_text(answer)})
    app, _, _ = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await _at(app, pilot, "inspector")
        await pilot.press("slash")
        await wait_for(pilot, lambda: isinstance(app.screen, LineDialog))
        app.screen.query_one(Input).value = "needle"
        await pilot.press("enter")
        await wait_for(pilot, lambda: "The NEEDLE" in screen_text(app))


async def test_a_long_sample_is_cut_aside() -> None:
    """A sample of 400 KB comes up in its own time, at any width, and words in it are found."""
    answer = "今天 line\n" * 40_000 + "The NEEDLE"
    source = _source(**{f"/v1/samples/{UID}/text": sample_text(answer)})
    app, _, _ = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await _at(app, pilot, "inspector")
        await wait_for(pilot, lambda: "今天 line" in screen_text(app))
        await pilot.resize_terminal(60, 12)
        await wait_for(pilot, lambda: _cut_for(app, 60))
        app._find("needle")
        await wait_for(pilot, lambda: "The NEEDLE" in screen_text(app))


def _cut_for(app: BrowseApp, width: int) -> bool:
    return app.state.desk.doc is not None and app.state.desk.doc.width == width


async def test_without_a_text_worker_there_are_ids() -> None:
    """The ids are shown, and why there is no text."""
    text = sample_text(prompt=None, output=None, note="no text worker is connected: ids only")
    app, _, _ = make_app(_source(**{f"/v1/samples/{UID}/text": text}))
    async with app.run_test(size=(80, 24)) as pilot:
        shown = await _at(app, pilot, "inspector")

    assert "no text worker is connected" in shown
    assert " 1 5 6 2" in shown
    assert " ┃ 9 8 3" in shown


async def test_commands() -> None:
    """What is typed after : is done; a word that is none is told."""
    source = _source()
    app, _, _ = make_app(source)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await _at(app, pilot, "overview")
        app.run_command("limit short 160")
        await wait_for(pilot, lambda: bool(source.posts))
        app.run_command("nonsense")
        await wait_for(pilot, lambda: "is no command" in screen_text(app))
        app.run_command("pause")
        await wait_for(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("enter")
        await wait_for(pilot, lambda: not isinstance(app.screen, ConfirmDialog))
        app.run_command("disk")
        await wait_for(pilot, lambda: app.state.current == "disk")

    assert [("/v1/lanes/short", {"limit": 160})] == source.posts


async def test_what_if_changes_nothing() -> None:
    """Right asks the plan for another assumption; nothing is posted."""
    source = _source()
    app, _, _ = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await _at(app, pilot, "disk")
        await pilot.press("right", "right")
        await wait_for(pilot, lambda: source.gets[-1][1] == {"codec": "lossless"})

    assert [] == source.posts


async def test_an_alarm_is_seen() -> None:
    """A sends the oldest new alarm's kind."""
    source = _source()
    app, _, _ = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await _at(app, pilot, "events")
        await pilot.press("A")
        await wait_for(pilot, lambda: bool(source.posts))

    assert [("/v1/alarms/ack", {"kind": "disk_projection"})] == source.posts


@pytest.mark.parametrize(
    "answer", ["x" * 300_000, "今天 line\n" * 40_000], ids=["one line", "wide"]
)
def test_300_kb_are_cut_in_under_a_second(answer: str) -> None:
    """A sample of 300 KB is ready to be drawn within a second, whatever it is made of."""
    found = parse_text(sample_text(answer))
    began = time.process_time()
    doc = make_doc(found, 80, ids=False)
    doc.line(len(doc.rows) - 1)
    took = time.process_time() - began

    assert took < 1.0


def test_the_mask_is_told_without_colour() -> None:
    """Trained lines have a mark, masked ones none; a special id has brackets, a look-alike none."""
    doc = make_doc(parse_text(sample_text()), 80, ids=False)
    lines = ["".join(text for text, _ in doc.line(i)) for i in range(len(doc.rows))]

    assert " ┃ ⟦<|im_user|>⟧Write <|im_end|> as text⟦<|im_end|>⟧It is O(n+m).⏎" == lines[0]
    assert " ┃ ⇥ok 今天⟦<|im_end|>⟧" == lines[1]
    assert (1, "trained") == (doc.look_alikes, doc.line(1)[2][1])


def test_a_denied_socket_is_known_by_its_cause() -> None:
    """No permission and another version are told apart from a daemon that is away."""
    denied = UnreachableError("x")
    denied.__cause__ = PermissionError(13, "x")

    assert ["DENIED", "VERSION", ""] == [
        kind_of(denied), kind_of(UsageError("the daemon speaks control API 1")),
        kind_of(UnreachableError("gone")),
    ]  # fmt: skip
    assert "LIVE" == Link("LIVE").kind
