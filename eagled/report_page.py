"""`eagled report`: the facts of a run as one HTML page with pictures.

Guarantee: as `report.py` says, and a size that does not grow with the run (`report_facts.py` bounds
what comes in, `POINTS` what is drawn). Without matplotlib the page has its tables and says what is
missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagled import plots, report
from eagled.clock import iso_utc
from eagled.plots import Bars, Line
from eagled.printable import printable

POINTS = 400  # of a curve
_GAP_H = 0.25  # a pause in the course: the line is broken there
_HOUR_MS = 3_600_000
_GIB = 1 << 30
_SHOWN_REASONS = 20
_LABEL_CHARS = 40
_LANE_HEAD = ("lane", "limit", "queued", "in flight", "generated", "extracted", "failed",
              "rejected", "tokens/s out", "median s", "95% s")  # fmt: skip
_LANE_KEYS = ("limit", "queued", "in_flight", "generated", "extracted", "failed", "rejected",
              "out_tok_per_s", "p50_s", "p95_s")  # fmt: skip
_DISK_WORDS = {
    "used_bytes": "of the state directory", "free_bytes": "free on its file system",
    "budget_bytes": "may be used", "reserve_bytes": "left alone",
    "projected_bytes": "hidden states still to come",
}  # fmt: skip

Facts = Mapping[str, Any]
Parts = list[str]


def write_report(path: Path, facts: Facts) -> None:
    """Write the page.

    Args:
        path: where.
        facts: what `report_facts.gather` gave, or the daemon's `/v1/report`.

    Raises:
        DiskError: if it cannot be written.
    """
    sections: list[tuple[str, Sequence[str]]] = [
        ("The run", _run(facts["status"])),
        ("Throughput", _throughput(facts["history"])),
        ("Lanes", _lanes(facts["status"], facts["history"])),
        ("Failures", _failures(facts["failures"])),
        ("Lengths", _lengths(facts["lengths"])),
        ("Hidden states and disk", _disk(facts)),
        ("Last events", _events(facts["events"])),
        ("Where it comes from", _provenance(facts["provenance"])),
    ]
    name = facts["status"].get("run") or "a run without a name"
    report.write_page(path, f"eagled: {name}", sections)


def _run(status: Facts) -> Parts:
    if not status:
        return [report.text("No daemon has run here yet.")]
    rows = [
        ("as of", iso_utc(status["at_ms"])),
        ("phase", status["phase"]),
        ("started", iso_utc(status["started_ms"])),
        ("starts on this database", status["epoch"]),
    ]
    datasets = [
        (name, d["mode"], d["rows"], d["rejected_rows"], d["total"], d["done"], d["extracted"],
         d["failed"], d["rejected"], d["cancelled"])
        for name, d in status["datasets"].items()
    ]  # fmt: skip
    head = ("dataset", "mode", "rows", "left out", "samples", "answered", "extracted", "failed",
            "rejected", "cancelled")  # fmt: skip
    alarms = [(a["level"], a["kind"], a["text"]) for a in status["alarms"]]
    return [
        report.table(("what", "value"), rows),
        report.table(head, datasets),
        report.table(("alarm", "kind", "text"), alarms) if alarms else report.text("No alarm."),
    ]


# -- over time


def _curve(name: str, points: Sequence[tuple[int, float]], origin_ms: int) -> Line:
    """Return a curve over hours since `origin_ms`, thinned, broken where nothing was recorded."""
    line = Line(name, [(at - origin_ms) / _HOUR_MS for at, _ in points], [v for _, v in points])
    line = plots.thin(line, POINTS)
    gap_h = max(_GAP_H, 4 * (line.x[-1] - line.x[0]) / len(line.x))
    x, y = [], []
    for i, at in enumerate(line.x):
        if i and at - line.x[i - 1] > gap_h:
            x.append(at)
            y.append(math.nan)
        x.append(at)
        y.append(line.y[i])
    return Line(name, x, y)


def _over_time(
    curves: Mapping[str, Sequence[tuple[int, float | None]]], *, title: str, ylabel: str
) -> str:
    known = {
        name: [(at, value) for at, value in points if value is not None]
        for name, points in curves.items()
    }
    known = {name: points for name, points in known.items() if points}
    if not known:
        return report.text(f"{title}: nothing was recorded yet.")
    origin_ms = min(points[0][0] for points in known.values())
    drawn = [_curve(name, points, origin_ms) for name, points in known.items()]
    xlabel = f"hours since {iso_utc(origin_ms)}"
    return report.drawing(
        lambda path: plots.lines(path, drawn, title=title, xlabel=xlabel, ylabel=ylabel)
    )


def _by_lane(history: Sequence[Facts], key: str) -> dict[str, list[tuple[int, float | None]]]:
    names = sorted({name for line in history for name in line["lanes"]})
    return {
        name: [(line["at_ms"], line["lanes"].get(name, {}).get(key)) for line in history]
        for name in names
    }


def _column(points: Sequence[Facts], key: str, unit: float = 1.0) -> list[tuple[int, float | None]]:
    return [(p["at_ms"], None if p.get(key) is None else p[key] / unit) for p in points]


def _throughput(history: Sequence[Facts]) -> Parts:
    counted = {word: _column(history, word) for word in ("done", "extracted")}
    return [
        _over_time(_by_lane(history, "out_tok_per_s"), title="Answer tokens a second, by lane",
                   ylabel="tokens/s"),
        _over_time(counted, title="Samples answered and extracted", ylabel="samples"),
    ]  # fmt: skip


def _lanes(status: Facts, history: Sequence[Facts]) -> Parts:
    rows = [
        (name, *(lane[key] for key in _LANE_KEYS)) for name, lane in status.get("lanes", {}).items()
    ]
    return [
        report.table(_LANE_HEAD, rows),
        _over_time(_by_lane(history, "in_flight"), title="Requests at the servers, by lane",
                   ylabel="requests"),
    ]  # fmt: skip


# -- what went wrong, how long it is


def _failures(groups: Sequence[Facts]) -> Parts:
    if not groups:
        return [report.text("Nothing was given up.")]
    counted: Counter[str] = Counter()
    for group in groups:
        counted[f"{group['reason']} ({group['state']})"] += group["n"]
    bars = [(_label(name), float(n)) for name, n in counted.most_common(_SHOWN_REASONS)]
    rows = [(g["n"], g["dataset"], g["state"], g["reason"], g["example"]) for g in groups]
    return [
        report.drawing(lambda path: plots.bar_rows(path, bars, title="Given up, by reason",
                                           xlabel="samples")),
        report.table(("samples", "dataset", "state", "reason", "newest example"), rows),
    ]  # fmt: skip


def _label(text: str) -> str:
    """Return words for an axis: the font of a picture has few signs beyond ASCII."""
    shown = printable(text, _LABEL_CHARS).encode("ascii", "backslashreplace")
    return shown.decode("ascii")


def _lengths(found: Facts | None) -> Parts:
    if found is None or not found["read"]:
        return [report.text("There is no sample yet.")]
    lows, edges = found["edges"][:-1], found["edges"][1:]
    used = max((i for side in ("prompt", "answer") for i, n in enumerate(found[side]) if n),
               default=0) + 1  # fmt: skip
    bars = [
        Bars(f"{side.capitalize()}s", lows[:used], edges[:used], found[side][:used])
        for side in ("prompt", "answer")
    ]
    some = "" if found["read"] >= found["samples"] else ", evenly spread over the run"
    head = ("dataset", "lane", "prompts", "median", "95%", "longest", "answers", "median", "95%",
            "longest")  # fmt: skip
    return [
        report.text(f"Tokens of {found['read']:,} of {found['samples']:,} samples{some}."),
        report.drawing(lambda path: plots.histograms(path, bars, xlabel="tokens")),
        report.table(head, found["groups"]),
    ]


# -- disk


def _disk(facts: Facts) -> Parts:
    status, shards, history = facts["status"], facts["shards"], facts["history"]
    disk = status.get("disk", {})
    rows = [(words, _gib(disk.get(key))) for key, words in _DISK_WORDS.items()]
    held = [(s["samples"], s["tokens"], _gib(s["bytes"])) for s in shards[-1:]]
    sizes = {
        "state directory": _column(history, "used_bytes", _GIB),
        "shards": _column(shards, "bytes", _GIB) or _column(history, "shard_bytes", _GIB),
        "free": _column(history, "free_bytes", _GIB),
    }
    return [
        report.table(("disk", "GiB"), rows),
        report.table(("samples in shards", "tokens", "GiB"), held),
        _over_time({name: sizes[name] for name in ("state directory", "shards") if sizes[name]},
                   title="Disk used", ylabel="GiB"),
        _over_time({"free": sizes["free"]}, title="Disk free", ylabel="GiB"),
    ]  # fmt: skip


def _gib(n_bytes: float | None) -> float | None:
    return None if n_bytes is None else n_bytes / _GIB


def _events(events: Sequence[Facts]) -> Parts:
    rows = [(iso_utc(e["at_ms"]), e["kind"], e["subject"], e["detail"]) for e in events]
    return [report.table(("at", "event", "about", "detail"), rows)]


def _provenance(found: Facts) -> Parts:
    heads = {
        "run": ("what", "value"),
        "datasets": ("dataset", "mode", "rows", "kept", "left out", "key of its inputs"),
        "files": ("file", "where", "SHA-256 of its manifest"),
        "settings": ("setting", "value", "from"),
    }
    return [report.table(head, found[name]) for name, head in heads.items() if found[name]]
