"""Small helpers for tests of prep and the text worker, around the toy tokenizer."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from eagled.config import Config, DatasetConfig
from eagled.prepared import CONVERSATIONS_NAME, REJECTS_NAME, read_lines
from eagled.readers import read_row
from eagled.readers.sources import SourceRow, open_source
from eagled.text.canonical import canonical
from eagled.text.messages import Conversation
from eagled.text.render import Renderer
from eagled.tokens import PackedIds, pack_ids
from eagled.types import Finish, Mode, TextJob
from tests.toy import TOY, load_toy_tokenizer

IM_END, IM_USER, IM_ASSISTANT, IM_SYSTEM, IM_MIDDLE = 271, 272, 273, 274, 275
THINK, CLOSE_THINK = 281, 282


@cache
def toy_renderer(template: str = "chat_template.jinja") -> Renderer:
    """Return a renderer of the toy tokenizer, one a process."""
    return Renderer(load_toy_tokenizer(template))


def toy_config(state: Path, source: Path | str, **changes: Any) -> Config:
    """Return a configuration with one dataset called `d`; `changes` replace whole sections."""
    dataset = {"name": "d", "source": str(source), **changes.pop("dataset", {})}
    sections: dict[str, Any] = {
        "run": {"state_dir": state},
        "target": {"model": str(TOY)},
        "generation": {"min_reply": 1},
        "datasets": [dataset],
    }
    return Config.model_validate({**sections, **changes})


def rows_of(source: Path) -> list[SourceRow]:
    """Return every row of a source."""
    return list(open_source(DatasetConfig(name="d", source=str(source))).rows())


def conversations_of(source: Path, mode: Mode = Mode.REGENERATE) -> dict[str, Conversation]:
    """Return the canonical conversations of a source by their own id."""
    out = {}
    for row in rows_of(source):
        conversation = canonical(read_row(row.value, None), mode)
        out[str(conversation.source_id)] = conversation
    return out


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a prepared dataset."""
    return [json.loads(line) for line in read_lines(folder / CONVERSATIONS_NAME)]


def rejects_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rejects of a prepared dataset."""
    text = (folder / REJECTS_NAME).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def write_jsonl(path: Path, *rows: object) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def http_body(path: Path) -> dict[str, Any]:
    """Return the JSON body of a stored HTTP reply."""
    body: dict[str, Any] = json.loads(path.read_bytes().split(b"\r\n\r\n", 1)[1])
    return body


def any_lane(_n_prompt: int) -> str:
    """Put every prompt into one lane."""
    return "short"


def text_job(
    prompt: list[int],
    output: list[int],
    *,
    finish: Finish = Finish.STOP,
    conversation: bytes | None = None,
    answers: tuple[PackedIds, ...] = (),
    has_next: bool = False,
) -> TextJob:
    """Return a job of the text worker."""
    return TextJob(
        sample_id=7,
        attempt=2,
        dataset="d",
        turn=len(answers),
        finish=finish,
        prompt=pack_ids(prompt),
        output=pack_ids(output),
        conversation=conversation,
        answers=answers,
        has_next=has_next,
    )
