"""The file of one captured request: a safetensors file whose header is written last.

Layout: 8 bytes header length, the JSON header padded with spaces to `DATA_START`, then `states`
bf16 [rows, (L+1)*D] (each row: the boundaries in ascending order, then the state after the final
norm), then `input_ids` i32 [tokens]. The header stands at a fixed size since the number of rows
is known only at the end. If you change the layout, bump `FORMAT`; `eagled.shards.backend_sglang`
reads it.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

FORMAT = "eagled-capture-1"
DATA_START = 4096
FINAL_SUFFIX = ".safetensors"
FAILED_SUFFIX = ".failed"
TEMP_SUFFIX = ".tmp"
_LENGTH_BYTES = 8
_BF16_BYTES = 2
_ID_BYTES = 4
_RID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


class OtherFormatError(ValueError):
    """A file of another version of the plugin: whole perhaps, but not ours to read or remove."""


State = Literal["complete", "pending", "failed", "aborted"]


@dataclass(frozen=True)
class Receipt:
    """What a reply says about the states of its request.

    Attributes:
        state: `complete` when the file is there, `pending` while it is being written, `failed`
            with the reason in `error`, `aborted` when the request was.
        path: the file, which exists only when complete.
        rows: rows of states.
        width: values of one row, (L+1)*D.
        layers: boundary ids.
        crc32: checksum of the states' bytes.
        bytes: size of the file.
        tokens: ids in the file, prompt and answer.
        ids_crc32: checksum of the ids as i32.
        one_pass: whether the states were captured while generating.
        error: why there is no file.
    """

    state: State
    path: str
    rows: int = 0
    width: int = 0
    layers: tuple[int, ...] = ()
    crc32: int = 0
    bytes: int = 0
    tokens: int = 0
    ids_crc32: int = 0
    one_pass: bool = False
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the receipt as it stands in a reply."""
        return {"eagled_capture": FORMAT} | asdict(self)


@dataclass(frozen=True)
class FileFacts:
    """What a header says besides the tensors.

    Attributes:
        rid: the request.
        layers: boundary ids.
        hidden_size: D.
        prompt_tokens: prompt length.
        output_tokens: answer length, its stop token included.
        source_dtype: dtype of the states in the model; the file holds bf16.
        sglang: version of the server.
        model: what the server calls its model.
    """

    rid: str
    layers: tuple[int, ...]
    hidden_size: int
    prompt_tokens: int
    output_tokens: int
    source_dtype: str
    sglang: str
    model: str

    @property
    def width(self) -> int:
        """Values of one row."""
        return (len(self.layers) + 1) * self.hidden_size

    @property
    def rows_expected(self) -> int:
        """Rows of a complete capture: the last token of an answer is never fed."""
        return self.prompt_tokens + max(0, self.output_tokens - 1)


def is_safe_rid(rid: str) -> bool:
    """Return whether a request's id can be a file name."""
    return _RID.fullmatch(rid) is not None


def final_path(spool: Path, rid: str) -> Path:
    """Return where a complete capture lies."""
    return spool / (rid + FINAL_SUFFIX)


def failed_path(spool: Path, rid: str) -> Path:
    """Return where the note of a failed capture lies."""
    return spool / (rid + FAILED_SUFFIX)


def header(facts: FileFacts, rows: int, ids: bytes, crc32: int) -> bytes:
    """Return the first `DATA_START` bytes of a complete file; `ids` are i32.

    Raises:
        ValueError: if they do not fit.
    """
    states_end = rows * facts.width * _BF16_BYTES
    tokens = len(ids) // _ID_BYTES
    text = json.dumps(
        {
            "__metadata__": {
                "format": FORMAT,
                "rid": facts.rid,
                "layers": json.dumps(facts.layers),
                "hidden_size": str(facts.hidden_size),
                "prompt_tokens": str(facts.prompt_tokens),
                "output_tokens": str(facts.output_tokens),
                "source_dtype": facts.source_dtype,
                "sglang": facts.sglang,
                "model": facts.model[:1024],
                "crc32": str(crc32),
                "ids_crc32": str(zlib.crc32(ids)),
            },
            "states": {
                "dtype": "BF16",
                "shape": [rows, facts.width],
                "data_offsets": [0, states_end],
            },
            "input_ids": {
                "dtype": "I32",
                "shape": [tokens],
                "data_offsets": [states_end, states_end + len(ids)],
            },
        }
    ).encode()
    room = DATA_START - _LENGTH_BYTES
    if len(text) > room:
        raise ValueError(f"header of {len(text)} bytes is over {room}")
    return room.to_bytes(_LENGTH_BYTES, "little") + text.ljust(room)


def read_receipt(path: Path) -> Receipt:
    """Return the receipt that a complete file's header gives; its data is not read.

    Raises:
        OtherFormatError: if another version of the plugin wrote it.
        ValueError: if the file is not a complete capture.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(DATA_START)
        size = os.fstat(file.fileno()).st_size
    if int.from_bytes(head[:_LENGTH_BYTES], "little") != DATA_START - _LENGTH_BYTES:
        raise ValueError(f"{path}: not a captured file")
    found = json.loads(head[_LENGTH_BYTES:])
    meta, states = found["__metadata__"], found["states"]
    if meta.get("format") != FORMAT:
        raise OtherFormatError(f"{path}: format {meta.get('format')!r}, expected {FORMAT!r}")
    end = DATA_START + int(found["input_ids"]["data_offsets"][1])
    if size != end:
        raise ValueError(f"{path}: {size} bytes, its header says {end}")
    rows, width = (int(n) for n in states["shape"])
    layers = tuple(int(k) for k in json.loads(meta["layers"]))
    return Receipt(
        "complete",
        str(path),
        rows,
        width,
        layers,
        crc32=int(meta["crc32"]),
        bytes=size,
        tokens=int(found["input_ids"]["shape"][0]),
        ids_crc32=int(meta["ids_crc32"]),
        one_pass=int(meta["output_tokens"]) > 0,
    )
