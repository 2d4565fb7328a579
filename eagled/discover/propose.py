"""Mixes for a goal: one made from what was found, and the known ones beside it.

Guarantee: no dataset gives more than its rows that are kept and that no other of the mix has; what
is left out is left out for a reason that is written down. A number that nobody measured is None.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from eagled import mix as known_mixes
from eagled.discover import licence
from eagled.discover.categories import Category
from eagled.discover.facts import Facts
from eagled.discover.native import CARD, ROWS
from eagled.discover.rank import Ranked
from eagled.types import Mode

PROPOSED = "proposed"
_PER_CATEGORY = 2
_SAME = 0.5  # of its questions: then it is the same dataset in other clothes
_MARGIN = 1.1  # rows wanted for each row of the mix: some are lost later
_ROUNDING = 1e-6  # so that 1,100 rows give 1,000
_LEAST = 100  # fewer conversations of a dataset are not worth a section,
_SMALL = 20  # unless the whole goal is small: then a part of it
_READ_FACTOR = 20  # of a very large dataset only so many times the count is read
_LARGE_BYTES = 4 << 30
_NOT_NAME = re.compile(r"[^a-z0-9._-]+")
_NAME_CHARS = 48


@dataclass(frozen=True, slots=True)
class Entry:
    """One dataset of a mix.

    Attributes:
        name: of its section.
        source: hub id or path.
        category: what it is for.
        count: conversations.
        reason: why it is in, and why so many.
        mode: whose answers count.
        settings: further settings of its section.
        shuffle: whether its rows are chosen by chance.
    """

    name: str
    source: str
    category: str
    count: int
    reason: str
    mode: str = Mode.REGENERATE.value
    settings: Mapping[str, str | int | Sequence[str]] = field(default_factory=dict)
    shuffle: bool = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """A mix; `trade` says what choosing it means."""

    name: str
    title: str
    trade: str
    entries: Sequence[Entry]

    @property
    def count(self) -> int:
        """Conversations of the mix."""
        return sum(entry.count for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that the proposed mix leaves out, and why."""

    source: str
    why: str


