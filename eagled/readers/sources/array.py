"""JSON values in a row, one array or one after the other, read value by value.

Guarantee: memory is bounded by the longest row, not by the file. A broken row costs one row if its
end can be found by its brackets; a file that ends early gives its complete rows and one reject
that says where it ends.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Generator
from typing import BinaryIO

from eagled.readers.sources.base import SourceRow
from eagled.types import RowReason

_CHUNK_BYTES = 4 << 20
_MAX_ROW_CHARS = 256 << 20
_LITERAL_CHARS = 9  # a value that is cut inside "-Infinity" or \uXXXX fails this near to the end
_BLANK = re.compile(r"[ \t\r\n]*")
# possessive: without it a string of 50 MB that has no end takes 5 GB of backtracking
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?P<end>"?)|[\[\]{}]', re.DOTALL)
_SPREAD = re.compile(rb"\s*\{(?:[^\n]*[{\[,])?[ \t\r]*\n\s*[^{\[\s]")
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
        if self.ended or len(self.buffer) - self.at > _MAX_ROW_CHARS:
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


def is_spread(head: bytes) -> bool:
    """Return whether a file begins with an object that goes over several lines.

    Its first line ends where a value may go on, and the next one does not begin a row.
    """
    return _SPREAD.match(head) is not None


def read_array(stream: BinaryIO, file: str, skip: int = 0) -> Generator[SourceRow, None, int]:
    """Yield the elements of the array behind the first `skip`; return how many there are in all.

    The last one is faulty if the file ends early.
    """
    text = _Text(stream)
    text.peek()
    text.at += 1  # the opening bracket, which is how the file was recognised
    number, closed = yield from _values(text, file, skip, "]")
    if closed is None:
        detail = f"the array has no end: {number} complete rows were read"
        if number >= skip:
            yield SourceRow(file, number, None, RowReason.BAD_JSON_LINE, detail)
        number += 1
    return number


def read_objects(stream: BinaryIO, file: str, skip: int = 0) -> Generator[SourceRow, None, int]:
    """Yield values that stand one after the other, whatever lines they are spread over."""
    number, _ = yield from _values(_Text(stream), file, skip, "")
    return number


def _values(
    text: _Text, file: str, skip: int, end: str
) -> Generator[SourceRow, None, tuple[int, bool | None]]:
    """Yield values up to `end`; return their number and whether the end was there (None: no)."""
    number = 0
    while (char := text.peek()) not in (end, ""):
        if char == ",":
            text.at += 1
            continue
        row = _element(text, file, number)
        number += 1
        if number > skip:
            yield row
        if row.fault is not None and not _skip_broken(text):
            return number, True  # the fault's detail says that nothing behind it was read
    return number, None if char == "" else True


def _element(text: _Text, file: str, number: int) -> SourceRow:
    while True:
        try:
            value, end = _decoder.raw_decode(text.buffer, text.at)
        except (ValueError, RecursionError) as exc:
            if _is_cut(exc, text) and text.more():
                continue
            detail = (
                f"row {number} cannot be read ({_without_place(exc)}); {number} rows stand before "
                "it; what follows is read only if the row's closing bracket can be found"
            )
            return SourceRow(file, number, None, RowReason.BAD_JSON_LINE, detail)
        if end == len(text.buffer) and text.more():
            continue  # a number may go on in the next chunk
        text.at = end
        return SourceRow(file, number, value)


def _is_cut(exc: ValueError | RecursionError, text: _Text) -> bool:
    """Return whether more of the file could mend the value."""
    if not isinstance(exc, json.JSONDecodeError):
        return False
    near_end = exc.pos >= len(text.buffer) - _LITERAL_CHARS
    return near_end or exc.msg.startswith("Unterminated string")


def _without_place(exc: Exception) -> str:
    """Return what is wrong, without a place in a window that nobody sees."""
    return exc.msg if isinstance(exc, json.JSONDecodeError) else str(exc)


def _skip_broken(text: _Text) -> bool:
    """Move behind a broken object by counting brackets; False if its end cannot be found."""
    if text.buffer[text.at : text.at + 1] not in ("{", "["):
        return False
    while True:
        depth = 0
        for token in _TOKEN.finditer(text.buffer, text.at):
            if token["end"] == "":
                break  # the string goes on behind what was read
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
            if depth == 0:
                text.at = token.end()
                return True
        if not text.more():
            return False
