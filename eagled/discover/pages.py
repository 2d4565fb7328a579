"""The findings as files: Markdown to read in an editor, one HTML page with length plots.

Guarantee: both hold the same tables; the page fetches nothing. Without matplotlib it has no plots
and says so. Plots are drawn of the datasets of the mixes and the best of the others.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path

from eagled import plots, report
from eagled.artifacts import write_bytes
from eagled.discover import view
from eagled.discover.findings import MARKDOWN_NAME, PAGE_NAME, Findings
from eagled.discover.rank import Ranked
from eagled.plan_render import table
from eagled.plots import Bars
from eagled.printable import printable
from eagled.profile import bucket_start

_PLOTTED = 24
_CELL_CHARS = 400
_TITLE_CHARS = 90


def write_pages(folder: Path, findings: Findings) -> tuple[Path, Path]:
    """Write both files; return where they are."""
    markdown, page = folder / MARKDOWN_NAME, folder / PAGE_NAME
    write_bytes(markdown, render_markdown(findings).encode())
    write_page(page, findings)
    return markdown, page


def render_markdown(findings: Findings) -> str:
    """Return the findings as Markdown."""
    parts = [
        f"# Datasets for {markdown_text(findings.target)}",
        "",
        f"{markdown_text(view.headline(findings))}.",
        "",
    ]
    if findings.note:
        parts += [f"Note: {markdown_text(findings.note)}.", ""]
    parts += [f"As of {findings.at}.", ""]
    for title, head, rows in _tables(findings):
        shown = [[markdown_text(cell) for cell in row] for row in rows]
        parts += [f"## {title}", "", *(table(head, shown) if rows else ["None."]), ""]
    parts += ["## Each dataset", ""]
    for item in view.usable(findings):
        parts += [f"### {markdown_text(item.facts.source)}", ""]
        rows = [(what, markdown_text(value)) for what, value in view.detail_rows(item) if value]
        parts += [*table(("what", "value"), rows), ""]
    parts += [f"Choose one with `eagled discover --choose {findings.proposed.proposal.name}`."]
    return "\n".join(parts) + "\n"


def markdown_text(text: str) -> str:
    """Return foreign text for Markdown: on one line, no markup, no HTML."""
    bare = html.escape(printable(text, _CELL_CHARS), quote=False)
    for sign in "\\`*_[]#":
        bare = bare.replace(sign, f"\\{sign}")
    return bare


def _tables(
    findings: Findings,
) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    proposed = findings.proposed
    yield f"{proposed.proposal.title}", view.ENTRY_HEAD, view.entry_rows(proposed)
    yield (
        "Mixes side by side", view.compare_head(findings.choices),
        view.compare_rows(findings.choices),
    )  # fmt: skip
    trades = [(c.proposal.name, c.proposal.trade) for c in findings.choices]
    yield "What each mix is", ("mix", "what it is"), list(trades)
    for choice in findings.choices[1:]:
        yield choice.proposal.title, view.ENTRY_HEAD, view.entry_rows(choice)
    risks = [(c.proposal.name, risk) for c in findings.choices for risk in c.figures.risks]
    yield "Licences to look at", ("mix", "licence"), list(risks)
    yield "Assumptions", view.ASSUMPTION_HEAD, list(view.assumption_rows(findings))
    ranked = [view.candidate_row(item) for item in view.usable(findings)]
    yield "Candidates", view.CANDIDATE_HEAD, ranked
    rejected = [(r.source, r.why) for r in findings.rejected]
    yield "Not in the proposed mix", ("dataset", "why"), list(rejected)
    yield "Could not be used", view.FAILED_HEAD, view.failed_rows(findings)
    if findings.failures:
        yield "Searches that failed", ("search",), [(text,) for text in findings.failures]


def write_page(path: Path, findings: Findings) -> None:
    """Write the findings as one HTML page."""
    about = [report.text(f"{view.headline(findings)}. As of {findings.at}.")]
    if findings.note:
        about.append(report.text(f"Note: {findings.note}."))
    sections: list[tuple[str, list[str]]] = [("What was found", about)]
    for title, head, rows in _tables(findings):
        sections.append((title, [report.table(head, rows) if rows else report.text("None.")]))
        if title == "Mixes side by side":
            sections.append(("Lengths of first prompts", [_plot(findings)]))
    for item in view.usable(findings):
        rows = [(what, value) for what, value in view.detail_rows(item) if value]
        sections.append((item.facts.source, [report.table(("what", "value"), rows)]))
    report.write_page(path, f"Datasets for {findings.target}", sections)


def _plot(findings: Findings) -> str:
    bars = [_bars(item) for item in _plotted(findings)]
    if not bars:
        return report.text("No length is known.")
    return report.drawing(
        lambda path: plots.histograms(path, bars, xlabel=f"{findings.unit} of a first prompt")
    )


def _plotted(findings: Findings) -> list[Ranked]:
    """Return whose lengths are drawn: those of the mixes first."""
    mixed = {entry.source for choice in findings.choices for entry in choice.proposal.entries}
    known = [item for item in view.usable(findings) if item.facts.lengths]
    return sorted(known, key=lambda item: item.facts.source not in mixed)[:_PLOTTED]


def _bars(item: Ranked) -> Bars:
    shape = view.lengths(item.facts)
    histogram = shape.histogram if shape is not None else ()
    edges, counts = [edge for edge, _ in histogram], [n for _, n in histogram]
    name = printable(item.facts.source, _TITLE_CHARS).encode("ascii", "backslashreplace").decode()
    return Bars(name, [bucket_start(edge) for edge in edges], edges, counts)
