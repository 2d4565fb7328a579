"""Rates and times left: quotients of what happened, or unknown."""

from __future__ import annotations

from dataclasses import replace

from eagled.progress import EVERY_S, SPAN_S, Before, Point, Progress, time_left


def _point(at: float, done: int, rate: float = 0.0) -> Point:
    return Point(at, {"short": rate}, {"lane:short": done}, done, done * 10, done * 1000)


def test_a_rate_is_growth_over_time() -> None:
    """Ten seconds and twenty samples are two a second; tokens and bytes likewise."""
    progress = Progress()
    for at, done in ((0.0, 5), (5.0, 15), (10.0, 25)):
        progress.add(_point(at, done))

    assert (2.0, 2.0, 20.0, 2000.0) == (
        progress.finish_rate("lane:short"),
        progress.extract_rate(),
        progress.shard_token_rate(),
        progress.shard_byte_rate(),
    )


def test_what_is_not_known_is_none() -> None:
    """No points, too short a time, nothing grown: no rate and no time left."""
    progress = Progress()
    progress.add(_point(0.0, 5))
    one = progress.finish_rate("lane:short")
    progress.add(_point(5.0, 6))
    short = progress.finish_rate("lane:short")
    progress.add(_point(20.0, 6))

    assert (None, None, 0.05, None) == (
        one,
        short,
        progress.finish_rate("lane:short"),
        progress.finish_rate("lane:long"),
    )
    assert (None, 0.0, 20.0) == (time_left(5, None), time_left(0, None), time_left(10, 0.5))


def test_memory_and_span_are_bounded() -> None:
    """A day of points leaves a quarter of an hour of them."""
    progress = Progress()
    for i in range(int(86_400 / EVERY_S)):
        progress.add(_point(i * EVERY_S, i, rate=float(i)))

    assert int(SPAN_S / EVERY_S) == len(progress.out_history("short"))
    assert 86_400 / EVERY_S - 1 == progress.out_history("short")[-1]


def test_a_history_grows_after_it_was_asked_for() -> None:
    """What was told before a point, or done to it since, is not what is told after it."""
    progress = Progress()
    progress.add(_point(0.0, 0, rate=1.0))
    progress.out_history("short").append(9.0)
    before = progress.out_history("short")
    progress.add(_point(5.0, 0, rate=2.0))

    assert ([1.0], [1.0, 2.0]) == (before, progress.out_history("short"))


def test_after_a_restart_the_rate_is_the_one_before() -> None:
    """At once it is the former one; what is measured since takes over within the span."""
    progress = Progress(Before({"lane:short": 2.0}))
    at_once = progress.finish_rate("lane:short")
    progress.add(_point(0.0, 100))
    progress.add(_point(120.0, 100))
    without_one = progress.finish_rate("lane:short")
    whole = Progress(Before({"lane:short": 2.0}))
    for i in range(int(SPAN_S / EVERY_S) + 2):
        whole.add(_point(i * EVERY_S, 5 * i))

    assert 2.0 == at_once
    assert without_one is not None
    assert 0.5 < without_one < 1.0
    assert 1.0 == round(whole.finish_rate("lane:short") or 0, 1)


def test_time_that_a_lane_was_held_does_not_count() -> None:
    """Ten seconds with twenty samples are two a second, whatever pause came between."""
    progress = Progress()
    for at, done, held in (
        (0.0, 0, ""),
        (10.0, 20, "lane:short"),
        (400.0, 20, ""),
        (410.0, 40, ""),
    ):
        progress.add(replace(_point(at, done), held=frozenset({held})))

    assert (2.0, 0.1) == (
        progress.finish_rate("lane:short"), round(progress.extract_rate() or 0, 1),
    )  # fmt: skip


def test_the_history_goes_on_after_a_restart() -> None:
    """What came before stands first; together they are not longer than the span."""
    long = [3.0] * int(SPAN_S / EVERY_S)
    progress = Progress(Before(histories={"short": [1.0, 2.0], "long": long}))
    progress.add(_point(0.0, 1, rate=5.0))

    assert [1.0, 2.0, 5.0] == progress.out_history("short")
    assert [*long[1:], 0.0] == progress.out_history("long")
