"""What the daemon remembers of answered calls is bounded in number and in bytes."""

from __future__ import annotations

import pytest

from eagled.control import calls
from eagled.control.calls import REMEMBERED, Replies


async def _answer(replies: Replies, key: str, body: bytes) -> None:
    replies.answered(key, replies.open(key), body, 200)


async def _known(replies: Replies, *keys: str) -> list[bytes | None]:
    found = [replies.get(key) for key in keys]
    return [None if future is None else (await future)[0] for future in found]


async def test_an_answer_is_given_again_as_it_was() -> None:
    """Body and status of the first call; another answer for the same key changes nothing."""
    replies = Replies()
    future = replies.open("a")
    replies.answered("a", future, b"first", 409)
    replies.answered("a", future, b"second", 200)

    assert (b"first", 409) == await future
    assert future is replies.get("a")


async def test_large_answers_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go, the newest stays even when it is larger than all that may be kept."""
    monkeypatch.setattr(calls, "REMEMBERED_BYTES", 100)
    replies = Replies()
    for number in range(5):
        await _answer(replies, f"k{number}", bytes([number]) * 40)

    assert [None, None, None, b"\3" * 40, b"\4" * 40] == await _known(
        replies, *(f"k{number}" for number in range(5))
    )
    await _answer(replies, "huge", b"x" * 1000)
    assert [None, None, b"x" * 1000] == await _known(replies, "k3", "k4", "huge")


async def test_a_call_that_still_runs_is_not_forgotten_for_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever repeats it meanwhile waits for its answer, whatever others were answered."""
    monkeypatch.setattr(calls, "REMEMBERED_BYTES", 10)
    replies = Replies()
    running = replies.open("slow")
    for number in range(5):
        await _answer(replies, f"k{number}", b"x" * 40)

    assert running is replies.get("slow")


async def test_small_answers_are_bounded_by_their_number() -> None:
    """The last ones stay."""
    replies = Replies()
    for number in range(REMEMBERED + 2):
        await _answer(replies, f"k{number}", b"")

    assert [None, None, b""] == await _known(replies, "k0", "k1", "k2")


async def test_who_waits_is_answered_although_the_key_was_forgotten() -> None:
    """More calls at once than are remembered: the first one's answer still comes."""
    replies = Replies()
    first = replies.open("first")
    for number in range(REMEMBERED):
        replies.open(f"k{number}")
    replies.answered("first", first, b"x", 200)

    assert replies.get("first") is None
    assert (b"x", 200) == await first
