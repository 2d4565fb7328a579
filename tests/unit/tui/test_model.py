"""The status document, whole, old, new and broken."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from eagled.tui.model import (
    MAX_ALARMS,
    MAX_ROWS,
    Counts,
    parse_event,
    parse_status,
    sum_counts,
)
from eagled.tui.plain import plain_text
from tests.unit.tui.doubles import AT_MS, make_view, status

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=20,
)
KEYS = st.sampled_from(
    ["lanes", "datasets", "servers", "extraction", "disk", "alarms", "phase", "run", "at_ms"]
)


def test_whole_document() -> None:
    """Every number of the example arrives under its name."""
    shot = parse_status(status())
    short, server, disk = shot.lanes[0], shot.servers[0], shot.disk

    assert ("kimi-k2.5", "generating", AT_MS) == (shot.run, shot.phase, shot.at_ms)
    assert ("short", False, 200, 187) == (short.key, short.paused, short.limit, short.in_flight)
    assert (2140.3, 98, 242, 180) == (short.out_rate, short.p50_s, short.p95_s, len(short.history))
    assert ("up", 195, 0.7114) == (server.state, server.running, server.kv_share)
    assert disk is not None
    assert (500e9, 5.217e12) == (disk.reserve, disk.to_come)
    assert ("disk: the projection uses 94% of the budget", "warn") == (
        shot.alarms[0].text, shot.alarms[0].level,
    )  # fmt: skip
    assert 10 == len(shot.datasets)
    assert 100_000 == shot.totals.total


def test_missing_keys_show_as_dashes() -> None:
    """A lane of which nothing is known still has its line, with dashes."""
    shown = plain_text(make_view({"lanes": {"short": {}}}), ascii_only=False)
    line = next(row for row in shown.splitlines() if row.lstrip().startswith("short"))

    assert "\u2013/\u2013" in line
    assert "none told" in shown


def test_unknown_keys_are_ignored() -> None:
    """A newer daemon's keys change nothing."""
    document = status(something_new={"a": [1]})
    document["lanes"]["short"]["new"] = "x"

    assert parse_status(status()) == parse_status(document)


@given(st.dictionaries(KEYS, JSON) | JSON)
def test_no_json_breaks_it(document: Any) -> None:
    """No JSON value raises, in the parser or in what is drawn from it."""
    shown = plain_text(make_view(document), ascii_only=True)

    assert shown.isascii()


def test_odd_numbers_are_missing() -> None:
    """NaN, infinities, booleans and texts are no numbers."""
    lane = json.loads('{"limit": NaN, "in_flight": Infinity, "queued": true, "p50_s": "9"}')
    shot = parse_status({"lanes": {"a": lane}}).lanes[0]

    assert (None, None, None, None) == (shot.limit, shot.in_flight, shot.counts.queued, shot.p50_s)


def test_a_document_cannot_fill_the_memory() -> None:
    """Rows, alarms and histories are bounded whatever is sent."""
    shot = parse_status(
        {
            "lanes": {"a": {"history": [1.0] * 50_000}},
            "datasets": {str(i): {} for i in range(MAX_ROWS + 5)},
            "alarms": [{"text": "x" * 10_000}] * (MAX_ALARMS + 5),
        }
    )

    assert (1000, MAX_ROWS, MAX_ALARMS) == (
        len(shot.lanes[0].history), len(shot.datasets), len(shot.alarms),
    )  # fmt: skip
    assert 300 == len(shot.alarms[0].text)


def test_lists_with_names() -> None:
    """Entries may come as a list; the second of one name is left out."""
    shot = parse_status({"lanes": [{"name": "a", "queued": 3}, {"name": "a"}]})

    assert [("a", 3)] == [(lane.key, lane.counts.queued) for lane in shot.lanes]


def test_counts_add_up() -> None:
    """Done is what has an answer; the total is every state; unknown stays unknown."""
    counts = Counts(queued=1, generated=2, extracting=3, extracted=4, failed=5)

    assert (9, 1, 15) == (counts.done, counts.open, counts.total)
    assert Counts().done is None
    assert 2 == sum_counts((counts, Counts(queued=1))).queued


def test_full_at_becomes_a_duration() -> None:
    """`full_at` is shown as the time that is left at the moment of the document."""
    disk = parse_status({"at_ms": AT_MS, "disk": {"full_at": AT_MS + 60_000}}).disk

    assert disk is not None
    assert 60 == disk.full_s


def test_events_without_a_number_are_nothing() -> None:
    """An event needs its number; the rest may be missing."""
    assert parse_event({"kind": "alarm"}) is None
    assert parse_event("x") is None
    event = parse_event({"seq": 3})
    assert event is not None
    assert (3, "?", "") == (event.seq, event.kind, event.text)
