"""JSON Lines, read as bytes: a line ends at a line feed and nowhere else.

Guarantee: one bad line costs one row; memory is bounded by the longest accepted line. Unicode
line separators inside text are text. A byte order mark and CRLF are accepted; a last line without
a line feed counts; blank lines are not rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import BinaryIO

from eagled.errors import RowRejectedError
from eagled.readers.sources.base import SourceRow, parse
from eagled.types import RowReason

MAX_ROW_BYTES = (
    256 << 20
)  # far beyond any conversation; a file without line feeds must not fill RAM
_BOM = b"\xef\xbb\xbf"


def read_lines(stream: BinaryIO, file: str, skip: int = 0) -> Generator[SourceRow, None, int]:
    """Yield one row for each line that is not blank, behind the first `skip` of them.

    Returns:
        How many rows there are in all.
    """
    rows = 0
    for number, line in enumerate(_split(stream)):
        bare = line.removeprefix(_BOM) if number == 0 else line
        if not bare.strip():
            continue
        rows += 1
        if rows > skip:
            yield _row(bare, file, number)
    return rows


def _split(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(MAX_ROW_BYTES):
        yield line
        while len(line) == MAX_ROW_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_ROW_BYTES)  # the rest of a line that is refused anyway


def _row(line: bytes, file: str, number: int) -> SourceRow:
    where = f"line {number + 1}"
    if len(line) >= MAX_ROW_BYTES:
        detail = f"{where}: longer than {MAX_ROW_BYTES} bytes"
        return SourceRow(file, number, None, RowReason.BAD_JSON_LINE, detail)
    try:
        return SourceRow(file, number, parse(line.decode("utf-8")))
    except UnicodeDecodeError as exc:
        detail = f"{where}: byte 0x{line[exc.start]:02x} at {exc.start} is not UTF-8"
        return SourceRow(file, number, None, RowReason.BAD_ENCODING, detail)
    except RowRejectedError as exc:
        return SourceRow(file, number, None, RowReason.BAD_JSON_LINE, f"{where}: {exc.detail}")
