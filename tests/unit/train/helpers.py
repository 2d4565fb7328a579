"""Small corpora, frozen by the real merge from answers given by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagled.holdout import split_of
from eagled.store.records import Body, Frozen
from eagled.tokens import make_uid, pack_ids
from eagled.train.corpus import Corpus
from eagled.types import Finish
from eagled.workers.merge import merge_corpus

HOLDOUT = 0.5


@dataclass(frozen=True)
class Answer:
    """One sample: prompt and output ids, and the split that its conversation shall be in."""

    dataset: str
    prompt: Sequence[int]
    output: Sequence[int]
    split: str = "train"
    turn: int = 0
    talk: bytes = b""


class Answers:
    """A store in memory that hands out answers; tests change it between list and body."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.rows = {i: _body(i, a) for i, a in enumerate(answers, 1)}
        self.chunks: list[int] = []

    def freeze(self) -> list[Frozen]:
        """Return all, as of now."""
        return [Frozen(b.id, b.attempt, b.output.crc, 1) for b in self.rows.values()]

    def bodies(self, ids: Sequence[int]) -> Iterator[Body]:
        """Yield those that are still there."""
        self.chunks.append(len(ids))
        yield from (self.rows[i] for i in ids if i in self.rows)


def conversation_in(split: str, start: int) -> bytes:
    """Return a conversation uid that falls into a split at a holdout of one half."""
    for number in range(start * 1000, start * 1000 + 1000):
        uid = make_uid(str(number))
        if split_of(uid.hex(), HOLDOUT, 0) == split:
            return uid
    raise AssertionError(split)


def _body(number: int, answer: Answer) -> Body:
    talk = answer.talk or conversation_in(answer.split, number)
    uid = make_uid(talk, str(answer.turn))
    prompt, output = pack_ids(answer.prompt), pack_ids(answer.output)
    return Body(number, 1, uid, answer.dataset, talk, answer.turn, Finish.STOP, prompt, output)


def make_corpus(folder: Path, answers: Sequence[Answer]) -> Corpus:
    """Freeze answers into the next version below `folder`."""
    return merge_corpus(
        Answers(answers), folder / "corpora", holdout=HOLDOUT, seed=0, provenance={}
    ).corpus
