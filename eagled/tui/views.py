"""What the views beyond the first show; pure functions of the view, the size and the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from eagled.tui import panels
from eagled.tui.desk import KNOBS, Desk
from eagled.tui.eta import eta_range, total_of
from eagled.tui.lines import Column, Line, Span, choose, head_line, row_line, rule
from eagled.tui.page import BuildPage, PageText
from eagled.tui.panels import View
from eagled.tui.records import Cause, PlanOption, Sample
from eagled.tui.tables import LaneRow, dataset_table, lane_table, limit_text
from eagled.tui.text import (
    MISSING,
    bar,
    chart,
    count,
    decimals,
    duration,
    fit,
    nice_top,
    percent,
    rate,
    size,
    spark,
    wrapped,
)  # fmt: skip

VIEWS = ("overview", "lanes", "samples", "failures", "disk", "events", "datasets", "training")


def _fact(label: str, *value: Span) -> Line:
    return ((fit(f"  {label}", 13), "dim"), *value)


def _told(text: str, width: int, *, label: str = "", style: Span = ("", "")) -> list[Line]:
    """Text in at most three lines."""
    lines: list[Line] = []
    rest = text
    while rest and len(lines) < 3:  # noqa: PLR2004 - more would push the rows out
        head, rest = wrapped(rest, max(8, width - 14))
        lines.append(_fact(label if not lines else "", (head, style[1])))
    return lines


def _problem(desk: Desk, name: str) -> list[Line]:
    text = desk.problems.get(name)
    return [((f"  not up to date: {text}", "bad"),)] if text else []


# --- lanes


def _range(eta_s: float | None, series: Sequence[float]) -> str:
    found = eta_range(eta_s, series)
    return f"   10%–90%: {duration(found[0])}–{duration(found[1])}" if found else ""  # noqa: RUF001 - a range


def total_lines(view: View) -> list[Line]:
    """Return when everything is through, and which lane decides that."""
    total = total_of(view.snapshot.lanes)
    left = any(lane.counts.open for lane in view.snapshot.lanes)
    if left and view.snapshot.held:
        return [_fact("all lanes", ("everything is held: P goes on", "warn"))]
    if total.at_rates is None:
        unknown = "not known yet: too little was measured" if left else "nothing is left to answer"
        why = "paused" if total.paused else unknown
        return [_fact("all lanes", (why, "dim"))]
    last = next(row for row in view.lanes if row.lane.key == total.last)
    lines = [
        _fact("all lanes", (duration(total.at_rates), "bold"),
              (_range(total.at_rates, last.series), ""), ("   at each lane's rate", "dim"))
    ]  # fmt: skip
    if total.critical is not None:
        shared = f"{duration(total.shared)} if its rate grows as others end"
        lines.append(_fact("critical", (f"{last.lane.label} ◂  ", "bold"), (shared, "dim")))
    if total.paused:
        lines.append(_fact("", (f"{total.paused} paused lanes are not counted", "warn")))
    return lines


def _lane_facts(row: LaneRow, width: int) -> list[Line]:
    lane, counts = row.lane, row.lane.counts
    ended = (counts.done or 0) + (counts.failed or 0) + (counts.rejected or 0)
    share = ended / counts.total if counts.total else None
    state = "PAUSED" if lane.paused else "HELD" if row.held else "RUNNING"
    eta_s = None if lane.paused or row.held else lane.eta_s
    return [
        rule(f"LANE {lane.label}", width, state),
        (("  ", ""), (bar(share, max(4, width - 22)), "bar"), (f"  {percent(share)}", "")),
        _fact("ETA", (duration(eta_s), "bold"), (_range(eta_s, row.series), "")),
        _fact("limit", (limit_text(lane.limit), ""), ("   goes for ", "dim"),
              (count(lane.target), ""), (f"   {lane.target_reason or ''}", "dim")),
        _fact("share", (rate(lane.share), ""), ("   the limit costs ", "dim"),
              (percent(lane.limit_costs), "")),
        _fact("context", (count(lane.context), ""), ("   p50 ", "dim"), (duration(lane.p50_s), ""),
              ("   p95 ", "dim"), (duration(lane.p95_s), "")),
        _fact("out tok/s", (spark(row.series, max(8, width - 34)), "spark"),
              (f"  max {rate(max(row.series, default=None))}", "dim")),
    ]  # fmt: skip


def _running(view: View, lane: str, width: int) -> list[Line]:
    desk = view.desk
    rows = desk.running if desk.running_lane == lane else ()
    rows = tuple(sorted(rows, key=lambda s: s.updated_ms or 0))
    lines = [rule(f"RUNNING {len(rows) or ''}".rstrip(), width, "oldest first")]
    sized = choose(_SAMPLE_COLUMNS, width - 1)
    return [*lines, *(row_line(sized, (s, view.now_ms)) for s in rows[:100])]


def lanes(view: View, width: int, _: int, selected: str | None) -> PageText:
    """Return all lanes, and everything about the selected one."""
    table = lane_table(view.lanes, width)
    row = next((r for r in view.lanes if r.lane.key == selected), None)
    bottom = total_lines(view)
    if row is not None:
        bottom = [*bottom, *_lane_facts(row, width), *_running(view, row.lane.key, width)]
    return PageText("LANES", [k for k, _ in table.rows], lambda i: table.rows[i][1],
                    _problem(view.desk, "lanes"), table.head, bottom)  # fmt: skip


# --- samples

_Timed = tuple[Sample, int]


def _age(row: _Timed, _: int) -> Span:
    at = row[0].updated_ms
    return duration(None if at is None else max(0.0, (row[1] - at) / 1000)), ""


def _sample_state(row: _Timed, _: int) -> Span:
    state = row[0].state
    bad = state in {"failed", "rejected", "cancelled"}
    return state, "bad" if bad else "ok" if state == "extracted" else ""


_SAMPLE_COLUMNS: tuple[Column[_Timed], ...] = (
    Column("SAMPLE", 12, lambda r, _: (r[0].uid, "bold"), grow=4, right=False),
    Column("STATE", 10, _sample_state, right=False),
    Column("LANE", 6, lambda r, _: (r[0].lane or MISSING, ""), rank=4, grow=4, right=False),
    Column("DATASET", 12, lambda r, _: (r[0].dataset, ""), rank=3, grow=16, right=False),
    Column("TURN", 4, lambda r, _: (count(r[0].turn), "dim"), rank=7),
    Column("TRY", 3, lambda r, _: (count(r[0].attempt), "dim"), rank=6),
    Column("PROMPT", 6, lambda r, _: (count(r[0].n_prompt), ""), rank=5),
    Column("ANSWER", 6, lambda r, _: (count(r[0].n_output), ""), rank=2),
    Column("AGE", 6, _age, rank=1),
    Column("WHY", 8, lambda r, _: (r[0].reason or r[0].finish or "", "warn"), rank=8, grow=30,
           right=False),
)  # fmt: skip


def samples(view: View, width: int, _: int, selected: str | None) -> PageText:
    """Return one page of samples, and what is wrong with the selected one."""
    desk, rows = view.desk, view.desk.samples
    sized = choose(_SAMPLE_COLUMNS, width - 1)
    chosen = next((s for s in rows if s.uid == selected), None)
    bottom: list[Line] = []
    if chosen is not None:
        bottom = [rule(f"SAMPLE {chosen.uid[:16]}", width, f"{chosen.dataset}  {chosen.state}")]
        bottom += _told(chosen.detail or chosen.reason or "no fault", width, label="told")
    page = f"page {len(desk.starts)}, {len(rows)} shown"
    top = [*_problem(desk, "samples"), (("  filter ", "dim"), (desk.wanted.words(), "bold"),
           (f"   {page}", "dim"))]  # fmt: skip
    empty = desk.empty("samples", "no sample matches; / filters")
    return PageText("SAMPLES", [s.uid for s in rows],
                    lambda i: row_line(sized, (rows[i], view.now_ms)), top, head_line(sized),
                    bottom, empty, marks=view.marks)  # fmt: skip


# --- failures


def _bad(value: float | None) -> Span:
    return count(value), "bad"


_CAUSE_COLUMNS: tuple[Column[Cause], ...] = (
    Column("REASON", 16, lambda c, _: (c.reason, "bold"), grow=6, right=False),
    Column("COUNT", 6, lambda c, _: _bad(c.n)),
    Column("DATASET", 12, lambda c, _: (c.dataset, ""), rank=2, grow=14, right=False),
    Column("STATE", 8, lambda c, _: (c.state, ""), rank=4, right=False),
    Column("TOK IN", 9, lambda c, _: (count(c.tokens_in), ""), rank=5, grow=2),
    Column("TOK OUT", 9, lambda c, _: (count(c.tokens_out), ""), rank=3, grow=2),
    Column("RETRY", 6, lambda c, _: (duration(c.retry_s), ""), rank=1),
    Column("WHAT", 10, lambda c, _: (c.pattern, "dim"), rank=6, grow=60, right=False),
)


def price(cause: Cause) -> str:
    """Return what trying a cause again may cost, in words."""
    tokens = f"{count(cause.tokens_in)} tokens in, {count(cause.tokens_out)} out"
    time = "time not known" if cause.retry_s is None else f"about {duration(cause.retry_s)}"
    return f"{tokens}, {time} at the present rate"


def failures(view: View, width: int, _: int, selected: str | None) -> PageText:
    """Return what was given up, by cause, and the price of trying again."""
    desk, rows = view.desk, view.desk.causes
    sized = choose(_CAUSE_COLUMNS, width - 1)
    chosen = next((c for c in rows if c.key == selected), None)
    bottom: list[Line] = []
    if chosen is not None:
        bottom = [rule(f"{chosen.reason}  {count(chosen.n)}", width, chosen.cause)]
        bottom += _told(chosen.pattern or MISSING, width, label="what")
        bottom += _told(chosen.detail or MISSING, width, label="newest")
        bottom += _told(price(chosen), width, label="retry")
    total = sum(c.n or 0 for c in rows)
    top = [*_problem(view.desk, "failures"), (("  given up ", "dim"), (count(total), "bold"),
           (f"   in {len(rows)} groups", "dim"))]  # fmt: skip
    empty = desk.empty("failures", "nothing was given up")
    return PageText("FAILURES BY CAUSE", [c.key for c in rows], lambda i: row_line(sized, rows[i]),
                    top, head_line(sized), bottom, empty)  # fmt: skip


# --- disk


def _fits(option: PlanOption, _: int) -> Span:
    known = {True: ("fits", "ok"), False: ("NO", "bad"), None: (MISSING, "dim")}
    return known[option.fits]  # type: ignore[return-value] # the words above are styles


_OPTION_COLUMNS: tuple[Column[PlanOption], ...] = (
    Column("OPTION", 10, lambda o, _: (o.name, "bold"), grow=4, right=False),
    Column("TO COME", 8, lambda o, _: (size(o.bytes_left), "")),
    Column("FITS", 5, _fits, right=False),
    Column("FULL IN", 7, lambda o, _: (duration(o.full_s), ""), rank=2),
    Column("B/TOKEN", 7, lambda o, _: (count(o.bytes_per_token), ""), rank=3),
    Column("KEPT", 5, lambda o, _: (percent(o.kept), ""), rank=4),
    Column("HOW", 14, lambda o, _: (o.words, "dim"), rank=1, grow=60, right=False),
)


def _knob_line(desk: Desk, name: str) -> Line:
    now = desk.asked.get(name, "")
    spans: list[Span] = [(" ", "bold"), (fit(f"  {name}", 15), "dim")]
    for value in KNOBS[name]:
        word = value or "as it is"
        spans.append(
            (f" [{word}]" if value == now else f"  {word} ", "bold" if value == now else "")
        )
    return tuple(spans)


def disk(view: View, width: int, _: int, selected: str | None) -> PageText:
    """Return the disk, the ways to store what is to come, and the what-if."""
    plan, desk = view.desk.plan, view.desk
    knobs = [f"knob {name}" for name in KNOBS]
    options = plan.options if plan is not None else ()
    keys = [*knobs, *(f"option {o.name}" for o in options)]
    sized = choose(_OPTION_COLUMNS, width - 1)

    def row(i: int) -> Line:
        if i < len(knobs):
            return _knob_line(desk, knobs[i].split()[1])
        return row_line(sized, options[i - len(knobs)])

    bottom: list[Line] = []
    chosen = next((o for o in options if f"option {o.name}" == selected), None)
    if chosen is not None:
        bottom = [rule(chosen.name, width, size(chosen.bytes_left)),
                  *_told(chosen.trade or "what holds now", width, label="price")]  # fmt: skip
        for group in sorted(chosen.groups, key=lambda g: -(g.n_bytes or 0))[:5]:
            bottom.append(_fact(group.lane, (f"{size(group.n_bytes)}  ", ""), (group.dataset, "")))
    if plan is not None:
        bottom += _told(plan.why, width, label="advice")
    top = [*_problem(desk, "disk"), *panels.disk(view, width)[1:]]
    return PageText("WHAT IF: left and right change, nothing is done until w", keys, row, top,
                    head_line(sized), bottom)  # fmt: skip


# --- events, datasets, training


def _alarm_lines(view: View, width: int) -> list[Line]:
    lines: list[Line] = [rule(f"ALARMS {len(view.snapshot.alarms) or 'none'}", width)]
    for alarm in view.snapshot.alarms[:6]:
        seen = "seen" if alarm.acknowledged else "NEW"
        lines.append((*panels.alarm_head(alarm), (f"{seen:<5} ", "dim"), (alarm.text, "")))
    return lines


def events(view: View, width: int, _: int, __: str | None) -> PageText:
    """Return the event log, oldest first, and the alarms below."""
    desk = view.desk
    rows = [event for event in view.events if desk.passes(event)]

    def row(i: int) -> Line:
        event = rows[i]
        who: Span = (f" {'user ' + str(event.uid) if event.uid >= 0 else '':<10}", "dim")
        kind: Span = (fit(event.kind, 20), panels.event_style(event.kind))
        return ((" ", "bold"), (f" {panels.clock_text(event.at_ms)}", "dim"), who,
                kind, (event.text, ""))  # fmt: skip

    find = f"   containing {desk.find!r}" if desk.find else ""
    top: list[Line] = [(("  show ", "dim"), (desk.level, "bold"), (find, ""),
                        (f"   newest {len(view.events)} kept", "dim"))]  # fmt: skip
    return PageText("EVENTS", [str(e.seq) for e in rows], row, top, (),
                    _alarm_lines(view, width), "no event matches")  # fmt: skip


def datasets(view: View, width: int, _: int, selected: str | None) -> PageText:
    """Return all datasets, and the selected one's samples by state."""
    table = dataset_table(view.datasets, width)
    row = next((r.dataset for r in view.datasets if r.dataset.key == selected), None)
    bottom: list[Line] = []
    if row is not None:
        bottom = [rule(f"DATASET {row.label}", width, row.mode or "")]
        total = row.counts.total or 0
        for name in row.counts.__dataclass_fields__:
            n = getattr(row.counts, name)
            if n:
                share = n / total if total else None
                line: Line = (_fact(name, (f"{count(n):>10} ", ""), (bar(share, 24), "bar"),
                                    (f" {percent(share)}", "dim")))  # fmt: skip
                bottom.append(line)
    return PageText("DATASETS", [k for k, _ in table.rows], lambda i: table.rows[i][1], (),
                    table.head, bottom)  # fmt: skip