def propose(
    ranked: Sequence[Ranked], categories: Sequence[Category], goal: int
) -> tuple[Proposal, list[Rejected]]:
    """Return the mix made from what was found, and what it leaves out."""
    titles = {c.name: c.title for c in categories}
    chosen, rejected = _choose(ranked, categories)
    counts = _shares(chosen, categories, goal)
    while small := [s for s, n in counts.items() if n < min(_LEAST, goal // _SMALL)]:
        worst = min(small, key=lambda source: counts[source])
        rejected.append(Rejected(worst, f"it would give only {counts[worst]:,} conversations"))
        chosen = [(item, name) for item, name in chosen if item.facts.source != worst]
        counts = _shares(chosen, categories, goal)
    names = Counter[str]()
    entries = [
        _entry(item, titles[category], counts[item.facts.source], names)
        for item, category in chosen
    ]
    trade = (
        "made from what was found: licences that forbid commercial use, copies and broken sets "
        "are left out"
    )
    title = "Proposed mix"
    return Proposal(PROPOSED, title, trade, tuple(entries)), rejected


def _choose(
    ranked: Sequence[Ranked], categories: Sequence[Category]
) -> tuple[list[tuple[Ranked, str]], list[Rejected]]:
    """Return who is in, with the category each is for, and who is not."""
    places = {c.name: _PER_CATEGORY for c in categories}
    chosen: list[tuple[Ranked, str]] = []
    rejected = []
    for item in ranked:
        flaw = _unfit(item, [other.facts.source for other, _ in chosen])
        free = [name for name in _home(item.facts, categories) if places.get(name)]
        if flaw:
            rejected.append(Rejected(item.facts.source, flaw))
        elif not free:
            rejected.append(Rejected(item.facts.source, _full(item, chosen, categories)))
        else:
            places[free[0]] -= 1
            chosen.append((item, free[0]))
    return chosen, rejected


def _unfit(item: Ranked, chosen: Sequence[str]) -> str:
    facts = item.facts
    if item.flaw:
        return item.flaw
    if facts.source in chosen:
        return "in the mix already, with another configuration"
    if blocking := [flag for flag in facts.licence_flags if flag in licence.BLOCKING]:
        return f"licence {facts.licence or 'not given'}: {', '.join(blocking)}"
    for name, share in facts.overlap.items():
        if name in chosen and share >= _SAME:
            return f"{share:.0%} of its questions are in {name}"
    return ""


def _home(facts: Facts, categories: Sequence[Category]) -> list[str]:
    """Return a dataset's categories, those first that list it or want what it has."""

    def order(category: Category) -> tuple[bool, bool]:
        has = {"tools": facts.tools, "reasoning": facts.reasoning,
               "native": float(bool(facts.native))}  # fmt: skip
        return facts.source not in category.datasets, has.get(category.want, 0.0) <= _SAME

    return [c.name for c in sorted(categories, key=order) if c.name in facts.categories]


def _full(
    item: Ranked, chosen: Sequence[tuple[Ranked, str]], categories: Sequence[Category]
) -> str:
    home = _home(item.facts, categories)
    others = [other.facts.source for other, name in chosen if name in home]
    return f"{item.score:.0f} points; {', '.join(others)} rank higher in {', '.join(home)}"


def available(facts: Facts, chosen: Sequence[str]) -> int | None:
    """Return the rows that a dataset can give beside others of a mix; None while not known."""
    if facts.rows is None:
        return None
    shared = max((s for name, s in facts.overlap.items() if name in chosen), default=0.0)
    return int(facts.rows * facts.kept_share * (1 - shared) / _MARGIN + _ROUNDING)


def _shares(
    chosen: Sequence[tuple[Ranked, str]], categories: Sequence[Category], goal: int
) -> dict[str, int]:
    """Return the count of each: by weight, at most what it has; the rest goes to the others."""
    weights = {c.name: c.weight for c in categories}
    members = Counter(name for _, name in chosen)
    points = {item.facts.source: weights[name] / members[name] for item, name in chosen}
    sources = [item.facts.source for item, _ in chosen]
    room = {item.facts.source: available(item.facts, sources) for item, _ in chosen}
    counts: dict[str, int] = {}
    left, open_ = goal, [s for s in sources if points[s] > 0]
    while open_:
        total = sum(points[s] for s in open_)
        full = [s for s in open_ if (most := room[s]) is not None
                and most <= left * points[s] / total]  # fmt: skip
        if not full:
            counts.update({s: int(left * points[s] / total) for s in open_})
            break
        counts.update({s: room[s] or 0 for s in full})
        left -= sum(room[s] or 0 for s in full)
        open_ = [s for s in open_ if s not in full]
    return _rounded({s: counts.get(s, 0) for s in sources}, room, goal)


def _rounded(
    counts: Mapping[str, int], room: Mapping[str, int | None], goal: int
) -> dict[str, int]:
    """Return counts as a person would write them, together the goal where there is room."""
    out = {s: n if n == room[s] else n - n % _step(n) for s, n in counts.items()}
    for source, most in room.items():
        missing = goal - sum(out.values())
        out[source] += missing if most is None else max(0, min(missing, most - out[source]))
    return out


def _step(n: int) -> int:
    return 100 if n >= 1000 else 10 if n >= 100 else 1  # noqa: PLR2004 - two figures remain


def _entry(item: Ranked, title: str, count: int, names: Counter[str]) -> Entry:
    facts = item.facts
    native = facts.native in (ROWS, CARD)
    settings: dict[str, str | int | Sequence[str]] = {}
    if facts.config:
        settings["config"] = facts.config
    if facts.split and facts.split != "train":
        settings["split"] = facts.split
    if facts.revision:
        settings["revision"] = facts.revision
    if facts.files:
        settings["files"] = tuple(facts.files)
    if facts.trajectory and not native:
        settings["turns"] = 1
    large = facts.rows and (facts.size_bytes or 0) > _LARGE_BYTES
    if large and (facts.rows or 0) > _READ_FACTOR * count:
        settings["read_rows"] = _READ_FACTOR * count
    return Entry(
        name=_name(facts.source, names),
        source=facts.source,
        category=title,
        count=count,
        reason=". ".join(reasons(item)),
        mode=(Mode.NATIVE if native else Mode.REGENERATE).value,
        settings=settings,
        shuffle=not (facts.rows is not None and count >= facts.rows),
    )


def reasons(item: Ranked) -> Iterator[str]:
    """Say what speaks for a dataset, and what to look at."""
    facts = item.facts
    rows = "an unknown number of rows" if facts.rows is None else f"{facts.rows:,} rows"
    yield f"{item.score:.0f} points: {rows}, {facts.kept_share:.0%} kept, reader {facts.reader}"
    shares = {"calls tools": facts.tools, "reasons": facts.reasoning}
    if has := [f"{share:.0%} {what}" for what, share in shares.items() if share]:
        yield ", ".join(has)
    if facts.native:
        yield f"answers of the target itself: {facts.native_detail}"
    if facts.licence_flags:
        yield f"licence {facts.licence or 'not given'} ({', '.join(facts.licence_flags)})"
    else:
        yield f"licence {facts.licence}"
    if facts.overlap:
        name, share = next(iter(facts.overlap.items()))
        yield f"{share:.0%} of its questions are in {name}"


def _name(source: str, names: Counter[str]) -> str:
    bare = _NOT_NAME.sub("-", source.rstrip("/").rsplit("/", 1)[-1].lower()).strip("-._")
    bare = bare[:_NAME_CHARS] or "dataset"
    names[bare] += 1
    return bare if names[bare] == 1 else f"{bare}-{names[bare]}"


def alternatives(goal: int, facts: Mapping[str, Facts]) -> list[Proposal]:
    """Return the known mixes, scaled to the goal; none takes more rows than there are."""
    return [_scaled(known, goal, facts) for known in known_mixes.MIXES.values()]


def _scaled(known: known_mixes.Mix, goal: int, facts: Mapping[str, Facts]) -> Proposal:
    entries = []
    for group in known.groups:
        for entry in group.entries:
            wanted = max(1, round(entry.count * goal / known.count))
            own = facts.get(entry.source)
            most = None if own is None or own.problem else available(own, ())
            entries.append(
                Entry(
                    name=entry.name,
                    source=entry.source,
                    category=group.title,
                    count=wanted if most is None else min(wanted, most),
                    reason=entry.note,
                    mode=entry.mode.value,
                    settings=entry.settings,
                    shuffle=entry.shuffle,
                )
            )
    return Proposal(known.name, f"The mix {known.name}", known.text, tuple(entries))


def to_mix(proposal: Proposal) -> known_mixes.Mix:
    """Return a proposal in the form that writes configuration."""
    groups: dict[str, list[known_mixes.MixEntry]] = {}
    for entry in proposal.entries:
        made = known_mixes.MixEntry(
            entry.name, entry.source, entry.count, entry.reason, Mode(entry.mode), entry.shuffle,
            entry.settings,
        )  # fmt: skip
        groups.setdefault(entry.category, []).append(made)
    parts = tuple(known_mixes.MixGroup(title, tuple(items)) for title, items in groups.items())
    return known_mixes.Mix(proposal.name, f"{proposal.title}: {proposal.trade}.", parts)
