"""The pass that renders: rows in, parts with finished lines out, then one folder.

Guarantee: a chunk's lines are one frame, and chunks end at places that depend on the rows alone;
parts end between chunks. So the folder has the same bytes whether or not prep was killed in
between, and whatever the number of processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

from eagled.errors import EagledError
from eagled.prepared import CONVERSATIONS_NAME, KEYS_NAME, NEAR_NAME, REJECTS_NAME, ZSTD_LEVEL
from eagled.readers.sources import SourceRow
from eagled.workers.preparation.chunks import chunks_of
from eagled.workers.preparation.crew import Done
from eagled.workers.preparation.ledger import Ledger, pack_keys
from eagled.workers.preparation.messages import Kept, Rendered
from eagled.workers.preparation.parts import Counts, Part, Parts
from eagled.workers.preparation.stage import Questions, Size, Stage, remember, total_of

Rows = Callable[[int], Iterator[SourceRow]]  # the rows behind the first n


@dataclass(slots=True)
class _Open:
    """The part that is being filled."""

    counts: Counts = field(default_factory=Counts)
    size: Size = field(default_factory=Size)
    questions: Questions = field(default_factory=Questions)
    rejects: list[bytes] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)


class LinePass:
    """Renders rows until there are no more or `count` are kept.

    Attributes:
        counts: of the finished parts.
        before: counts of rows that an earlier pass left out, for the progress.
    """

    def __init__(self, stage: Stage, ledger: Ledger, before: Counts) -> None:
        self._stage = stage
        self._ledger = ledger
        self._before = before
        self._count = stage.job.dataset.count
        self.counts = Counts()
        self._parts = Parts(stage.folder, "lines", self._seen)

    @property
    def parts(self) -> list[Part]:
        """The finished parts."""
        return self._parts.done

    @property
    def reached(self) -> bool:
        """Whether as many rows were kept as are wanted."""
        return bool(self._count) and self.counts.kept >= self._count

    def run(self, rows: Rows) -> None:
        """Render what is left of the rows."""
        if self._parts.finished:
            return
        stage, part = self._stage, _Open()
        chunks = chunks_of(rows(self.counts.rows))
        try:
            for done in stage.crew.work(stage.job, chunks, self._ledger.judge):
                self._add(part, done)
                if stage.teller.due():
                    stage.teller.tell(total_of(self._before, self.counts, part.counts))
                if self._count and self.counts.kept + part.counts.kept >= self._count:
                    break
                if part.size.full:
                    full, part = part, _Open()
                    self._write(full, last=False)
        except BaseException:
            self._save(part)
            raise
        self._write(part, last=True)

    def _seen(self, part: Part, counts: Counts, _: Mapping[str, object]) -> None:
        """Take in a part that an earlier run finished."""
        self.counts.add(counts)
        remember(self._ledger, part)

    def _add(self, part: _Open, done: Done) -> None:
        """Take in a chunk, up to the row that fills the count; rows behind it count nowhere."""
        assert done.rendered is not None  # noqa: S101 - `judge` gives a verdict for every chunk
        noted = self._ledger.noted(done.chunk)
        room = self._count - self.counts.kept - part.counts.kept if self._count else None
        rendered = _first(done.rendered, room)
        part.size.add(len(done.chunk.rows), done.chunk.weight)
        part.frames.append(rendered.frame)
        for place, outcome in enumerate(rendered.rows):
            kept = isinstance(outcome, Kept)
            if place in noted:
                part.questions.add(noted[place], kept=kept)
            if isinstance(outcome, Kept):
                part.counts.keep(outcome)
            else:
                part.rejects.append(part.counts.refuse(done.chunk.rows[place], outcome))

    def _save(self, part: _Open) -> None:
        """Write an open part because the pass ends early; what cannot be written is done again."""
        if part.counts.rows:
            with contextlib.suppress(EagledError, OSError):
                self._write(part, last=False)

    def _write(self, part: _Open, *, last: bool) -> None:
        sections = {
            "lines": b"".join(part.frames),
            "rejects": b"".join(part.rejects),
            **part.questions.sections(),
        }
        self._parts.write(part.counts, sections, last=last)
        self.counts.add(part.counts)


def _first(rendered: Rendered, most: int | None) -> Rendered:
    """Return a chunk up to its `most`-th kept row."""
    places = [i for i, row in enumerate(rendered.rows) if isinstance(row, Kept)]
    if most is None or len(places) <= most:
        end = len(rendered.rows) if most is None or len(places) < most else places[-1] + 1
        return Rendered(rendered.number, rendered.rows[:end], rendered.frame)
    text = zstandard.ZstdDecompressor().decompress(rendered.frame)
    lines = itertools.islice(text.split(b"\n"), most)
    frame = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(
        b"".join(line + b"\n" for line in lines)
    )
    return Rendered(rendered.number, rendered.rows[: places[most - 1] + 1], frame)


def assemble(first: Sequence[Part], lines: Sequence[Part], folder: Path) -> Mapping[str, str]:
    """Write the files of a prepared dataset from its parts; return their SHA-256.

    Args:
        first: parts of the choice, whose rejects come first.
        lines: parts of the rendering pass.
        folder: where the files go.
    """
    hashes = {
        CONVERSATIONS_NAME: _write(folder / CONVERSATIONS_NAME, _sections(lines, "lines")),
        REJECTS_NAME: _write(folder / REJECTS_NAME, _sections([*first, *lines], "rejects")),
        KEYS_NAME: _write(folder / KEYS_NAME, map(_kept_keys, lines)),
    }
    if any(part.index["signatures"][1] for part in lines):
        hashes[NEAR_NAME] = _write(folder / NEAR_NAME, map(_kept_signatures, lines))
    return hashes


def _sections(parts: Sequence[Part], name: str) -> Iterator[bytes]:
    return (part.section(name) for part in parts)


def _kept_keys(part: Part) -> bytes:
    return pack_keys([noted.key for noted, kept in Questions.of(part).each() if kept])


def _kept_signatures(part: Part) -> bytes:
    kept = (noted for noted, kept in Questions.of(part).each() if kept)
    return b"".join(noted.signature for noted in kept if noted.signature is not None)


def _write(path: Path, pieces: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for data in pieces:
            digest.update(data)
            file.write(data)
    return digest.hexdigest()
