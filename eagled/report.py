"""One self-contained HTML page: text, tables and drawings; nothing is fetched when it is opened.

Guarantee: everything that comes from outside is made printable and escaped, and a cell is cut at
`CELL_CHARS`; drawings are SVG inside the page, whose policy lets a browser fetch and run nothing;
the page is written whole or not at all, and the same content gives the same bytes.
"""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from eagled.artifacts import write_bytes
from eagled.errors import ConfigError
from eagled.printable import printable

CELL_CHARS = 300
_PARAGRAPH_CHARS = 2000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_METADATA = re.compile(
    r"<metadata>.*?</metadata>\s*", re.DOTALL
)  # names of vocabularies on the web
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0; } th, td { padding: .2rem .8rem .2rem 0;
text-align: left; border-bottom: 1px solid #ddd; } td.n { text-align: right;
font-variant-numeric: tabular-nums; } svg { max-width: 100%; height: auto; }
"""


def text(value: str) -> str:
    """Return a paragraph."""
    return f"<p>{_safe(value, _PARAGRAPH_CHARS)}</p>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; numbers to the right, floats with three decimals, nothing for None."""
    top = "".join(f"<th>{_safe(h)}</th>" for h in head)
    body = "".join(f"<tr>{''.join(_cell(v) for v in row)}</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{_safe('' if value is None else value)}</td>"
    shown = f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
    return f'<td class="n">{shown}</td>'


def _safe(value: object, chars: int = CELL_CHARS) -> str:
    return html.escape(printable(value, chars))


def drawing(draw: Callable[[Path], None]) -> str:
    """Return what `draw` writes into an SVG file, to stand inside a page.

    Where matplotlib is not installed it is a line that says so: no page is worth less for it than a
    failed command.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawing.svg"
        try:
            draw(path)
        except ConfigError as exc:
            return text(f"No picture here: {exc}")
        svg = path.read_text(encoding="utf-8")
    return _METADATA.sub("", svg[svg.index("<svg") :])


def write_page(path: Path, title: str, sections: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Write a page.

    Args:
        path: where.
        title: of the page.
        sections: heading and parts of each, made by the functions above.

    Raises:
        DiskError: if it cannot be written.
    """
    parts = [f"<h2>{_safe(heading)}</h2>{''.join(content)}" for heading, content in sections]
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8>"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{_safe(title)}</title><style>{_STYLE}</style>"
        f"<body><h1>{_safe(title)}</h1>{''.join(parts)}</body></html>"
    )
    write_bytes(path, page.encode())
