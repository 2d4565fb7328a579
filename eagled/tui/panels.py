"""What the panels around the tables show, as lines; pure functions of a `View`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from eagled.tui.desk import BAD_EVENTS, Desk
from eagled.tui.lines import Line, Span, clip, plain, rule, spread
from eagled.tui.model import Alarm, Counts, Disk, Event, Extraction, Server, Snapshot
from eagled.tui.tables import DatasetRow, LaneRow, sum_series
from eagled.tui.text import (
    MISSING,
    bar,
    cells_of,
    chart,
    count,
    decimals,
    disk_bar,
    duration,
    fit,
    nice_top,
    percent,
    rate,
    size,
    spark,
    wrapped,
)

LABEL = 13  # cells of a panel's left column
_TIGHT = 0.9  # share of the budget from which the projection is a warning
_FULL_SERVERS = 4  # servers shown in full; more get a line each


@dataclass(frozen=True, slots=True)
class Link:
    """How old what is shown is, and why.

    `kind` is a word of the header. `age_s` is None before the first snapshot; `tries` and
    `reason` tell of a daemon that does not answer; `problem` of a document that cannot be shown.
    """

    kind: Literal[
        "CONNECTING", "LIVE", "LAGGING", "STALE", "FROZEN", "RESTARTED", "VERSION", "DENIED", "DEMO"
    ]
    age_s: float | None = None
    tries: int = 0
    down_s: float = 0.0
    reason: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that one frame of the screen is made from."""

    snapshot: Snapshot
    link: Link
    lanes: tuple[LaneRow, ...]
    datasets: tuple[DatasetRow, ...]
    events: tuple[Event, ...]
    span_s: float
    now_ms: int
    desk: Desk = field(default_factory=Desk)
    current: str = "overview"
    match: tuple[int, int] | None = None
    marks: frozenset[str] = field(default_factory=frozenset)

    @property
    def total_series(self) -> tuple[float, ...]:
        """Output tokens a second of all lanes together, oldest first."""
        return sum_series([row.series for row in self.lanes])


BuildPanel = Callable[[View, int, int], list[Line]]


def clock_text(ms: float | None) -> str:
    """Return a local time of day."""
    return "--:--:--" if ms is None else time.strftime("%H:%M:%S", time.localtime(ms / 1000))


def _link_span(link: Link) -> Span:
    if link.kind in {"LIVE", "DEMO", "RESTARTED"}:
        return f"{link.kind} {duration(link.age_s)}", "ok"
    if link.age_s is None:
        return link.kind, "warn"
    return f"{link.kind} {link.age_s:.0f} s", "bad" if link.kind in {
        "STALE",
        "VERSION",
        "DENIED",
    } else "warn"


def header(view: View, width: int) -> list[Line]:
    """Return the two lines at the top: who and how fresh, then where the work stands."""
    snapshot = view.snapshot
    n_alarms = len(snapshot.alarms)
    alarms: Span = (
        (f"  !{n_alarms} alarm{'s' * (n_alarms != 1)} ", "warn") if n_alarms else (" ", "")
    )
    left: Line = ((" eagled top", "title"), (" ▸ ", "dim"), (snapshot.run or MISSING, "bold"))
    if view.current != "overview":
        left = (*left, (f" ▸ {view.current}", "bold"))
    right: Line = (
        _link_span(view.link),
        (f"  up {duration(snapshot.uptime_s)}  {clock_text(view.now_ms)}", "dim"),
        alarms,
    )
    return [spread(left, right, width), clip(_second_line(view, width), width)]


def _second_line(view: View, width: int) -> Line:
    link = view.link
    if link.problem:
        return ((f" CANNOT SHOW THIS STATUS: {link.problem}", "bad"),)
    if link.tries:
        text = f" DAEMON UNREACHABLE for {duration(link.down_s)} (try {link.tries}): {link.reason}"
        return ((text, "bad"),)
    full = _stages(view.snapshot, short=False)
    return full if len(plain(full)) <= width else _stages(view.snapshot, short=True)


_FULL = ("waiting", "queued", "generating", "generated", "extracting", "extracted")
_SHORT = {"queue": "queued", "run": "generating", "done": "done", "ext": "extracted"}


