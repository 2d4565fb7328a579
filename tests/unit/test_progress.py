"""Rates and times left: quotients of what happened, or unknown."""

from __future__ import annotations

from eagled.progress import EVERY_S, SPAN_S, Point, Progress, time_left


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