def training(view: View, width: int, height: int, _: str | None) -> PageText:
    """Return how the newest training run goes."""
    found, desk = view.desk.training, view.desk
    top = _problem(desk, "training")
    if found is None or found.name is None:
        return PageText(
            "TRAINING",
            top=top,
            empty=desk.empty("training", "no run yet: `eagled train` begins one"),
        )
    last = found.steps[-1] if found.steps else None
    age = None if found.updated_ms is None else max(0.0, (view.now_ms - found.updated_ms) / 1000)
    state = "done" if found.done else f"wrote {duration(age)} ago"
    if last is not None:
        top += [
            _fact("run", (found.name, "bold"), (f"   {state}", "dim")),
            _fact("step", (f"{count(last.step)} of {count(found.total)}", ""),
                  (f"   epoch {count(last.epoch)}   ETA {duration(found.eta_s)}", "dim")),
            _fact("now", (f"loss {decimals(last.loss)}   accepted {decimals(last.accept)}", ""),
                  (f"   {rate(last.tok_rate)} tok/s   lr {last.lr or 0:.1e}", "dim")),
        ]  # fmt: skip
    rows = max(2, min(10, (height - len(top) - 8) // 2))
    top += _curve("LOSS", [s.loss for s in found.steps], width, rows)
    top += _curve("TOKENS A VERIFY STEP (on training rows)", [s.accept for s in found.steps],
                  width, rows)  # fmt: skip
    keys = [str(i) for i in range(len(found.estimates))]

    def row(i: int) -> Line:
        step, length = found.estimates[i]
        return ((" ", "bold"), (f" step {count(step):>8}   ", "dim"), (f"{length:.3f} tokens", ""))

    return PageText("HELD-OUT ESTIMATES", keys, row, top, empty="none yet")


def _curve(title: str, values: Sequence[float | None], width: int, rows: int) -> list[Line]:
    known = [v for v in values if v is not None]
    top = nice_top(known)
    lines: list[Line] = [rule(title, width, f"highest {max(known, default=0):.2f}")]
    for i, text in enumerate(chart(known, max(0, width - 9), rows, top)):
        label = f"{top:g}" if i == 0 else "0" if i == rows - 1 else ""
        lines.append(((f"{label:>7} │"[:9], "dim"), (text, "spark")))
    return lines


# --- one sample


def inspector(view: View, width: int, _: int, selected: str | None) -> PageText:
    """Return one sample: facts above, its text as rows, its attempts below."""
    desk = view.desk
    found, doc = desk.detail, desk.doc
    top = _problem(desk, "inspector")
    if found is None:
        return PageText("SAMPLE", top=top, empty=f"asking for {desk.uid}")
    s = found.sample
    top += [
        _fact("sample", (s.uid, "bold"), (f"  {s.state.upper()}", "bold"),
              (f"  lane {s.lane or MISSING}  turn {count(s.turn)}", "")),
        _fact("from", (s.dataset, ""), (f"  row {found.source or MISSING}", "dim"),
              (f"  at {found.server or MISSING}  {duration(found.elapsed_s)}", "dim")),
        _fact("tokens", (f"prompt {count(s.n_prompt)}, answer {count(s.n_output)}", ""),
              (f"  finish {s.finish or MISSING}  try {count(s.attempt)}", "")),
    ]  # fmt: skip
    if found.shard:
        top.append(_fact("states", (f"{found.shard} place {count(found.shard_index)}", "dim")))
    if s.reason:
        top += _told(f"{s.reason}: {s.detail or ''}", width, label="WHY")
    if desk.text is not None and desk.text.note:
        top.append(_fact("no text", (desk.text.note, "warn")))
    bottom: list[Line] = []
    if doc is not None and (doc.special or doc.look_alikes):
        names = "  ".join(f"⟦{name}⟧ {n}" for name, n in doc.special)
        alike = f"   {doc.look_alikes} look-alikes that are plain text" if doc.look_alikes else ""
        bottom.append(_fact("special", (names, ""), (alike, "warn")))
    if found.attempts:
        bottom.append(rule(f"FAILED ATTEMPTS {len(found.attempts)}", width))
        bottom += [
            _fact(f"try {count(a.number)}", (f"{panels.clock_text(a.at_ms)} {a.kind} ", "warn"),
                  (a.detail, ""))
            for a in found.attempts[:4]
        ]  # fmt: skip
    if doc is None:
        return PageText("TEXT", top=top, bottom=bottom, empty="asking for the text")
    keys = _Numbers(len(doc.rows))
    at = int(selected) if selected is not None and selected.isdecimal() else 0
    match = view.match
    right = f"line {at + 1} of {len(doc.rows)}"
    title = f"{desk.shape.upper()}  ┃ and underline: trained   dim: masked   ⟦⟧: special id"
    return PageText(title,
                    keys, lambda i: doc.line(i, match), top, (), bottom, right=right)  # fmt: skip


class _Numbers(Sequence[str]):
    """The keys "0" to "n-1" without making them."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> str:  # type: ignore[override] # slices are never asked for
        if not -self._n <= i < self._n:
            raise IndexError(i)
        return str(i % self._n)


PAGES: Mapping[str, BuildPage] = {
    "lanes": lanes, "samples": samples, "failures": failures, "disk": disk, "events": events,
    "datasets": datasets, "training": training, "inspector": inspector,
}  # fmt: skip
BuildLine = Callable[[View, int], Line]


def view_bar(current: str, width: int) -> Line:
    """Return the names of the views with their keys, the current one in brackets."""
    full = sum(len(name) + 3 for name in VIEWS) + 2
    n = None if full <= width else max(2, (width - 2) // len(VIEWS) - 3)
    spans: list[Span] = [(" ", "")]
    for i, name in enumerate(VIEWS, start=1):
        here = name == current or (current == "inspector" and name == "samples")
        word = f"{i} {name[:n]}"
        spans.append((f"[{word[2:]}]" if here and n is None else word, "title" if here else "dim"))
        spans.append((" ", ""))
    return tuple(spans)


def view_at(x: int, current: str, width: int) -> str | None:
    """Return the view whose name stands in column `x` of the bar."""
    at = 0
    spans = view_bar(current, width)
    for i, (text, _) in enumerate(spans):
        at += len(text)
        if x < at:
            return VIEWS[(i - 1) // 2] if i % 2 else None
    return None