def _stages(snapshot: Snapshot, *, short: bool) -> Line:
    totals: Counts = snapshot.totals
    flow = _SHORT if short else {name: name for name in _FULL}
    spans: list[Span] = [(f" {(snapshot.phase or MISSING).upper()}  ", "bold")]
    for label, name in flow.items():
        spans += [(f"{label} ", "dim"), (count(getattr(totals, name)), ""), (" ▸ ", "dim")]
    spans.pop()
    failed: Span = (count(totals.failed), "bad" if totals.failed else "")
    rejected: Span = (count(totals.rejected), "warn" if totals.rejected else "")
    spans += [("  fail " if short else "  failed ", "dim"), failed]
    spans += [("  rej " if short else "  rejected ", "dim"), rejected]
    return tuple(spans)


def _pair(label: str, *value: Span) -> Line:
    return ((fit(f"  {label}", LABEL), "dim"), *value)


def _server_word(server: Server) -> Span:
    word = (server.state or MISSING).upper()
    return word, "ok" if word == "UP" else "warn" if word in {"STARTING", "TRIAL"} else "bad"


def servers(view: View, width: int, _: int = 0) -> list[Line]:
    """Return the panel of the endpoints."""
    found = view.snapshot.servers
    lines = [rule("SERVER" if len(found) == 1 else f"SERVERS {len(found)}", width)]
    for server in found:
        word, style = _server_word(server)
        lines.append((("  ", ""), (fit(word, LABEL - 2), style), (server.label, "bold")))
        if len(found) <= _FULL_SERVERS:
            lines += _server_numbers(server)
        if server.note:
            lines.append(_pair("", (server.note, "warn")))
    if not found:
        lines.append(_pair("none told"))
    if found:
        lines.append(
            _pair("oldest", (duration(view.snapshot.oldest_s), ""), ("   running request", "dim"))
        )
    return lines


def _server_numbers(server: Server) -> list[Line]:
    faults: Span = (count(server.faults), "warn" if server.faults else "")
    waiting: Span = (count(server.waiting), "warn" if server.waiting else "")
    return [
        _pair("running", (count(server.running), ""), ("   waiting ", "dim"), waiting,
              ("   ours ", "dim"), (count(server.in_flight), "")),
        _pair("generating", (f"{rate(server.out_rate)} tok/s", ""), ("   faults ", "dim"), faults),
        _pair("KV cache", (f"{bar(server.kv_share, 20)} ", "bar"), (percent(server.kv_share), "")),
    ]  # fmt: skip


def _extraction_word(found: Extraction) -> Span:
    if found.paused:
        return "PAUSED", "warn"
    return found.state or MISSING, "bold"


def _sample_bytes(found: Extraction) -> float | None:
    return found.n_bytes / found.samples if found.n_bytes and found.samples else None


def extraction(view: View, width: int, _: int = 0) -> list[Line]:
    """Return the panel of the hidden states."""
    found = view.snapshot.extraction
    lines = [rule("EXTRACTION", width)]
    if found is None:
        return [*lines, _pair("none told")]
    workers = (
        f"   {count(found.workers)} worker{'s' * (found.workers != 1)}"
        if found.workers is not None
        else ""
    )
    lines += [
        _pair("state", _extraction_word(found), (workers, "dim")),
        _pair("done", (f"{count(found.samples)} samples   {count(found.shards)} shards", "")),
        _pair(
            "rate", (f"{rate(found.sample_rate)} samples/s   {rate(found.token_rate)} tok/s", "")
        ),
        _pair("size", (f"{size(found.n_bytes)}   {size(_sample_bytes(found))}/sample", "")),
        _pair("per token", (f"{count(found.bytes_per_token)} B", "")),
        _pair("ETA", (duration(found.eta_s), "")),
    ]
    if found.note:
        lines.append(_pair("", (found.note, "warn" if found.paused else "dim")))
    return lines


def training(view: View, width: int, _: int = 0) -> list[Line]:
    """Return the panel of a training run that goes on; nothing when there is none."""
    found = view.desk.trains
    if found is None or not found.runs(view.now_ms):
        return []
    age = (view.now_ms - (found.updated_ms or 0)) / 1000
    return [
        rule("TRAINING", width),
        _pair("run", (found.name or "", "bold"), (f"   wrote {duration(age)} ago", "dim")),
        _pair("step", (f"{count(found.step)} of {count(found.total)}", ""),
              ("   ETA ", "dim"), (duration(found.eta_s), "")),
        _pair("now", (f"loss {decimals(found.loss)}", ""),
              (f"   accepted {decimals(found.accept)}", "")),
    ]  # fmt: skip


