"""The report of a training run: what it learnt from, how, and what its draft is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagled import report
from eagled.plots import Line, lines
from eagled.train.metrics import read_metrics

REPORT_NAME = "report.html"
_POINTS = 400  # of a curve; more are averaged, so that a long run draws as fast as a short one


def write_train_report(
    folder: Path, facts: Mapping[str, object], coverage: Sequence[Sequence[object]]
) -> Path:
    """Write report.html into a run's folder and return its path.

    Args:
        folder: of the run; its metrics.jsonl is read.
        facts: what to show of the run, in order.
        coverage: dataset, split, supervised tokens, covered share.
    """
    found = read_metrics(folder)
    steps = [line for line in found if line["kind"] == "step"]
    estimates = [line for line in found if line["kind"] == "estimate"]
    sections: list[tuple[str, Sequence[str]]] = [
        ("The run", [report.table(("what", "value"), facts.items())])
    ]
    if estimates:
        sections.append(("Held-out acceptance (an estimate)", _acceptance(estimates)))
    if steps:
        sections.append(("Training", _curves(steps)))
    if coverage:
        head = ("dataset", "split", "supervised tokens", "covered")
        sections.append(("Draft vocabulary", [report.table(head, coverage)]))
    path = folder / REPORT_NAME
    report.write_page(path, f"Training run {folder.name}", sections)
    return path


def _acceptance(estimates: Sequence[Mapping[str, Any]]) -> list[str]:
    last = estimates[-1]
    curve = Line("held out", [e["step"] for e in estimates], [e["length"] for e in estimates])
    intro = (
        f"{last['length']:.3f} tokens a verify step after {last['step']} steps, on "
        f"{last['samples']} held-out answers: recorded answers walked as chain speculation would, "
        "with the target's own token counted. Not a measured speed-up."
    )
    by_position = [(f"guess {k}", share) for k, share in enumerate(last["by_position"], 1)]
    parts = [
        report.text(intro),
        report.table(("if those before were right", "right"), by_position),
        _drawn([curve], "Acceptance length on held-out answers", "tokens a verify step"),
    ]
    for group in ("datasets", "lanes", "context"):
        rows = [(n, c["length"], c["tokens"]) for n, c in last[group].items()]
        if rows:
            parts.append(report.table((group, "tokens a verify step", "tokens"), rows))
    return parts


def _curves(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    k = len(steps[0]["hit_by_step"])
    x = [float(s["step"]) for s in steps]
    each = [
        _thin(Line(f"step {i + 1}", x, [s["agree_by_step"][i] for s in steps])) for i in range(k)
    ]
    single = {
        "loss": [s["loss"] for s in steps],
        "learning rate": [s["lr"] for s in steps],
        "gradient norm": [s["grad_norm"] for s in steps],
    }
    drawn = [
        _drawn([_thin(Line(name, x, y))], name.capitalize(), name) for name, y in single.items()
    ]
    return [
        drawn[0],
        _drawn(each, "First choice equals the target's, by step of training-time test", "share"),
        *drawn[1:],
    ]


def _thin(curve: Line) -> Line:
    """Return a curve of few points, each the mean of those that it stands for."""
    size = -(-len(curve.x) // _POINTS)
    parts = [slice(i, i + size) for i in range(0, len(curve.x), size)]
    means = [sum(curve.y[p]) / len(curve.y[p]) for p in parts]
    return Line(curve.name, [curve.x[p][-1] for p in parts], means)


def _drawn(curves: Sequence[Line], title: str, ylabel: str) -> str:
    return report.drawing(
        lambda path: lines(path, curves, title=title, xlabel="optimiser step", ylabel=ylabel)
    )
