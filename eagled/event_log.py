"""The event log as data: an event as JSON, since when, and read from what a stopped run left.

The database is opened read-only, so that nothing of it changes; beside a daemon one asks that. What
is heavy is imported where it is used: `eagled events` has to start fast.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagled.errors import UsageError

if TYPE_CHECKING:
    from eagled.store.records import EventRow

_AGO = re.compile(r"(\d{1,6})(s|min|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_PAGE = 500


def event_json(row: EventRow) -> dict[str, Any]:
    """Return an event as the control API and `eagled events --json` show it."""
    return {
        "seq": row.seq,
        "at_ms": row.at_ms,
        "kind": row.kind.value,
        "subject": row.subject,
        "detail": row.detail,
        "uid": row.uid,
    }


def since_ms(text: str, now_ms: int) -> int:
    """Return the UTC milliseconds that a text means: 90s, 30min, 2h, 3d ago, or a date and time.

    Raises:
        UsageError: if it is none of them.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_ms - int(ago[1]) * _SECONDS[ago[2]] * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--since {text!r}: must be an age such as 90s, 30min, 2h or 3d, or a time such as "
            "2026-11-30 or 2026-11-30T08:00 (UTC unless it names a zone)"
        ) from None
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


def check_kinds(kinds: Collection[str]) -> frozenset[str]:
    """Return the kinds.

    Raises:
        UsageError: if one of them is none, naming all that are.
    """
    from eagled.types import EventKind

    if not kinds:
        return frozenset()
    known = {kind.value for kind in EventKind}
    if strange := sorted(set(kinds) - known):
        raise UsageError(
            f"--kind {strange[0]!r}: no such kind; there are {', '.join(sorted(known))}"
        )
    return frozenset(kinds)


def stored_events(database: Path, after: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events of a database with a number above `after`, oldest first.

    Raises:
        StoreError: if it is damaged, foreign, or of a newer eagled.
    """
    from eagled.store import StoreReader, queries

    with StoreReader(database) as reader:
        while rows := queries.events(reader.db, after, _PAGE):
            yield from map(event_json, rows)
            after = rows[-1].seq