def _compact_training(view: View) -> list[Line]:
    found = view.desk.trains
    if found is None or not found.runs(view.now_ms):
        return []
    numbers = f"  step {count(found.step)} of {count(found.total)}  loss {decimals(found.loss)}"
    return [((" train   ", "dim"), (found.name or "", "bold"),
             (f"{numbers}  ETA {duration(found.eta_s)}", ""))]  # fmt: skip


def _disk_total(found: Disk) -> float:
    """The budget, or the whole file system when there is none."""
    if found.budget:
        return found.budget
    return (found.used or 0) + (found.free or 0)


def _disk_line(found: Disk) -> float:
    """Where on the bar extraction has to stop, in bytes used."""
    reachable = (found.used or 0) + (found.free or 0) - (found.reserve or 0)
    return min(_disk_total(found), reachable) if found.free is not None else _disk_total(found)


def _at_end(found: Disk) -> float | None:
    return None if found.to_come is None else (found.used or 0) + found.to_come


def _end_share(found: Disk) -> float | None:
    total, end = _disk_total(found), _at_end(found)
    return None if end is None or total <= 0 else end / total


def _projection_style(share: float | None) -> Literal["", "warn", "bad"]:
    if share is None or share < _TIGHT:
        return ""
    return "bad" if share > 1 else "warn"


def _disk_bar(found: Disk, width: int) -> str:
    used, to_come = found.used or 0, max(0.0, found.to_come or 0)
    return disk_bar(used, to_come, _disk_line(found), _disk_total(found), width)


def disk(view: View, width: int, _: int = 0) -> list[Line]:
    """Return the panel of the disk governor."""
    found = view.snapshot.disk
    lines = [rule("DISK", width)]
    if found is None:
        return [*lines, _pair("none told")]
    share = _end_share(found)
    of = f" of {size(found.budget)} budget" if found.budget else ""
    lines += [
        _pair("used", (size(found.used), "bold"), (of, "dim")),
        (("  ", ""), (_disk_bar(found, max(0, width - 4)), "bar")),
        _pair(
            "at the end", (f"{size(_at_end(found))}   {percent(share)}", _projection_style(share))
        ),
        _pair("free", (size(found.free), ""), ("   reserve ", "dim"), (size(found.reserve), "")),
        _pair("full in", (duration(found.full_s), "warn" if found.full_s is not None else "")),
    ]
    if found.paused:
        lines.append(_pair("", ("extraction waits: ", "warn"), (found.note or MISSING, "warn")))
    return lines


def _alarm_style(alarm: Alarm) -> Literal["bad", "warn", "dim"]:
    if alarm.level in {"error", "critical", "crit", "bad"}:
        return "bad"
    return "dim" if alarm.level in {"info", "note"} else "warn"


def alarm_head(alarm: Alarm) -> Line:
    """Return the level of an alarm and since when it holds."""
    since = "" if alarm.since_ms is None else f" {clock_text(alarm.since_ms)[:5]}"
    return ((f"  {alarm.level.upper():<5}", _alarm_style(alarm)), (f"{since}  ", "dim"))


def _alarm_lines(alarm: Alarm, width: int) -> list[Line]:
    """An alarm in one or two lines."""
    head = alarm_head(alarm)
    indent = cells_of(plain(head))
    room = max(1, width - indent)
    first, rest = wrapped(alarm.text, room)
    lines: list[Line] = [(*head, (first, ""))]
    if rest:
        lines.append(((" " * indent, ""), (fit(rest, room), "")))
    return lines


def alarms(view: View, width: int, height: int) -> list[Line]:
    """Return the panel of alarms in at most `height` lines; what does not fit is counted."""
    found = view.snapshot.alarms
    lines = [rule(f"ALARMS {len(found) or ''}".rstrip(), width)]
    if not found:
        return [*lines, _pair("none")]
    for shown, alarm in enumerate(found):
        more = _alarm_lines(alarm, width)
        if len(lines) + len(more) + (shown + 1 < len(found)) > max(height, 2):
            lines.append(_pair(f"and {len(found) - shown} more"))
            break
        lines += more
    return lines


