"""What prep makes of each row of a source, for people who ask why a row was dropped.

Guarantee: the same readers, rules and renderer as prep, one record a row, in file order; nothing is
written. Price: rows are looked at one by one in this process, so it is for files one can read
through, not for millions of rows. Filters of the mix (`count`, languages, patterns, near
duplicates) compare a row with a run and are not part of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from eagled.config import Config, DatasetConfig
from eagled.errors import RowRejectedError
from eagled.lanes import lane_for
from eagled.printable import printable
from eagled.readers import read_row
from eagled.readers.base import Format, source_id_of
from eagled.readers.detect import found_format
from eagled.readers.pick import pick
from eagled.readers.sources import SourceRow, open_source
from eagled.text.canonical import canonical
from eagled.text.identity import conversation_uid, question_key
from eagled.text.messages import Conversation, Message, Role, to_json
from eagled.text.render import Renderer
from eagled.text.rows import Candidate, LineMaker
from eagled.types import Mode, RowReason

_LETTERS = {Role.SYSTEM: "S", Role.USER: "U", Role.ASSISTANT: "A", Role.TOOL: "T"}
_SHAPE_TURNS = 8


@dataclass(frozen=True, slots=True)
class TurnView:
    """One sample that a row gives.

    Attributes:
        target: index of its answer among the messages.
        lane: who generates it; None for a native answer, which is not asked for.
        tokens: of prompt and known answer together.
        rendered: the text of exactly these tokens.
        mask: 1 for each token to train on, 0 for the others; an answer that is still to be
            generated has no tokens yet.
    """

    target: int
    lane: str | None
    tokens: int
    rendered: str
    mask: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of `--json`."""
        return {
            "target": self.target,
            "tokens": self.tokens,
            "lane": self.lane,
            "rendered": self.rendered,
            "mask": list(self.mask),
        }


