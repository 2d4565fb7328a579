"""Panels in the states that the example run is not in."""

from __future__ import annotations

from typing import Any

import pytest

from eagled.tui import panels
from eagled.tui.lines import Line, plain
from eagled.tui.records import parse_training
from eagled.tui.tables import dataset_table, lane_table
from eagled.tui.views import total_lines
from tests.unit.tui.answers import ANSWERS
from tests.unit.tui.doubles import AT_MS, make_view, status


def _text(lines: list[Line]) -> str:
    return "\n".join(plain(line).rstrip() for line in lines)


def _with(section: str, **changes: Any) -> dict[str, Any]:
    return status(**{section: {**status()[section], **changes}})


@pytest.mark.parametrize(
    ("state", "style"),
    [("up", "ok"), ("trial", "warn"), ("starting", "warn"), ("down", "bad"), ("stuck", "bad")],
)
def test_a_servers_state_is_a_word(state: str, style: str) -> None:
    """Each state of an endpoint is told by its word, with what is wrong below it."""
    server = {**status()["servers"][0], "state": state, "error": "connection refused"}
    lines = panels.servers(make_view(status(servers=[server])), 54)

    assert (state.upper(), style) == (lines[1][1][0].strip(), lines[1][1][1])
    assert "connection refused" in _text(lines)


def test_many_servers_get_a_line_each() -> None:
    """More endpoints than fit in full are one line each."""
    servers = [{"url": f"http://h{i}:1", "state": "up"} for i in range(9)]

    assert 11 == len(panels.servers(make_view(status(servers=servers)), 54))


def test_paused_extraction_says_why() -> None:
    """A pause of extraction shows its reason, in both layouts."""
    view = make_view(_with("extraction", state="paused", paused=True, reason="by the operator"))

    assert "PAUSED" in _text(panels.extraction(view, 54))
    assert "by the operator" in _text(panels.extraction(view, 54))
    assert "PAUSED" in _text(panels.compact(view, 80))


def test_disk_over_budget_is_bad() -> None:
    """A projection over the budget is marked, and so is the time until the room ends."""
    view = make_view(_with("disk", projected_bytes=7e12, full_at=AT_MS + 7_200_000))
    lines = panels.disk(view, 54)

    assert "11.6 TB   111%" in _text(lines)
    assert "bad" == lines[3][1][1]
    assert "full in    2h00" in _text(lines)


def test_disk_that_stopped_extraction() -> None:
    """When the governor holds extraction back, the panel says so and why."""
    view = make_view(_with("disk", paused=True, reason="reserve would be touched"))

    assert "extraction waits: reserve would be touched" in _text(panels.disk(view, 54))


def test_nothing_measured_yet() -> None:
    """Before the first shard there is no projection, and none is invented."""
    view = make_view(_with("disk", projected_bytes=None, full_at=None))
    text = _text(panels.disk(view, 54))

    assert "at the end \u2013   \u2013" in text
    assert "▒" not in text


def test_alarms_that_do_not_fit_are_counted() -> None:
    """Alarms beyond the panel's height are counted, none silently dropped."""
    many = [
        {"kind": "k", "level": "error", "text": f"alarm {i}", "since_ms": AT_MS} for i in range(9)
    ]
    lines = panels.alarms(make_view(status(alarms=many)), 54, 5)

    assert 5 == len(lines)
    assert "and 6 more" in _text(lines)
    assert "ERROR" in _text(lines)
    assert "none" in _text(panels.alarms(make_view(status(alarms=[])), 54, 5))


def test_critical_lane_is_marked() -> None:
    """The lane that ends last carries the mark, a paused one never."""
    view = make_view()
    assert [False, True] == [row.critical for row in view.lanes]

    document = status()
    document["lanes"]["long"]["paused"] = True
    assert [False, False] == [row.critical for row in make_view(document).lanes]


def _training(**changes: Any) -> str:
    view = make_view()
    view.desk.trains = parse_training({**ANSWERS["/v1/training"], **changes})
    return _text([*panels.training(view, 54), *panels.compact(view, 80)])


def test_training_is_told_while_it_goes_on() -> None:
    """A run that writes has its panel and its line; one that is done or silent has neither."""
    told = _training()

    assert "step       60 of 152   ETA 2m20" in told
    assert " train   v001  step 60 of 152  loss 6.000" in told
    for changes in ({"done": True}, {"name": None}, {"updated_ms": AT_MS - 601_000}):
        assert "v001" not in _training(**changes)


def test_what_is_held_has_no_time_left() -> None:
    """While everything is held no lane, dataset or total claims a time, nor is one critical."""
    view = make_view(status(phase="paused"))
    rows = [plain(line) for _, line in lane_table(view.lanes, 79).rows]
    rows += [plain(line) for _, line in dataset_table(view.datasets, 79).rows]

    assert ["–"] * 12 == [row.split()[-1].rstrip("◂") for row in rows]  # noqa: RUF001 - a dash
    assert [False, False] == [row.critical for row in view.lanes]
    assert "everything is held" in _text(total_lines(view))