def throughput(view: View, width: int, height: int) -> list[Line]:
    """Return the chart of output tokens a second over all lanes, in `height` lines."""
    series = view.total_series
    top = nice_top(series)
    rows = max(1, min(10, height - 2))
    told = (series[-1] if series else None, _mean(series), max(series, default=None))
    now, mean, most = map(rate, told)
    lines = [rule("THROUGHPUT", width, f"now {now}   mean {mean}   max {most}")]
    for i, row in enumerate(chart(series, max(0, width - 9), rows, top)):
        label = rate(top) if i == 0 else "0" if i == rows - 1 else ""
        lines.append(((f"{label:>7} │"[:9], "dim"), (row, "spark")))
    ago = f"{duration(view.span_s)} ago"
    lines.append(
        spread((((" " * 9) + "out tok/s, all lanes", "dim"),), ((f"{ago} … now ", "dim"),), width)
    )
    return lines


def event_log(view: View, width: int, height: int) -> list[Line]:
    """Return the newest events that fit `height` lines, newest first."""
    lines = [rule("EVENTS", width)]
    room = max(0, height - 1)
    for event in reversed(view.events[-room:] if room else ()):
        at: Span = (f"  {clock_text(event.at_ms)}  ", "dim")
        kind: Span = (fit(event.kind, 20), event_style(event.kind))
        lines.append(clip((at, kind, (event.text, "")), width))
    return lines if view.events else [*lines, _pair("none yet")]


def event_style(kind: str) -> Literal["bad", ""]:
    """Return how a kind of event is drawn."""
    return "bad" if kind in BAD_EVENTS else ""


def _mean(series: Sequence[float]) -> float | None:
    return sum(series) / len(series) if series else None


def compact(view: View, width: int, _: int = 0) -> list[Line]:
    """Return server, extraction, training, disk, throughput and the first alarm, a line each."""
    snapshot = view.snapshot
    return [
        ((("─" * width), "dim"),),
        _compact_server(snapshot.servers),
        _compact_extraction(snapshot.extraction),
        *_compact_training(view),
        _compact_disk(snapshot.disk, width),
        _compact_rate(view),
        (*alarm_head(snapshot.alarms[0]), (snapshot.alarms[0].text, ""))
        if snapshot.alarms
        else ((" no alarms", "dim"),),
    ]


def _compact_server(found: Sequence[Server]) -> Line:
    if not found:
        return ((" server  ", "dim"), (MISSING, ""))
    first = found[0]
    more = f"  +{len(found) - 1} more" if len(found) > 1 else ""
    word, style = _server_word(first)
    numbers = (
        f"  run {count(first.running)} wait {count(first.waiting)}  KV {percent(first.kv_share)}"
        f"  {rate(first.out_rate)} tok/s"
    )
    return ((" server  ", "dim"), (word, style), (numbers, ""), (f"{more}  {first.label}", "dim"))


def _compact_extraction(found: Extraction | None) -> Line:
    if found is None:
        return ((" extract ", "dim"), (MISSING, ""))
    done = f"  {count(found.samples)} samples  {rate(found.sample_rate)}/s"
    numbers = f"{done}  ETA {duration(found.eta_s)}"
    note = f"  {found.note}" if found.note else ""
    return ((" extract ", "dim"), _extraction_word(found), (numbers, ""), (note, "dim"))


def _compact_disk(found: Disk | None, width: int) -> Line:
    if found is None:
        return ((" disk    ", "dim"), (MISSING, ""))
    share = _end_share(found)
    cells = max(0, min(20, width - 60))
    text = f"  {size(found.used)}, at the end {size(_at_end(found))}"
    of = f" of {size(_disk_total(found))}  {percent(share)}"
    return (
        (" disk    ", "dim"),
        (_disk_bar(found, cells), "bar"),
        (text, ""),
        (of, _projection_style(share) or "dim"),
    )


def _compact_rate(view: View) -> Line:
    series = view.total_series
    tail = f" {rate(series[-1] if series else None)} tok/s  max {rate(max(series, default=None))}"
    return (
        (" out/s   ", "dim"),
        (spark(series, 20), "spark"),
        (tail, ""),
        (f"  last {duration(view.span_s)}", "dim"),
    )
