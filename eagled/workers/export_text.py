"""Give a corpus without its states: as Parquet, or as conversations for any SFT tool.

Guarantee: the folder appears whole or not at all; ids and masks are those of the corpus, text is
their decoding. A conversation's answers are the generated ones, put into the recorded turns just as
they were asked. Price: one pass over the corpus; of prepared datasets the needed conversations stay
in memory, compressed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from eagled.artifacts import atomic_file, write_json
from eagled.config import Config
from eagled.errors import OutputRejectedError
from eagled.paths import StatePaths
from eagled.prepared import CONVERSATIONS_NAME, read_lines
from eagled.text.answer import ParsedAnswer, parse_answer
from eagled.text.messages import Message, Role, ToolCall, to_json
from eagled.text.render import Renderer
from eagled.text.replay import Recorded, next_messages
from eagled.train.corpus import Corpus, CorpusRow
from eagled.workers.export_folder import EXPORT_FORMAT, NOTE_NAME, ExportResult, export_folder

_GROUP_ROWS = 512
_SCHEMA = pa.schema(
    [
        pa.field("uid", pa.string()),
        pa.field("dataset", pa.string()),
        pa.field("conversation", pa.string()),
        pa.field("turn", pa.int32()),
        pa.field("split", pa.string()),
        pa.field("finish", pa.string()),
        pa.field("input_ids", pa.list_(pa.int32())),
        pa.field("loss_mask", pa.list_(pa.uint8())),
        pa.field("prompt", pa.string()),
        pa.field("answer", pa.string()),
    ]
)


def export_parquet(
    corpus: Corpus, renderer: Renderer, out: Path, *, split: str | None = None
) -> ExportResult:
    """Write ids, masks and text of a corpus as `data.parquet`."""
    tokens = samples = 0
    with export_folder(out) as work:
        with (
            atomic_file(work / "data.parquet") as file,
            pq.ParquetWriter(file, _SCHEMA, compression="zstd") as writer,
        ):
            for rows in _batches(corpus.rows(split), _GROUP_ROWS):
                table = [_parquet_row(row, renderer) for row in rows]
                writer.write_table(pa.Table.from_pylist(table, schema=_SCHEMA))
                samples += len(rows)
                tokens += sum(len(row.input_ids) for row in rows)
        _write_note(work, "parquet", corpus, ())
    return ExportResult(out, samples, tokens, ())


def _batches(rows: Iterable[CorpusRow], n: int) -> Iterator[list[CorpusRow]]:
    it = iter(rows)
    while part := list(itertools.islice(it, n)):
        yield part


def _parquet_row(row: CorpusRow, renderer: Renderer) -> dict[str, Any]:
    ids = row.input_ids
    return {
        "uid": row.uid,
        "dataset": row.dataset,
        "conversation": row.conversation,
        "turn": row.turn,
        "split": row.split,
        "finish": row.finish,
        "input_ids": ids,
        "loss_mask": (np.arange(len(ids)) >= row.n_prompt).astype(np.uint8),
        "prompt": renderer.decode(ids[: row.n_prompt].tolist()),
        "answer": renderer.decode(ids[row.n_prompt :].tolist()),
    }


def export_messages(
    config: Config, corpus: Corpus, renderer: Renderer, out: Path, *, split: str | None = None
) -> ExportResult:
    """Write conversations as `messages.jsonl`: id, dataset, split, messages, tools.

    Of each conversation the answers up to the first one that is not in the corpus are given.
    """
    paths = StatePaths(config.run.state_dir)
    skipped = tokens = samples = 0
    with export_folder(out) as work:
        with atomic_file(work / "messages.jsonl") as file:
            for dataset, group in itertools.groupby(corpus.rows(split), lambda r: r.dataset):
                talks = _talks(list(group))
                recorded = _recorded(paths.datasets / dataset, set(talks))
                for uid, rows in talks.items():
                    line = _line(uid, rows, recorded.get(uid), renderer)
                    if line is None:
                        skipped += 1
                        continue
                    file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
                    samples += 1
                    tokens += sum(len(row.input_ids) - row.n_prompt for row in rows)
        notes = (f"{skipped} conversations have no first answer or no prepared form here",)
        _write_note(work, "hf-messages", corpus, notes if skipped else ())
    return ExportResult(out, samples, tokens, notes if skipped else ())


def _talks(rows: Sequence[CorpusRow]) -> dict[str, list[CorpusRow]]:
    """Group rows by conversation, in order, each up to its first missing turn."""
    talks: dict[str, list[CorpusRow]] = {}
    for row in rows:
        known = talks.setdefault(row.conversation, [])
        if row.turn == len(known):
            known.append(row)
    return talks


def _recorded(folder: Path, wanted: set[str]) -> dict[str, bytes]:
    """Return the prepared form of the wanted conversations, compressed, by uid."""
    path = folder / CONVERSATIONS_NAME
    if not path.exists():
        return {}
    pack = zstandard.ZstdCompressor(level=1).compress
    found = {}
    for line in read_lines(path):
        uid = orjson.loads(line)["uid"]
        if uid in wanted:
            found[uid] = pack(line)
    return found


def _line(
    uid: str, rows: Sequence[CorpusRow], packed: bytes | None, renderer: Renderer
) -> dict[str, Any] | None:
    if packed is None or not rows:
        return None
    value = json.loads(zstandard.ZstdDecompressor().decompress(packed))
    recorded = Recorded(
        messages=tuple(Message.from_json(m) for m in value["messages"]),
        tools=None if value["tools"] is None else tuple(value["tools"]),
        targets=tuple(value["targets"]),
        thinking=value["thinking"],
    )
    answers = [
        parse_answer(
            renderer, row.input_ids[: row.n_prompt].tolist(), row.input_ids[row.n_prompt :].tolist()
        )
        for row in rows
    ]
    history = _history(recorded, answers)
    return {
        "id": uid,
        "dataset": rows[0].dataset,
        "split": rows[0].split,
        "messages": to_json(history),
        "tools": value["tools"],
    }


def _history(recorded: Recorded, answers: Sequence[ParsedAnswer]) -> list[Message]:
    """Return the conversation up to and with its last answer."""
    answers = list(answers)
    while True:
        try:
            history = next_messages(recorded, answers[:-1])
        except OutputRejectedError:  # an earlier turn called other functions: it was the end
            answers.pop()
            continue
        calls = sum(len(message.tool_calls) for message in history)
        return [*history, _said(answers[-1], calls)]


def _said(answer: ParsedAnswer, calls: int) -> Message:
    numbered = tuple(
        ToolCall(call.id or f"functions.{call.name}:{calls + i}", call.name, call.arguments)
        for i, call in enumerate(answer.calls)
    )
    return Message(Role.ASSISTANT, answer.content, answer.reasoning, numbered)


def _write_note(work: Path, kind: str, corpus: Corpus, notes: Sequence[str]) -> None:
    value = {
        "format": EXPORT_FORMAT,
        "to": kind,
        "corpus": corpus.version,
        "members_hash": corpus.members_hash,
        "notes": list(notes),
    }
    write_json(work / NOTE_NAME, value)
