"""Texts of samples for screens: asked of a worker, never decoded in the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from eagled.control import reading
from eagled.control.reading import Piece, ReadDesk, ReadJob, ReadText
from eagled.control.wire import from_wire, to_wire
from eagled.text.reading import pieces
from eagled.tokens import pack_ids

PROMPT, OUTPUT = pack_ids([1, 5, 6]), pack_ids([7, 2])


async def test_a_worker_answers_the_reader() -> None:
    """What one asks another claims and settles; the text comes back to the one who asked."""
    desk = ReadDesk()
    claim = asyncio.create_task(desk.claim())
    await asyncio.sleep(0)
    asked = asyncio.create_task(desk.read(PROMPT, OUTPUT))
    (job,) = await claim
    text = ReadText(job.number, (Piece("hi", 3, special=False),), ())

    assert ReadJob(1, PROMPT, OUTPUT) == job
    assert 1 == desk.settle([text])
    assert text == await asked
    assert 0 == desk.settle([text])


async def test_without_a_worker_the_reason_comes_at_once() -> None:
    """No worker has ever asked: the reader gets words instead of waiting."""
    assert "no text worker is connected: ids only" == await ReadDesk().read(PROMPT, None)


async def test_a_worker_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that takes a request and dies costs the reader a bounded wait."""
    desk = ReadDesk()
    monkeypatch.setattr(reading, "ANSWER_WAIT_S", 0.05)
    claim = asyncio.create_task(desk.claim())
    await asyncio.sleep(0)
    answer = await desk.read(PROMPT, None)
    await claim

    assert isinstance(answer, str)
    assert "did not answer" in answer


def test_texts_travel() -> None:
    """A job and its text are the same after the wire."""
    job, text = ReadJob(3, PROMPT, None), ReadText(3, (Piece("a", 2, special=True),), ())

    assert job == from_wire(ReadJob, to_wire(job))
    assert text == from_wire(ReadText, to_wire(text))


def test_pieces_keep_characters_whole() -> None:
    """Neighbours are decoded together, special ids stand alone, counts add up."""
    raw = "a\u00e9\u4eca".encode()
    ids = [300, *raw, 300, 301]

    def decode(part: Sequence[int]) -> str:
        return "<s>" if part[0] >= 300 else bytes(part).decode("utf-8", "replace")

    found = list(pieces(ids, frozenset({300, 301}), decode))

    assert [
        ("<s>", 1, True),
        ("a\u00e9\u4eca", 6, False),
        ("<s>", 1, True),
        ("<s>", 1, True),
    ] == found


def test_an_id_that_cannot_be_decoded_is_shown_as_such() -> None:
    """One damaged piece does not hide the rest."""

    def decode(part: object) -> str:
        raise ValueError(part)

    assert [("<id 7><id 8>", 2, False)] == list(pieces([7, 8], frozenset(), decode))
