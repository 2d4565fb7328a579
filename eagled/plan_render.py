"""Write a plan as Markdown from facts; pure, so that the same facts give the same bytes.

Numbers that were not measured are printed as "not measured yet", never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

NOT_MEASURED = "not measured yet"
_HOUR_S = 3600
_MINUTE_S = 60
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_KILO = 1000


@dataclass(frozen=True, slots=True)
class Span:
    """A time in seconds with the range it is expected in; all None when unknown."""

    low_s: float | None = None
    mid_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """One dataset as the plan shows it; token figures are means, None when unknown."""

    name: str
    mode: str
    rows: int
    kept: int
    rejected: int
    samples: int
    done: int
    failed: int
    mean_prompt: float | None
    mean_answer: float | None


@dataclass(frozen=True, slots=True)
class PhaseFacts:
    """One phase of the line of work."""

    name: str
    state: str
    done: str
    left: str
    time: Span
    command: str


@dataclass(frozen=True, slots=True)
class ByteFacts:
    """Bytes of hidden states: by formula, as measured, and what the disk has."""

    aux_per_token: int
    last_per_position: int
    measured_per_token: float | None
    tokens_done: int
    tokens_left: int | None
    projected: int | None
    free: int | None
    reserve: int


@dataclass(frozen=True, slots=True)
class DataFacts:
    """Which mix of datasets was chosen, as rows of tables that are Markdown already.

    Attributes:
        text: the choice in a sentence.
        entries: (dataset, for, count, mode, why).
        rejected: (what was left out, why).
        compared: head and rows of the mixes side by side.
        assumptions: (assumption, says, wrong if, check).
    """

    text: str
    entries: Sequence[Sequence[str]]
    rejected: Sequence[Sequence[str]]
    compared: Sequence[Sequence[str]]
    assumptions: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """Everything a plan is made of."""

    run: str
    target: tuple[tuple[str, str], ...]
    phases: tuple[PhaseFacts, ...]
    datasets: tuple[DatasetFacts, ...]
    tokens: tuple[tuple[str, str], ...]
    disk: ByteFacts
    decisions: tuple[tuple[str, str], ...]
    risks: tuple[str, ...] = ()
    sources: tuple[str, ...] = field(default=())
    data: DataFacts | None = None


def human_bytes(n: float | None) -> str:
    """Return bytes with a decimal unit, three significant figures."""
    if n is None:
        return NOT_MEASURED
    size, unit = float(n), 0
    while abs(size) >= _KILO and unit < len(_UNITS) - 1:
        size, unit = size / _KILO, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"


def human_time(seconds: float | None) -> str:
    """Return a duration as h/min/s, or that it is unknown."""
    if seconds is None:
        return NOT_MEASURED
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02d} s"
    return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02d} min"


def human_span(span: Span) -> str:
    """Return the expected time with its range."""
    if span.mid_s is None:
        return NOT_MEASURED
    if span.low_s is None or span.high_s is None or span.low_s == span.high_s:
        return human_time(span.mid_s)
    return f"{human_time(span.mid_s)} ({human_time(span.low_s)} to {human_time(span.high_s)})"


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(_cell(c) for c in row) + " |" for row in rows]


def _count(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:,.0f}"


def _phases(facts: PlanFacts) -> list[str]:
    rows = [
        (p.name, p.state, p.done, p.left, human_span(p.time), f"{p.command}") for p in facts.phases
    ]
    return ["## Phases", "", *table(("phase", "state", "done", "left", "time left", "run"), rows)]


def _datasets(facts: PlanFacts) -> list[str]:
    head = (
        "dataset", "mode", "rows", "kept", "left out", "samples", "answered", "failed",
        "prompt tokens", "answer tokens",
    )  # fmt: skip
    rows = [
        (
            d.name, d.mode, f"{d.rows:,}", f"{d.kept:,}", f"{d.rejected:,}", f"{d.samples:,}",
            f"{d.done:,}", f"{d.failed:,}", _count(d.mean_prompt), _count(d.mean_answer),
        )
        for d in facts.datasets
    ]  # fmt: skip
    note = "Prompt and answer tokens are means of what is stored."
    return ["## Datasets", "", *table(head, rows), "", note]


def _disk(facts: PlanFacts) -> list[str]:
    disk = facts.disk
    after = None if disk.free is None or disk.projected is None else disk.free - disk.projected
    rows = [
        ("hidden states a token (three boundaries, bf16)", f"{disk.aux_per_token:,} bytes"),
        ("final state a kept position (bf16)", f"{disk.last_per_position:,} bytes"),
        ("bytes measured a token, all in", _count(disk.measured_per_token)),
        ("tokens stored", f"{disk.tokens_done:,}"),
        ("tokens still to store", _count(disk.tokens_left)),
        ("bytes still to write", human_bytes(disk.projected)),
        ("free on the disk", human_bytes(disk.free)),
        ("reserve that is never touched", human_bytes(disk.reserve)),
        ("free afterwards", human_bytes(after)),
    ]
    return ["## Disk", "", *table(("what", "amount"), rows)]


def _pairs(title: str, head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> list[str]:
    return [f"## {title}", "", *table(head, rows)]


def _list(title: str, items: Sequence[str], none: str) -> list[str]:
    return [f"## {title}", "", *([f"- {i}" for i in items] or [none])]


def _data(data: DataFacts) -> list[str]:
    """Return the choice of data: what is in, what is not and why, what it stands on."""
    return [
        "## Data", "", data.text, "",
        *table(("dataset", "for", "count", "mode", "why"), data.entries), "",
        "### Left out", "", *table(("what", "why"), data.rejected), "",
        "### Mixes side by side", "", *table(data.compared[0], data.compared[1:]), "",
        "### Assumptions", "",
        *table(("assumption", "says", "wrong if", "check"), data.assumptions),
    ]  # fmt: skip


def render_plan(facts: PlanFacts, version: int) -> str:
    """Return the plan as Markdown."""
    parts = [
        [f"# Train plan v{version}: {facts.run}"],
        _pairs("Target", ("what", "value"), facts.target),
        _phases(facts),
        _datasets(facts),
        _pairs("Tokens", ("what", "amount"), facts.tokens),
        _disk(facts),
        _pairs("Decisions", ("what", "choice"), facts.decisions),
        *([_data(facts.data)] if facts.data is not None else []),
        _list("Risks", facts.risks, "None found."),
        _list("Made from", facts.sources, "Nothing yet."),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"
