"""A benchmark as Markdown, JSON and plots.

Guarantee: each number says what it counts; medians stand with their lowest and highest run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from eagled.artifacts import write_bytes, write_json
from eagled.benchmark.acceptance import DEFINITION, Speculation
from eagled.benchmark.figures import Gain, Side, Spread, verdict
from eagled.benchmark.measure import Pass
from eagled.benchmark.run import Benchmark
from eagled.plots import Line, lines
from eagled.printable import printable

JSON_NAME, PAGE_NAME = "benchmark.json", "benchmark.md"
SPEED_PLOT, GAIN_PLOT = "speed.png", "gain.png"


def write_report(found: Benchmark, command: str) -> Path:
    """Write `benchmark.json` and `benchmark.md`; return the page."""
    out = found.settings.out
    write_json(out / JSON_NAME, {**found.to_dict(), "command": command})
    page = out / PAGE_NAME
    write_bytes(page, (render(found, command) + "\n").encode())
    return page


def draw(found: Benchmark) -> None:
    """Write the two plots.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    out = found.settings.out
    lines(
        out / SPEED_PLOT, [_rates(side) for side in (found.plain, *found.tests)],
        title="Tokens a second", xlabel="requests at once", ylabel="tokens/s (median)",
    )  # fmt: skip
    even = Line("no difference", [g.concurrency for g in _all_gains(found)[0]],
                [1.0] * len(found.settings.concurrencies))  # fmt: skip
    lines(
        out / GAIN_PLOT,
        [even, *(_curve(side, found.gains(side)) for side in found.tests)],
        title="Speed with the draft over speed without",
        xlabel="requests at once", ylabel="times (median)",
    )  # fmt: skip


def _all_gains(found: Benchmark) -> list[list[Gain]]:
    return [found.gains(side) for side in found.tests]


def _rates(side: Side) -> Line:
    return Line(side.name, list(side.points), [side.rate(c).median for c in side.points])


def _curve(side: Side, gains: Sequence[Gain]) -> Line:
    return Line(side.name, [g.concurrency for g in gains], [g.ratio.median for g in gains])


def render(found: Benchmark, command: str) -> str:
    """Return the page as Markdown."""
    return "\n".join(_page(found, command))


def _page(found: Benchmark, command: str) -> Iterator[str]:
    facts, draft = found.plain.server, found.to_dict()["draft"]
    yield f"# Benchmark of {printable(draft)}\n"
    for side in found.tests:
        yield f"**{side.name}: {verdict(found.gains(side))}.**\n"
    yield f"Target {printable(facts['model'])}, SGLang {facts['version']}. `{command}`\n"
    yield from _asked(found)
    yield "\n## Speed\n"
    yield (
        f"Tokens of answers a second over all requests, median of {found.settings.runs} "
        "(lowest to highest); counted by the server. The gain is the draft's median over the plain "
        "one's (slowest over fastest to fastest over slowest).\n"
    )
    yield from _speed(found)
    yield "\n## Latency\n"
    yield "Median and 95th percentile over the answers, milliseconds; medians of the passes.\n"
    yield from _latency(found)
    yield "\n## Acceptance\n"
    yield f"{DEFINITION}\n"
    yield from _acceptance(found)
    yield from _notes(found)


def _asked(found: Benchmark) -> Iterator[str]:
    sampling = found.workload.sampling
    how = "greedy" if sampling.greedy else (
        f"temperature {sampling.temperature:g}, top-p {sampling.top_p:g}, top-k {sampling.top_k}"
    )  # fmt: skip
    yield (
        f"Asked through the target's own chat template, {how}, answers of up to "
        f"{sampling.max_new_tokens} tokens; the same of every server.\n"
    )
    rows = [(printable(s.name), len(s.prompts), s.too_long, s.looping) for s in found.workload.sets]
    yield from _table(("prompts", "asked", "too long, left out", "looping, left out"), rows)


def _speed(found: Benchmark) -> Iterator[str]:
    heads = ["at once", "plain"]
    for side in found.tests:
        heads += [side.name, "gain"]
    rows = []
    for i, concurrency in enumerate(found.plain.points):
        row = [str(concurrency), _spread(found.plain.rate(concurrency), 1)]
        for side in found.tests:
            row += [_spread(side.rate(concurrency), 1), _spread(found.gains(side)[i].ratio, 2)]
        rows.append(row)
    yield from _table(heads, rows)


def _spread(value: Spread, places: int) -> str:
    low, middle, high = (f"{x:,.{places}f}" for x in (value.low, value.median, value.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def _latency(found: Benchmark) -> Iterator[str]:
    rows = []
    for side in (found.plain, *found.tests):
        for concurrency, passes in side.points.items():
            numbers = [statistics.median(x) for x in zip(*map(_times, passes), strict=True)]
            rows.append((side.name, concurrency, *(f"{1000 * x:,.1f}" for x in numbers)))
    yield from _table(
        ("server", "at once", "first token", "p95", "each further token", "p95"), rows
    )


def _times(measured: Pass) -> tuple[float, ...]:
    return (*measured.first_s, *measured.gap_s)


def _acceptance(found: Benchmark) -> Iterator[str]:
    widest = max(len(side.speculation.by_position) for side in found.tests)
    heads = ["draft", "prompts", "accepted length", "right guesses a step", "verify steps",
             *(f"guess {i + 1}" for i in range(widest))]  # fmt: skip
    rows = []
    for side in found.tests:
        every = side.by_set if len(side.by_set) > 1 else {}
        for name, part in {"all": side.speculation, **every}.items():
            rows.append((side.name, printable(name), *_accepted(part, widest)))
    yield from _table(heads, rows)
    yield (
        "\n`guess n` is the share of verify steps in which guess n was right, of those in which "
        "all before it were.\n"
    )
    if found.offline is not None:
        yield (
            f"The training run's own estimate on held-out answers: {found.offline['length']:.2f} "
            "tokens a verify step (other prompts and sampling; see docs/training.md).\n"
        )


def _accepted(part: Speculation, widest: int) -> Iterator[str]:
    yield f"{part.length or 0:.2f}"
    yield f"{part.right_guesses or 0:.2f}"
    yield f"{part.verifies:,}"
    shares = [f"{share:.0%}" for share in part.by_position]
    yield from shares + [""] * (widest - len(shares))


def _notes(found: Benchmark) -> Iterator[str]:
    notes = [f"{side.name}: {note}" for side in (found.plain, *found.tests) for note in side.notes]
    for side in found.tests:
        if side.same_answers is not None:
            same, every = side.same_answers
            notes.append(
                f"{side.name}: {same} of {every} greedy answers are the plain server's, token for "
                "token (in bfloat16 ties fall either way; in float32 all should be)"
            )
    cut = sum(p.cut for p in found.plain.passes)
    asked = sum(p.requests for p in found.plain.passes)
    notes.append(f"{cut / asked:.0%} of the plain server's answers were cut at the limit")
    yield "## To know\n"
    yield from (f"- {printable(note)}" for note in notes)


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(_cell(value) for value in row)} |"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|")
