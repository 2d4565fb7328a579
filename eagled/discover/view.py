"""The findings as rows of tables, for the terminal, Markdown and HTML alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from eagled.discover.facts import Facts
from eagled.discover.figures import Figures
from eagled.discover.findings import Choice, Findings
from eagled.discover.rank import Ranked
from eagled.plan_render import human_bytes
from eagled.profile import LengthProfile, profile_of

UNKNOWN = "not known"
NOT_MEASURED = "not measured"
CANDIDATE_HEAD = (
    "points", "dataset", "for", "rows", "size", "licence", "reader", "kept", "median", "95%",
    "lanes", "shows", "native", "languages", "overlap",
)  # fmt: skip
SHORT_HEAD = ("points", "dataset", "rows", "licence", "reader", "kept", "median", "95%", "native",
          "overlap")  # fmt: skip
ENTRY_HEAD = ("dataset", "for", "count", "mode", "why")
FAILED_HEAD = ("dataset", "for", "problem", "detail")
ASSUMPTION_HEAD = ("assumption", "says", "wrong if", "check")
_SHOWN_LANGUAGES = 3


def candidate_row(item: Ranked) -> tuple[str, ...]:
    """Return a usable candidate as cells."""
    facts = item.facts
    shape = lengths(facts)
    return (
        f"{item.score:.0f}",
        facts.source,
        ", ".join(facts.categories),
        UNKNOWN if facts.rows is None else f"{facts.rows:,}{_origin(facts)}",
        UNKNOWN if facts.size_bytes is None else human_bytes(facts.size_bytes),
        licence_words(facts),
        facts.reader,
        f"{facts.kept_share:.0%}",
        UNKNOWN if shape is None else f"{shape.quantiles[0.5]:,}",
        UNKNOWN if shape is None else f"{shape.quantiles[0.95]:,}",
        _shares(facts.lanes),
        _shows(facts),
        f"yes ({facts.native})" if facts.native else "",
        _shares(facts.languages),
        ", ".join(f"{share:.0%} {name}" for name, share in facts.overlap.items()),
    )


def short_row(item: Ranked) -> tuple[str, ...]:
    """Return the cells of `SHORT_HEAD`, for a terminal."""
    cells = dict(zip(CANDIDATE_HEAD, candidate_row(item), strict=True))
    return tuple(cells[name] for name in SHORT_HEAD)


def _origin(facts: Facts) -> str:
    return " (estimated)" if facts.rows_from == "estimated" else ""


def licence_words(facts: Facts) -> str:
    """Return a licence with what to look at."""
    flags = ", ".join(facts.licence_flags)
    return f"{facts.licence or 'none'}{f' ({flags})' if flags else ''}"


def lengths(facts: Facts) -> LengthProfile | None:
    """Return the lengths of the sampled first prompts, None without any."""
    counts = {int(length): int(n) for length, n in facts.lengths}
    return profile_of(Counter(counts)) if counts else None


def _shares(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    shown = sorted(counts.items(), key=lambda item: -item[1])[:_SHOWN_LANGUAGES]
    return ", ".join(f"{n / total:.0%} {name}" for name, n in shown) if total else ""


def _shows(facts: Facts) -> str:
    shares = {
        "tools": facts.tools, "reasoning": facts.reasoning, "several turns": facts.multi_turn
    }  # fmt: skip
    return ", ".join(f"{share:.0%} {what}" for what, share in shares.items() if share)


def detail_rows(item: Ranked) -> Iterator[tuple[str, str]]:
    """Yield everything that is known of a candidate as (what, value)."""
    facts = item.facts
    yield "revision", facts.revision or UNKNOWN
    yield "changed", facts.modified or UNKNOWN
    yield "downloads", UNKNOWN if facts.downloads is None else f"{facts.downloads:,}"
    yield "configuration, split", f"{facts.config or 'the only one'}, {facts.split or UNKNOWN}"
    yield "columns", ", ".join(facts.columns)
    yield "readers", ", ".join(f"{n} rows {name}" for name, n in facts.readers.items())
    yield "rows looked at", f"{facts.sampled:,}, of which kept {facts.kept:,}"
    yield "left out", ", ".join(f"{n} {why}" for why, n in facts.rejected.items())
    if (shape := lengths(facts)) is not None:
        yield facts.unit, ", ".join(f"{q:.0%} {n:,}" for q, n in shape.quantiles.items())
    if facts.native_detail:
        yield "answers", facts.native_detail
    for note in facts.notes:
        yield "note", note


def usable(findings: Findings) -> list[Ranked]:
    """Return the candidates that could be looked at."""
    return [item for item in findings.ranked if not item.flaw]


def failed_rows(findings: Findings) -> list[tuple[str, ...]]:
    """Return the candidates that could not, or that cannot be used."""
    return [
        (item.facts.source, ", ".join(item.facts.categories), item.facts.problem or "unfit",
         item.facts.detail or item.flaw)
        for item in findings.ranked
        if item.flaw
    ]  # fmt: skip


def entry_rows(choice: Choice) -> list[tuple[str, ...]]:
    """Return the datasets of a mix."""
    return [
        (e.source, e.category, f"{e.count:,}", e.mode, e.reason) for e in choice.proposal.entries
    ]


def compare_rows(choices: Sequence[Choice]) -> list[tuple[str, ...]]:
    """Return the mixes side by side: a row a figure, a column a mix."""
    columns = [dict(_figures(choice.figures)) for choice in choices]
    names = list(dict.fromkeys(name for column in columns for name in column))
    return [(name, *(column.get(name, UNKNOWN) for column in columns)) for name in names]


def compare_head(choices: Sequence[Choice]) -> tuple[str, ...]:
    """Return the head of `compare_rows`."""
    return ("", *(choice.proposal.name for choice in choices))


def _figures(figures: Figures) -> Iterator[tuple[str, str]]:
    yield "conversations", f"{figures.conversations:,}"
    yield "samples", _number(figures.samples)
    yield "prompt tokens", _number(figures.prompt_tokens)
    yield "answer tokens", _number(figures.answer_tokens)
    yield "to be generated", _number(figures.to_generate)
    hours = figures.hours
    yield "hours at the measured rate", NOT_MEASURED if hours is None else f"{hours:,.1f}"
    for codec in ("raw", "lossless", "fp8"):
        size = figures.bytes_by_codec.get(codec)
        yield f"bytes, {codec}", UNKNOWN if size is None else human_bytes(size)
    yield "native", f"{figures.native:,}"
    lanes = ", ".join(f"{share:.0%} {lane}" for lane, share in figures.lanes.items())
    yield "lanes", lanes or NOT_MEASURED
    yield "licences to look at", str(len(figures.risks))
    yield "datasets without numbers", str(len(figures.unknown))


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def assumption_rows(findings: Findings) -> list[tuple[str, str, str, str]]:
    """Return what the numbers stand on."""
    return [(a.name, a.text, a.wrong_if, a.check) for a in findings.assumptions]


def headline(findings: Findings) -> str:
    """Return one sentence about what was found."""
    good, all_ = len(usable(findings)), len(findings.ranked)
    return (
        f"{all_} datasets looked at for {findings.target}, {good} of them usable; "
        f"goal {findings.goal:,} conversations"
    )