@dataclass(frozen=True, slots=True)
class RowView:
    """What becomes of one row: a conversation, or a reason with its detail."""

    file: str
    row: int
    conversation: Conversation | None = None
    reason: str | None = None
    detail: str = ""
    source_id: str | None = None
    turns: tuple[TurnView, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of `--json`; a key that says nothing is left out."""
        out: dict[str, Any] = {"file": self.file, "row": self.row}
        if self.conversation is None:
            out |= {"outcome": "reject", "reason": self.reason, "detail": printable(self.detail)}
        else:
            out |= _accepted(self.conversation)
        if self.source_id is not None:
            out["source_id"] = self.source_id
        if self.turns:
            first, *more = (turn.to_json() for turn in self.turns)
            out |= {key: first[key] for key in ("tokens", "lane", "rendered", "mask")}
            if more:
                out["more_turns"] = more
        return out

    @property
    def shape(self) -> str:
        """Who speaks in turn: S, U, A, T; +r with reasoning, +c with calls."""
        messages = self.conversation.messages if self.conversation is not None else ()
        words = [_letter(message) for message in messages[:_SHAPE_TURNS]]
        more = len(messages) - len(words)
        return " ".join([*words, *([f"... {more} more"] if more else [])])


@dataclass(slots=True)
class Inspection:
    """One look through a source; `counts` and `kept` grow while `rows` is read."""

    dataset: DatasetConfig
    mode: Mode
    format: Format | None
    config: Config | None = None
    kept: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def rows(self) -> Iterator[RowView]:
        """Yield a record for each row.

        Raises:
            ConfigError: if the source or the target cannot be used.
        """
        target = _Target.load(self.config, self.dataset) if self.config is not None else None
        seen: set[bytes] = set()
        for row in open_source(self.dataset, identify=False).rows():
            view = self._view(row, seen, target)
            if view.reason is None:
                self.kept += 1
            else:
                self.counts[view.reason] += 1
            yield view

    def _view(self, row: SourceRow, seen: set[bytes], target: _Target | None) -> RowView:
        source_id = source_id_of(row.value) if isinstance(row.value, dict) else None
        view = RowView(row.file, row.number, source_id=source_id)
        try:
            conversation = self._conversation(row, seen)
            turns = () if target is None else target.turns(row, conversation)
        except RowRejectedError as exc:
            return replace(view, reason=str(exc.reason), detail=exc.detail)
        return replace(
            view, conversation=conversation, source_id=conversation.source_id, turns=turns
        )

    def _conversation(self, row: SourceRow, seen: set[bytes]) -> Conversation:
        if row.fault is not None:
            raise RowRejectedError(row.fault, row.detail)
        conversation = canonical(read_row(row.value, self.format), self.mode)
        key = question_key(conversation)
        if key in seen:
            raise RowRejectedError(RowReason.DUPLICATE, "same question as an earlier row")
        seen.add(key)
        seed = self.config.run.seed if self.config is not None else 0
        targets = pick(conversation.targets, self.dataset.turns, seed, key.hex())
        return replace(conversation, targets=targets)


def open_inspection(
    source: str, *, format_name: str | None = None, mode: Mode | None = None,
    config: Config | None = None,
) -> Inspection:  # fmt: skip
    """Return the inspection of a file, folder or hub id, or of a configured dataset by its name.

    Args:
        source: as `datasets.source`; the name or source of a configured dataset takes its settings.
        format_name: overrides the settings; none is detection.
        mode: overrides the settings; none is what the format's own dataset needs.
        config: brings the target, so that rows are rendered and counted; None looks at rows only.

    Raises:
        ConfigError: if the format is not known or the source cannot be opened.
    """
    known = config.datasets if config is not None else ()
    own = next((d for d in known if source in (d.name, d.source)), None)
    dataset = own or DatasetConfig(name="inspect", source=source)
    if format_name is not None:
        dataset = dataset.model_copy(update={"format": format_name})
    chosen = found_format(dataset)
    if mode is None:
        mode = own.mode if own is not None else _mode_of(chosen)
    dataset = dataset.model_copy(update={"mode": mode})
    return Inspection(dataset, mode, chosen, config)


def _mode_of(chosen: Format | None) -> Mode:
    return chosen.mode if chosen is not None else Mode.REGENERATE


@dataclass(frozen=True, slots=True)
class _Target:
    """The target's side: renders conversations as prep does."""

    config: Config
    renderer: Renderer
    lines: LineMaker
    dataset: DatasetConfig

    @classmethod
    def load(cls, config: Config, dataset: DatasetConfig) -> _Target:
        renderer = Renderer.load(
            config.target, literal_control_text=config.prep.literal_control_text
        )
        return cls(config, renderer, LineMaker(config, dataset, renderer), dataset)

    def turns(self, row: SourceRow, conversation: Conversation) -> tuple[TurnView, ...]:
        uid = conversation_uid(self.dataset.name, conversation)
        line = self.lines.line(Candidate(row, conversation, uid, question_key(conversation)))
        turns = json.loads(line.data)["turns"]
        return tuple(self._turn(turn) for turn in turns if turn["prompt_ids"] is not None)

    def _turn(self, turn: dict[str, Any]) -> TurnView:
        prompt, answer = turn["prompt_ids"], turn["output_ids"]
        asked = answer is None
        lane = lane_for(self.config, len(prompt), server_context=None) if asked else None
        ids = [*prompt, *(answer or ())]
        mask = (0,) * len(prompt) + (1,) * (len(ids) - len(prompt))
        return TurnView(turn["target"], lane, len(ids), self.renderer.decode(ids), mask)


def _accepted(conversation: Conversation) -> dict[str, Any]:
    out: dict[str, Any] = {
        "outcome": "ok",
        "mode": conversation.mode.value,
        "messages": to_json(conversation.messages),
    }
    if conversation.tools is not None:
        out["tools"] = list(conversation.tools)
    return {
        **out,
        "targets": list(conversation.targets),
        "flags": list(conversation.flags),
    }


def _letter(message: Message) -> str:
    marks = ("+r" if message.reasoning else "") + ("+c" if message.tool_calls else "")
    return _LETTERS[message.role] + marks
