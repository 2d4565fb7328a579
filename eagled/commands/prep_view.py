"""What `eagled prep` and `eagled profile` show: progress while they work, tables at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from eagled.commands.common import human_seconds, progress_line, say, say_table
from eagled.printable import printable

if TYPE_CHECKING:
    from eagled.workers.preparation.progress import PrepProgress
    from eagled.workers.prepare import PrepResult

_LOG_EVERY_S = 5.0
_SHOWN_REASONS = 3


class PrepDisplay:
    """Shows progress on standard error: one changing line, or a line every few seconds in a log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s: float | None = None

    def __call__(self, progress: PrepProgress) -> None:
        """Show a report if it is time for it."""
        if sys.stderr.isatty():
            progress_line("" if progress.ended else progress_text(progress))
            return
        now = self._clock()
        if self._last_s is None:
            self._last_s = now  # a dataset that is done in a moment needs no line
        if progress.ended or now - self._last_s >= _LOG_EVERY_S:
            self._last_s = now
            sys.stderr.write(progress_text(progress) + "\n")
            sys.stderr.flush()


def progress_text(progress: PrepProgress) -> str:
    """Return a report as one line."""
    parts = [f"{progress.rows:,} rows", f"{progress.kept:,} kept"]
    rejected = Counter(progress.rejected)
    if rejected:
        most = ", ".join(f"{reason} {n:,}" for reason, n in rejected.most_common(_SHOWN_REASONS))
        more = ", …" if len(rejected) > _SHOWN_REASONS else ""
        parts.append(f"{rejected.total():,} rejected ({most}{more})")
    if progress.rows_per_s is not None:
        parts.append(f"{progress.rows_per_s:,.0f} rows/s")
    if progress.left_s is not None and not progress.ended:
        parts.append(f"about {human_seconds(progress.left_s)} left")
    doing = "" if progress.doing == "preparing" else f" ({progress.doing})"
    return printable(f"{progress.dataset}{doing}: " + ", ".join(parts))


def say_results(results: Sequence[PrepResult]) -> None:
    """Print the table of prepared datasets, and below it why rows were left out."""
    lanes = list(dict.fromkeys(lane for result in results for lane in result.lanes))
    headers = ("dataset", "mode", "rows", "kept", "rejected", "turns", "tokens", *lanes, "state")
    say_table(headers, [_row(result, lanes) for result in results])
    for result in results:
        for reason, n in sorted(result.rejected.items(), key=lambda item: (-item[1], item[0])):
            say(f"  {result.dataset}: {n:,} rejected: {reason}")
        near = result.flags.get("near_duplicate", 0)
        if near:
            say(f"  {result.dataset}: {near:,} kept rows nearly equal an earlier question")
        if result.wanted > result.kept:
            say(f"  {result.dataset}: {result.wanted:,} were wanted, the source gave no more")


def _row(result: PrepResult, lanes: Sequence[str]) -> list[object]:
    split = [result.lanes.get(lane, 0) for lane in lanes]
    rejected = sum(result.rejected.values())
    state = "was there" if result.skipped else "prepared"
    return [result.dataset, result.mode.value, result.rows, result.kept, rejected, result.turns,
            result.tokens, *split, state]  # fmt: skip


def result_json(result: PrepResult) -> dict[str, Any]:
    """Return what became of a dataset for `--json`."""
    return {
        "dataset": result.dataset,
        "folder": str(result.folder),
        "mode": result.mode.value,
        "rows": result.rows,
        "kept": result.kept,
        "wanted": result.wanted,
        "turns": result.turns,
        "tokens": result.tokens,
        "lanes": dict(result.lanes),
        "rejected": dict(result.rejected),
        "flags": dict(result.flags),
        "skipped": result.skipped,
    }
