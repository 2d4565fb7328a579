"""Choose rows by chance in one pass over a source of any length.

The method: each question gets a ticket, the keyed BLAKE2b hash of its identity (key: `run.seed`);
the rows with the smallest tickets are chosen. So every row has the same chance, the choice is the
same for any order of the source and any number of processes, and a row keeps its ticket when
others come or go. A quarter more than wanted (and 64) are chosen, because the template refuses a
few; they are prepared in the order of their tickets until enough are kept.

Guarantee: memory is a heap of that many tickets; the rows themselves lie in parts on disk, of
which only those are written that could still be chosen at that moment. A killed pass goes on
behind its last part.
"""

from __future__ import annotations

import contextlib
import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import zstandard

from eagled.errors import EagledError
from eagled.readers.sources import SourceRow
from eagled.workers.preparation.chunks import chunks_of
from eagled.workers.preparation.crew import Done
from eagled.workers.preparation.ledger import Ledger
from eagled.workers.preparation.messages import Chunk, Passed, Refused, Screened
from eagled.workers.preparation.parts import Counts, Part, Parts
from eagled.workers.preparation.stage import Questions, Size, Stage, remember, total_of

_SPARE_SHARE = 1.25
_SPARE_ROWS = 64
_LEVEL = 1  # most rows are written and never read


@dataclass(slots=True)
class _Open:
    """The part that is being filled; `tickets` holds (ticket, start, size) within `rows`."""

    counts: Counts = field(default_factory=Counts)
    passed: int = 0
    size: Size = field(default_factory=Size)
    questions: Questions = field(default_factory=Questions)
    rejects: list[bytes] = field(default_factory=list)
    rows: bytearray = field(default_factory=bytearray)
    tickets: list[tuple[int, int, int]] = field(default_factory=list)


def _as_json(row: SourceRow) -> bytes:
    """Return a row that has passed; what JSON cannot hold is in no field that a reader took."""
    kept = (row.file, row.number, row.value, row.detail)
    return json.dumps(kept, default=lambda _: None).encode("ascii")


class Choice:
    """The first pass: what was chosen, and where it lies.

    Attributes:
        counts: of the rows that cannot be chosen, all parts together.
        passed: rows that could.
    """

    def __init__(self, stage: Stage, ledger: Ledger) -> None:
        self._stage = stage
        self._ledger = ledger
        self._keep = int(stage.job.dataset.count * _SPARE_SHARE) + _SPARE_ROWS
        self._salt = str(stage.job.config.run.seed).encode()
        self._heap: list[tuple[int, int, int, int, int]] = []  # -ticket, -order, part, start, size
        self._order = 0
        self._refused: dict[int, Mapping[int, Refused]] = {}
        self.counts = Counts()
        self.passed = 0
        self._parts = Parts(stage.folder, "choice", self._seen)

    @property
    def parts(self) -> list[Part]:
        """The finished parts; each has a section `rejects`."""
        return self._parts.done

    def _seen(self, part: Part, counts: Counts, extra: Mapping[str, Any]) -> None:
        """Take in a part that an earlier run finished."""
        remember(self._ledger, part)
        self._account(counts, extra["passed"])
        for ticket, start, size in extra["tickets"]:
            self._enter(ticket, part.number, start, size)

    def run(self) -> None:
        """Look at what is left of the source."""
        if self._parts.finished:
            return
        stage, part = self._stage, _Open()
        rows = stage.rows(skip=self.counts.rows + self.passed)
        try:
            for done in stage.crew.work(stage.job, chunks_of(rows), self._judge):
                self._add(part, done)
                if stage.teller.due():
                    stage.teller.tell(self._shown(part), "choosing")
                if part.size.full:
                    full, part = part, _Open()
                    self._write(full, last=False)
        except BaseException:
            with contextlib.suppress(EagledError, OSError):  # what cannot be written is done again
                self._write(part, last=False)
            raise
        self._write(part, last=True)

    def chosen(self, *, skip: int) -> Iterator[SourceRow]:
        """Yield the chosen rows in the order of their tickets, behind the first `skip`."""
        unpack = zstandard.ZstdDecompressor().decompress
        for _, _, number, start, size in sorted(self._heap, reverse=True)[skip:]:
            part = self._parts.done[number]
            data = part.piece(part.index["rows"][0] + start, size)
            file, place, value, detail = json.loads(unpack(data))
            yield SourceRow(file, place, value, None, detail)

    def _judge(self, chunk: Chunk, screened: Screened) -> None:
        """Compare a chunk with what was before; nothing is rendered in this pass."""
        self._refused[chunk.number] = self._ledger.judge(chunk, screened).refused

    def _add(self, part: _Open, done: Done) -> None:
        """Take in a chunk: rows that can still be chosen are put by."""
        refused = self._refused.pop(done.chunk.number)
        noted = self._ledger.noted(done.chunk)
        part.size.add(len(done.chunk.rows), done.chunk.weight)
        for place, (row, looked) in enumerate(
            zip(done.chunk.rows, done.screened.rows, strict=True)
        ):
            reject = looked if isinstance(looked, Refused) else refused.get(place)
            if isinstance(reject, Refused):
                part.rejects.append(part.counts.refuse(row, reject))
            elif isinstance(looked, Passed):
                part.questions.add(noted[place], kept=False)
                part.passed += 1
                self._put_by(part, row, looked)

    def _put_by(self, part: _Open, row: SourceRow, passed: Passed) -> None:
        ticket = self._ticket(passed)
        if len(self._heap) >= self._keep and -ticket < self._heap[0][0]:
            return
        data = zstandard.ZstdCompressor(level=_LEVEL).compress(_as_json(row))
        start = len(part.rows)
        part.rows += data
        part.tickets.append((ticket, start, len(data)))
        self._enter(ticket, len(self._parts.done), start, len(data))

    def _ticket(self, passed: Passed) -> int:
        digest = blake2b(passed.identity, digest_size=8, key=self._salt).digest()
        return int.from_bytes(digest, "big")

    def _enter(self, ticket: int, part: int, start: int, size: int) -> None:
        """Put a row into the heap, whose root is the worst ticket (of two equal ones the later)."""
        entry = (-ticket, -self._order, part, start, size)
        self._order += 1
        if len(self._heap) < self._keep:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def _write(self, part: _Open, *, last: bool) -> None:
        sections = {
            "rows": bytes(part.rows),
            "rejects": b"".join(part.rejects),
            **part.questions.sections(),
        }
        extra = {"passed": part.passed, "tickets": part.tickets}
        self._parts.write(part.counts, sections, last=last, extra=extra)
        self._account(part.counts, part.passed)

    def _account(self, counts: Counts, passed: int) -> None:
        self.counts.add(counts)
        self.passed += passed

    def _shown(self, part: _Open) -> Counts:
        shown = total_of(self.counts, part.counts)
        shown.rows += self.passed + part.passed
        return shown
