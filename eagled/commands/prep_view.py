"""What `eagled prep` and `eagled profile` show: progress while they work, tables at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from eagled.commands.common import human_seconds, progress_line, say, say_table
from eagled.errors import ArtifactError, UsageError
from eagled.printable import printable

if TYPE_CHECKING:
    from eagled.config import Config
    from eagled.cuts import Capacity, Cut
    from eagled.profile import LengthProfile
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


def read_profiles(config: Config, names: Sequence[str]) -> dict[str, LengthProfile]:
    """Return the prompt lengths of prepared datasets by name.

    Raises:
        UsageError: if there is no dataset to look at.
        ArtifactError: if one is not prepared.
    """
    from eagled.paths import StatePaths
    from eagled.profile import read_profile

    if not names:
        raise UsageError("no dataset is configured: add [[datasets]] with name and source")
    root = StatePaths(config.run.state_dir).datasets
    for name in names:
        if not (root / config.dataset(name).name).is_dir():
            raise ArtifactError(f"dataset {name} is not prepared: run `eagled prep {name}` first")
    return {name: read_profile(root / name) for name in names}


def say_profile(
    profiles: Mapping[str, LengthProfile], capacity: Capacity, reply_tokens: int,
    found: Sequence[Cut], chosen: Cut,
) -> None:  # fmt: skip
    """Print histograms, the table of cuts, and the one to take."""
    from eagled.profile import table

    for name, item in profiles.items():
        say(table(name, item))
    say("")
    say(f"what a context of the short lane costs, with answers of {reply_tokens:,} tokens:")
    headers = ("context", "short", "long", "no lane", "tight answers", "short at once",
               "long at once", "waves", "")  # fmt: skip
    rows = [(cut.context, cut.short, cut.long, cut.none, cut.tight, cut.short_at_once,
             cut.long_at_once, cut.waves, "← proposed" if cut is chosen else "")
            for cut in found]  # fmt: skip
    say_table(headers, rows)
    if capacity.kv_tokens is None:
        say("no server told its KV memory: give it with --kv-tokens to compare cuts by speed")
    else:
        context = f", context {capacity.context:,}" if capacity.context else ""
        say(f"KV memory {capacity.kv_tokens:,} tokens{context}; waves: answers one after another")
    say(f"proposed context of the short lane: {chosen.context}")


def profile_json(
    profiles: Mapping[str, LengthProfile], capacity: Capacity, reply_tokens: int,
    found: Sequence[Cut], chosen: Cut,
) -> dict[str, Any]:  # fmt: skip
    """Return lengths, cuts and the proposal for `--json`."""
    return {
        "datasets": {name: item.to_json() for name, item in profiles.items()},
        "server": asdict(capacity),
        "reply_tokens": reply_tokens,
        "cuts": [asdict(cut) for cut in found],
        "proposed_cut": chosen.context,
    }
