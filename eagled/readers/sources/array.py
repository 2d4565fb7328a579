"""A file that is one JSON array, read row by row.

Guarantee: memory is bounded by the longest row, not by the file. A broken row costs one row if its
end can be found by its brackets; a file that ends early gives its complete rows and one reject
that says where it ends.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import BinaryIO

from eagled.readers.sources.base import SourceRow
from eagled.types import RowReason

_CHUNK_BYTES = 4 << 20
_MAX_ROW_CHARS = 256 << 20
_BLANK = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_decoder = json.JSONDecoder()


class _Text:
    """A window over the decoded file: `buffer[at:]` is what comes next.

    Bytes that are not UTF-8 become lone surrogates, which the row rules name `bad_encoding`.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape").decode
        self.buffer = ""
        self.at = 0
        self.ended = False

    def more(self) -> bool:
        """Read on; False at the end of the file. Doubles, so that a long row costs O(n)."""
        if self.ended:
            return False
        chunk = self._stream.read(max(_CHUNK_BYTES, len(self.buffer) - self.at))
        self.ended = not chunk
        self.buffer = self.buffer[self.at :] + self._decode(chunk, final=self.ended)
        self.at = 0
        return True

    def peek(self) -> str:
        """Return the next character that is not blank, "" at the end."""
        while True:
            found = _BLANK.match(self.buffer, self.at)
            self.at = found.end() if found else self.at
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if not self.more():
                return ""


def read_array(stream: BinaryIO, file: str) -> Iterator[SourceRow]:
    """Yield the elements of the array, and a last faulty row if the file ends early."""
    text = _Text(stream)
    text.peek()
    text.at += 1  # the opening bracket, which is how the file was recognised
    number = 0
    while (char := text.peek()) not in ("]", ""):
        if char == ",":
            text.at += 1
            continue
        row = _element(text, file, number)
        yield row
        if row.fault is not None and not _skip_broken(text):
            return  # the fault's detail says that nothing behind it was read
        number += 1
    if char == "":
        detail = f"the array has no end: {number} complete rows were read"
        yield SourceRow(file, number, None, RowReason.BAD_JSON_LINE, detail)


def _element(text: _Text, file: str, number: int) -> SourceRow:
    while True:
        try:
            value, end = _decoder.raw_decode(text.buffer, text.at)
        except (ValueError, RecursionError) as exc:
            if len(text.buffer) - text.at <= _MAX_ROW_CHARS and text.more():
                continue
            detail = (
                f"row {number} cannot be read ({exc}); {number} rows stand before it; what "
                "follows is read only if the row's closing bracket can be found"
            )
            return SourceRow(file, number, None, RowReason.BAD_JSON_LINE, detail)
        if end == len(text.buffer) and text.more():
            continue  # a number may go on in the next chunk
        text.at = end
        return SourceRow(file, number, value)


def _skip_broken(text: _Text) -> bool:
    """Move behind a broken object by counting brackets; False if its end cannot be found."""
    if text.buffer[text.at : text.at + 1] not in ("{", "["):
        return False
    depth = 0
    for token in _TOKEN.finditer(text.buffer, text.at):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if depth == 0:
            text.at = token.end()
            return True
    return False
