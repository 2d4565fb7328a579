"""From a dataset that a source named to its facts: card, rows, readers, lengths, whose answers.

Guarantee: whatever is wrong with one dataset (gated, gone, slow, broken, a card that lies) ends in
its own facts as a problem or a note; only a stop of the whole run gets out.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagled.discover.facts import Facts, Found, Problem
from eagled.discover.gate import Gate, HubFaultError, TimeUpError, is_transport, status_of
from eagled.discover.hub import Card, HubSource
from eagled.discover.licence import flags_of
from eagled.discover.local import open_local
from eagled.discover.native import CARD, ROWS, Native, native_of
from eagled.discover.sample import CHARS_PER_TOKEN, Mark, Probe, Sample, Taken
from eagled.errors import ArtifactError, ConfigError
from eagled.printable import printable
from eagled.readers.sources import Source
from eagled.readers.sources.remote import RemoteGoneError
from eagled.types import Mode

_TOO_MANY = 429
_NOT_FOUND, _REFUSED = (404, 410), (401, 403, 451)
_PLAIN = (".jsonl", ".ndjson", ".json")
_DETAIL_CHARS = 160


@dataclass(frozen=True, slots=True)
class Assessor:
    """What it takes to look at one dataset.

    Attributes:
        gate: carries the time limits.
        hub: where hub ids are asked for; None for a run without a hub.
        probe: how rows are looked at.
        target: name of the target, by which its own answers are told.
        timeout_s: longest time for one dataset.
        turns: how many threads may work on rows at once.
    """

    gate: Gate
    hub: HubSource | None
    probe: Probe
    target: str
    timeout_s: float
    turns: threading.Semaphore

    def assess(self, found: Found) -> tuple[Facts, list[Mark]]:
        """Return the facts of a dataset and the marks of its sampled questions.

        Raises:
            TimeUpError: if everything was stopped.
        """
        facts = Facts(found.source, found.local)
        with self.gate.within(self.timeout_s):
            try:
                card, source = self._open(found)
                facts = _with_card(facts, card)
                if source is None:
                    return _failed(facts, Problem.NO_FILES, "no file that eagled reads"), []
                return self._look(facts, card, source)
            except Exception as exc:
                if self.gate.stopped:
                    raise TimeUpError("stopped") from exc
                return _failed(facts, *_problem(exc, facts)), []

    def _open(self, found: Found) -> tuple[Card, Source | None]:
        if found.local:
            return open_local(found)
        if self.hub is None:
            raise ConfigError("this run asks no hub")
        return self.hub.open(found)

    def _look(self, facts: Facts, card: Card, source: Source) -> tuple[Facts, list[Mark]]:
        check = self.gate.deadline_check()
        taken = self.probe.take(source.rows(), check)
        if not taken.rows:
            return _failed(facts, Problem.EMPTY, "no row"), []
        native = native_of(
            self.target, taken.models(), len(taken.rows), card.text, Path(facts.source).name
        )
        mode = Mode.NATIVE if native.by in (ROWS, CARD) else Mode.REGENERATE
        with self.turns:
            sample = self.probe.look(facts.source, taken, mode, check)
        facts = _with_rows(facts, card.n_files, source, taken, self.probe)
        measured = self.probe.measure is not None
        return _with_sample(facts, sample, native, measured=measured), sample.marks


def _with_card(facts: Facts, card: Card) -> Facts:
    return dataclasses.replace(
        facts,
        revision=card.revision,
        config=card.config,
        split=card.split,
        files=card.files,
        rows=card.rows,
        rows_from=card.rows_from,
        size_bytes=card.size_bytes,
        licence=card.licence,
        licence_flags=flags_of(card.licence, card.text, gated=card.gated),
        gated=card.gated,
        modified=card.modified,
        downloads=card.downloads,
        notes=card.notes,
    )


def _with_rows(facts: Facts, n_files: int, source: Source, taken: Taken, probe: Probe) -> Facts:
    """Add the number of rows where nobody said it; note where the rows say something else."""
    n = len(taken.rows)
    ended = n < probe.rows and taken.chars < probe.chars
    whole = ended and len(source.files) == n_files
    notes = list(facts.notes)
    if whole and facts.rows_from in ("card", "viewer") and facts.rows != n:
        notes.append(f"{facts.rows_from} says {facts.rows:,} rows, the file has {n:,}")
    rows, rows_from = facts.rows, facts.rows_from
    if whole:
        rows, rows_from = n, "files"
    elif rows is None and facts.size_bytes and source.files[0][0].endswith(_PLAIN):
        rows, rows_from = round(facts.size_bytes * n / max(1, taken.chars)), "estimated"
    return dataclasses.replace(facts, rows=rows, rows_from=rows_from, notes=tuple(notes))


def _with_sample(facts: Facts, sample: Sample, native: Native, *, measured: bool) -> Facts:
    kept = max(1, sample.kept)
    measured = measured and bool(sample.first_chars)
    per_char = sample.lengths_sum() / sample.first_chars if measured else 1 / CHARS_PER_TOKEN
    broken = "" if sample.readers else Problem.NO_READER.value
    return dataclasses.replace(
        facts,
        problem=broken,
        detail=f"columns: {', '.join(sample.columns)}" if broken else "",
        columns=tuple(sample.columns),
        readers=dict(sample.readers.most_common()),
        sampled=sample.sampled,
        kept=sample.kept,
        kept_share=sample.kept_share,
        rejected=dict(sample.rejected.most_common()),
        unit="tokens" if measured else "characters",
        lengths=tuple(sorted(sample.lengths.items())),
        lanes=dict(sample.lanes),
        turns_mean=sample.turns / kept if sample.kept else 1.0,
        prompt_mean=sample.prompt_chars * per_char / sample.prompts if sample.prompts else None,
        answer_mean=sample.answer_chars * per_char / sample.answers if sample.answers else None,
        tools=sample.tools / kept,
        reasoning=sample.reasoning / kept,
        multi_turn=sample.multi_turn / kept,
        trajectory=sample.trajectory,
        native=native.by,
        native_detail=native.detail,
        swapped=sample.swapped,
        languages=dict(sample.languages.most_common()),
    )


def _failed(facts: Facts, problem: Problem, detail: str) -> Facts:
    return dataclasses.replace(
        facts, problem=problem.value, detail=printable(detail, _DETAIL_CHARS)
    )


def _problem(exc: Exception, facts: Facts) -> tuple[Problem, str]:
    """Return which problem an error is, and its innermost message."""
    chain = list(_causes(exc))
    kinds = (_kind(one, facts) for one in chain)
    kind = next((kind for kind in kinds if kind is not None), Problem.BROKEN)
    last = chain[-1]
    return kind, (str(last).splitlines() or [type(last).__name__])[0]


def _kind(exc: BaseException, facts: Facts) -> Problem | None:
    """Return what one error of a chain says by its class or HTTP status, None if nothing."""
    status = status_of(exc)
    by_class: tuple[tuple[bool, Problem], ...] = (
        (isinstance(exc, TimeUpError), Problem.TIMEOUT),
        (isinstance(exc, RemoteGoneError), Problem.GATED if facts.gated else Problem.GONE),
        (status == _TOO_MANY, Problem.RATE_LIMITED),
        (isinstance(exc, HubFaultError), Problem.UNREACHABLE),
        (status in _NOT_FOUND, Problem.GONE),
        (status in _REFUSED, _refused(exc)),
        (isinstance(exc, ArtifactError | ConfigError), Problem.BROKEN),
        (isinstance(exc, ConnectionError | TimeoutError) or is_transport(exc), Problem.UNREACHABLE),
    )
    return next((kind for holds, kind in by_class if holds), None)


def _refused(exc: BaseException) -> Problem:
    """Tell a gate from a dataset that is not there: without a token the hub says 401 for both."""
    from huggingface_hub import errors

    gone = isinstance(exc, errors.RepositoryNotFoundError)
    gated = isinstance(exc, errors.GatedRepoError)
    return Problem.GONE if gone and not gated else Problem.GATED


def _causes(exc: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = exc
    while seen is not None:
        yield seen
        seen = seen.__cause__
