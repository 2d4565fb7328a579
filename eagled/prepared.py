"""The folder of a prepared dataset: its names, its manifest, and reading it back.

Guarantee: `read_prepared` gives what prep wrote or raises; a folder that is half written, altered
or of another format version is refused. Price: one extra pass over the compressed file for its
checksum. Imports neither transformers nor datasets, because the daemon reads these folders.
Coupled: `workers/prepare.py` writes the format; docs/formats.md describes it; raise
`PREPARED_VERSION` when a line changes its meaning.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import zstandard

from eagled.artifacts import MANIFEST_NAME, read_json, sha256_file
from eagled.errors import ArtifactError
from eagled.store.records import NewConversation, NewTurn
from eagled.tokens import pack_ids
from eagled.types import Mode

_log = logging.getLogger(__name__)

PREPARED_FORMAT = "eagled-prepared"
PREPARED_VERSION = 1
CONVERSATIONS_NAME = "conversations.jsonl.zst"
REJECTS_NAME = "rejects.jsonl"
PROFILE_NAME = "profile.json"
KEYS_NAME = "questions.bin"  # 64-bit keys of the kept questions, little-endian
NEAR_NAME = "signatures.bin"  # their MinHash signatures, where near duplicates were looked for
ZSTD_LEVEL = 3  # 6 makes chat rows 2.5% smaller
_NO_TOOLS = b'"tools":null'  # in JSON text a quote inside a string is escaped, so this is the key


@dataclass(frozen=True, slots=True)
class PreparedManifest:
    """What the manifest of a prepared dataset says.

    `inputs` names every input that changes the result; `prep_key` is their hash.
    """

    dataset: str
    prep_key: str
    mode: Mode
    n_rows: int
    n_kept: int
    n_turns: int
    rejected: Mapping[str, int]
    inputs: Mapping[str, Any]
    conversations_sha256: str
    tokens: int = 0
    lanes: Mapping[str, int] = field(default_factory=dict)
    flags: Mapping[str, int] = field(default_factory=dict)


def read_manifest(folder: Path) -> PreparedManifest:
    """Return the manifest of a prepared dataset.

    Raises:
        ArtifactError: if there is none or it is not one of ours.
    """
    path = folder / MANIFEST_NAME
    value = read_json(path)
    if value.get("format") != PREPARED_FORMAT or value.get("version") != PREPARED_VERSION:
        raise ArtifactError(
            f"{path} is {value.get('format')!r} version {value.get('version')!r}, this eagled "
            f"reads {PREPARED_FORMAT!r} version {PREPARED_VERSION}; run `eagled prep` again"
        )
    try:
        return _manifest_of(value)
    except (KeyError, TypeError, ValueError) as exc:
        raise ArtifactError(f"{path} is incomplete: {exc!r}; run `eagled prep` again") from exc


def _manifest_of(value: Mapping[str, Any]) -> PreparedManifest:
    return PreparedManifest(
        dataset=value["dataset"],
        prep_key=value["prep_key"],
        mode=Mode(value["mode"]),
        n_rows=value["rows"],
        n_kept=value["kept"],
        n_turns=value["turns"],
        rejected=value["rejected"],
        inputs=value["inputs"],
        conversations_sha256=value["files"][CONVERSATIONS_NAME]["sha256"],
        tokens=value.get("tokens", 0),
        lanes=value.get("lanes", {}),
        flags=value.get("flags", {}),
    )


def read_prepared(
    folder: Path,
    *,
    lane_of: Callable[[int], str | None],
    too_long: Callable[[str, int], None] | None = None,
) -> Iterator[NewConversation]:
    """Yield the conversations of a prepared dataset in file order.

    Prep lets no prompt through that is too long for the configured lanes; a server with a shorter
    context can still be too small for some. Those are left out and counted in the log; they enter
    when the folder is read again with room for them.

    Args:
        folder: `<state>/datasets/<name>`.
        lane_of: gives the lane for a prompt length in tokens, None if no lane takes it.
        too_long: told the uid (hex) and prompt length of each conversation that is left out.

    Raises:
        ArtifactError: if the folder is not exactly what prep left there.
    """
    manifest = read_manifest(folder)
    path = folder / CONVERSATIONS_NAME
    if not path.is_file() or sha256_file(path) != manifest.conversations_sha256:
        raise ArtifactError(
            f"{path} is missing or was altered since it was prepared; run `eagled prep --force`"
        )
    left_out = 0
    for line in read_lines(path):
        item = conversation_of(line, lane_of=lane_of)
        fits = tuple(turn for turn in item.turns if not _homeless(turn))
        first = item.turns[0]
        if not fits or fits[0].prompt is None:  # nothing is left, or only turns that wait for it
            left_out += 1
            if too_long is not None and first.prompt is not None:
                too_long(item.uid.hex(), first.prompt.n)
            continue
        yield item if len(fits) == len(item.turns) else replace(item, turns=fits)
    if left_out:
        _log.warning(
            "prompts too long for every lane dataset=%s left_out=%d", manifest.dataset, left_out
        )


def _homeless(turn: NewTurn) -> bool:
    """Return whether a turn has a prompt that no lane takes."""
    return turn.prompt is not None and turn.output is None and turn.lane is None


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the JSON lines of a compressed conversations file, without their line feeds."""
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        for line in io.BufferedReader(reader, buffer_size=1 << 20):
            yield line.rstrip(b"\n")


def conversation_of(line: bytes, *, lane_of: Callable[[int], str | None]) -> NewConversation:
    """Return the conversation that one line of the conversations file describes."""
    exact = _NO_TOOLS not in line  # a tool schema may hold integers beyond 64 bits
    row = json.loads(line) if exact else orjson.loads(line)
    turns = tuple(_turn_of(i, turn, lane_of) for i, turn in enumerate(row["turns"]))
    return NewConversation(
        uid=bytes.fromhex(row["uid"]),
        dedup=bytes.fromhex(row["dedup"]),
        source_id=row["source_id"],
        body=_body_of(row),
        turns=turns,
    )


def _turn_of(index: int, turn: Mapping[str, Any], lane_of: Callable[[int], str | None]) -> NewTurn:
    prompt, output = turn["prompt_ids"], turn["output_ids"]
    return NewTurn(
        uid=bytes.fromhex(turn["uid"]),
        turn=index,
        prompt=None if prompt is None else pack_ids(prompt),
        output=None if output is None else pack_ids(output),
        lane=lane_of(len(prompt)) if prompt is not None and output is None else None,
    )


def _body_of(row: Mapping[str, Any]) -> bytes | None:
    """Return what the text worker needs of a conversation; None for one turn without tools."""
    calls = row["tools"] is not None or any(m.get("tool_calls") for m in row["messages"])
    if row["mode"] == Mode.NATIVE or (len(row["turns"]) == 1 and not calls):
        return None
    keys = ("messages", "tools", "targets", "thinking")
    text = dump_line({key: row[key] for key in keys})
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(text)


def dump_line(value: Mapping[str, Any]) -> bytes:
    """Return compact UTF-8 JSON that keeps every integer exactly.

    Raises:
        ValueError: for a lone surrogate, NaN or an infinity, which JSON cannot hold.
    """
    if value.get("tools", value) is None:  # only schemas can hold numbers that orjson would change
        try:
            return orjson.dumps(value)
        except TypeError:  # a lone surrogate; the other writer says where
            pass
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")
