"""All categories side by side: search the sources, look at each dataset once, keep what is found.

Guarantee: every category has its own few threads, so a slow one holds up no other; a dataset that
several categories find is looked at once; what goes wrong with one dataset or one search is in the
result, and nothing else is lost. After a stop the next run goes on from the cache.
Price: memory of one sample a thread (`Probe.chars`), a few dozen open connections.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from eagled.discover.assess import Assessor
from eagled.discover.cache import Cache
from eagled.discover.categories import Category
from eagled.discover.facts import Facts, Found, Problem
from eagled.discover.gate import TimeUpError
from eagled.discover.sample import Mark
from eagled.printable import printable

PER_CATEGORY = 4  # datasets looked at side by side in one category
_DETAIL_CHARS = 160


class Finder(Protocol):
    """A source of datasets: the hub, a catalogue, a folder."""

    @property
    def identity(self) -> Sequence[object] | None:
        """What names it in the cache; None if it is quicker to look than to remember."""

    def search(self, category: Category, limit: int) -> list[Found]:
        """Return datasets for a category, the best known first."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A dataset with its facts; `marks` reads those of its sampled questions."""

    found: Found
    facts: Facts
    marks: Callable[[], list[Mark]]


@dataclass(frozen=True, slots=True)
class Searched:
    """What a run found: candidates in the order of the categories, and searches that failed."""

    candidates: tuple[Candidate, ...]
    failures: tuple[str, ...] = ()


@dataclass(slots=True)
class _Shared:
    """Who looks at what; the first category that finds a dataset looks at it.

    `cause` is what ended the search first; everything that fails later may fail for the stop.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    done: dict[Found, Candidate] = field(default_factory=dict)
    claimed: set[Found] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    cause: BaseException | None = None

    def claim(self, found: Sequence[Found]) -> list[Found]:
        with self.lock:
            own = [f for f in dict.fromkeys(found) if f not in self.claimed]
            self.claimed.update(own)
        return own


@dataclass(frozen=True, slots=True)
class Search:
    """One run over categories and sources.

    Attributes:
        finders: where to search.
        assessor: looks at one dataset.
        cache: answers of earlier runs.
        limit: most datasets of one query.
        side_by_side: categories at once; 0 is all.
        progress: called with (done, known so far, name) after each dataset.
    """

    finders: Sequence[Finder]
    assessor: Assessor
    cache: Cache
    limit: int = 10
    side_by_side: int = 0
    progress: Callable[[int, int, str], None] = lambda _done, _known, _name: None

    def run(self, categories: Sequence[Category], known: Mapping[Found, Sequence[str]]) -> Searched:
        """Return what there is for the categories.

        Args:
            categories: what to search for.
            known: datasets that are looked at in any case, with their categories.
        """
        shared = _Shared()
        names: dict[Found, list[str]] = {found: list(of) for found, of in known.items()}
        with ThreadPoolExecutor(self.side_by_side or len(categories) + 1) as pool:
            first: Future[None] = pool.submit(self._look_at, list(known), shared)
            parts = {c.name: pool.submit(self._category, c, shared) for c in categories}
            every: list[Future[Any]] = [first, *parts.values()]
            try:
                for ended in wait(every, return_when=FIRST_EXCEPTION).done:
                    ended.result()
                for name, part in parts.items():
                    for found in part.result():
                        _add(names.setdefault(found, []), name)
            except BaseException as exc:  # noqa: BLE001 - raised again below
                cause = shared.cause or exc  # read before the stop, which fails the others, too
                self.assessor.gate.stop()
                pool.shutdown(wait=True, cancel_futures=True)
                raise cause from None
        candidates = tuple(_named(shared.done[found], of) for found, of in names.items())
        return Searched(candidates, tuple(shared.failures))

    def _category(self, category: Category, shared: _Shared) -> list[Found]:
        found: list[Found] = []
        for finder in self.finders:
            for piece in _pieces(category) if finder.identity is not None else [category]:
                try:
                    found += self._search(finder, piece)
                except Exception as exc:
                    if self.assessor.gate.stopped:
                        raise
                    text = f"{' '.join((category.name, *piece.queries))}: {exc}"
                    with shared.lock:
                        shared.failures.append(printable(text, _DETAIL_CHARS))
        found = list(dict.fromkeys(found))
        self._look_at(found, shared)
        return found

    def _search(self, finder: Finder, piece: Category) -> list[Found]:
        """Return what one query finds, from the cache if it knows."""
        if finder.identity is None or not piece.queries:
            return finder.search(piece, self.limit)
        question = [*finder.identity, piece.queries, piece.filters, self.limit]
        cached = self.cache.found(question)
        if cached is not None:
            return cached
        if self.cache.offline:
            raise TimeUpError("offline, and this search is not in the cache")
        with self.assessor.gate.within(self.assessor.timeout_s):
            found = finder.search(piece, self.limit)
        self.cache.put_found(question, found)
        return found

    def _look_at(self, found: Sequence[Found], shared: _Shared) -> None:
        own = shared.claim(found)
        with ThreadPoolExecutor(PER_CATEGORY) as pool:
            waiting: list[Future[None]] = [pool.submit(self._one, f, shared) for f in own]
            try:
                for future in waiting:
                    future.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _one(self, found: Found, shared: _Shared) -> None:
        try:
            candidate = self._candidate(found)
            with shared.lock:
                shared.done[found] = candidate
                counts = len(shared.done), len(shared.claimed)
            self.progress(*counts, found.source)
        except BaseException as exc:
            with shared.lock:
                shared.cause = shared.cause or exc
            self.assessor.gate.stop()  # at once: the others must not go on until somebody looks
            raise

    def _candidate(self, found: Found) -> Candidate:
        if found.local:
            facts, marks = self.assessor.assess(found)
            return Candidate(found, facts, lambda: marks)
        facts_or_none = self.cache.facts(found)
        if facts_or_none is None and self.cache.offline:
            facts_or_none = Facts(found.source, problem=Problem.NOT_CACHED.value,
                                  detail="offline, and not in the cache")  # fmt: skip
        if facts_or_none is None:
            facts_or_none, marks = self.assessor.assess(found)
            self.cache.put(found, facts_or_none, marks)
        return Candidate(found, facts_or_none, lambda: self.cache.marks(found))


def _pieces(category: Category) -> list[Category]:
    """Return the searches of a category, one query each, and its own datasets first."""
    own = dataclasses.replace(category, queries=())
    queries = (dataclasses.replace(own, datasets=(), queries=(q,)) for q in category.queries)
    return [own, *queries]


def _add(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)


def _named(candidate: Candidate, categories: Sequence[str]) -> Candidate:
    facts = dataclasses.replace(candidate.facts, categories=tuple(categories))
    return dataclasses.replace(candidate, facts=facts)
