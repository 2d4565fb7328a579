"""The one place that draws: plain figures for files, without a display.

Guarantee: PNG and SVG by the file's suffix, written whole or not at all; no clock time and no
random ids in them, so the same data gives the same file. Needs the extra `plots` (matplotlib),
which is imported on the first call only.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagled.artifacts import write_bytes
from eagled.errors import ConfigError, UsageError

SUFFIXES = (".png", ".svg")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DPI = 120
_WIDTH_IN = 8.0
_FEW = 10


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram: lower and upper edges in ascending order, how many are in each bucket."""

    title: str
    lows: Sequence[int]
    edges: Sequence[int]
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve; points in ascending x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@contextmanager
def figure(path: Path, rows: int = 1, *, height_in: float = 2.4) -> Iterator[Sequence[Any]]:
    """Open a figure of `rows` axes, one below the other; it is written when the block ends.

    Raises:
        UsageError: if the suffix is neither .png nor .svg.
        ConfigError: if matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: plots are written as {' or '.join(SUFFIXES)}")
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ConfigError(f"plots need matplotlib: pip install 'eagled[plots]' ({exc})") from exc
    with mpl.rc_context({"svg.hashsalt": "eagled", "font.size": 9, "axes.grid": True,
                         "grid.alpha": 0.3, "axes.spines.top": False,
                         "axes.spines.right": False,
                         "text.parse_math": False}):  # fmt: skip
        drawn = Figure(figsize=(_WIDTH_IN, height_in * rows), layout="constrained")
        FigureCanvasAgg(drawn)
        yield list(drawn.subplots(rows, squeeze=False)[:, 0])
        data = io.BytesIO()
        undated = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        drawn.savefig(data, format=path.suffix[1:], dpi=_DPI, metadata=undated)
    write_bytes(path, data.getvalue())


def histograms(
    path: Path, bars: Sequence[Bars], *, xlabel: str, marks: Sequence[tuple[float, str]] = ()
) -> None:
    """Write one histogram a row over a shared logarithmic axis, with named vertical lines.

    Raises:
        UsageError: if there is nothing to draw, or the suffix is wrong.
        ConfigError: if matplotlib is not installed.
    """
    if not any(item.counts for item in bars):
        raise UsageError("there is nothing to draw")
    highest = max([edge for item in bars for edge in item.edges] + [x for x, _ in marks])
    with figure(path, len(bars)) as axes:
        for axis, item, colour in zip(axes, bars, _cycle(len(bars)), strict=True):
            widths = [high - low for low, high in zip(item.lows, item.edges, strict=True)]
            axis.bar(item.lows, item.counts, widths, align="edge", color=colour)
            axis.set_title(item.title, loc="left")
            axis.set_xscale("symlog", base=2, linthresh=64)
            axis.set_xlim(0, highest * 1.1)
            axis.xaxis.set_major_formatter(lambda value, _place: f"{value:,.0f}")
            for x, name in marks:
                axis.axvline(x, color="black", linestyle="--", linewidth=1)
                label = axis.annotate(
                    name, (x, 0.95), xycoords=("data", "axes fraction"), ha="right", va="top",
                    rotation=90, fontsize=8,
                )  # fmt: skip
                label.set_in_layout(False)  # a long name must not squeeze the axes
        axes[-1].set_xlabel(xlabel)


def lines(path: Path, curves: Sequence[Line], *, title: str, xlabel: str, ylabel: str) -> None:
    """Write curves into one plot.

    Raises:
        UsageError: if there is nothing to draw, or the suffix is wrong.
        ConfigError: if matplotlib is not installed.
    """
    if not any(curve.x for curve in curves):
        raise UsageError("there is nothing to draw")
    with figure(path, height_in=4.0) as (axis,):
        for curve, colour in zip(curves, _cycle(len(curves)), strict=True):
            marker = "o" if len(curve.x) <= _FEW else None  # one point alone makes no line
            axis.plot(curve.x, curve.y, label=curve.name, color=colour, marker=marker)
        axis.set_title(title, loc="left")
        axis.set_xlabel(xlabel)
        axis.set_ylabel(ylabel)
        if len(curves) > 1:
            axis.legend()


def bar_rows(path: Path, rows: Sequence[tuple[str, float]], *, title: str, xlabel: str) -> None:
    """Write one horizontal bar a row, the first one on top.

    Raises:
        UsageError: if there is nothing to draw, or the suffix is wrong.
        ConfigError: if matplotlib is not installed.
    """
    if not rows:
        raise UsageError("there is nothing to draw")
    with figure(path, height_in=0.8 + 0.25 * len(rows)) as (axis,):
        places = range(len(rows))
        axis.barh(places, [value for _, value in rows], color=_COLOURS[0])
        axis.set_yticks(places, [name for name, _ in rows])
        axis.invert_yaxis()
        axis.set_title(title, loc="left")
        axis.set_xlabel(xlabel)


def thin(curve: Line, points: int) -> Line:
    """Return a curve of at most `points` points, each the mean of those that it stands for."""
    size = max(1, -(-len(curve.x) // points))
    parts = [slice(i, i + size) for i in range(0, len(curve.x), size)]
    means = [sum(curve.y[p]) / len(curve.y[p]) for p in parts]
    return Line(curve.name, [curve.x[p][-1] for p in parts], means)


def _cycle(n: int) -> Iterator[str]:
    return (_COLOURS[i % len(_COLOURS)] for i in range(n))
