"""From a row's own turns to canonical messages, or to a reason why not.

Guarantee: the rules run in one fixed order (text, roles, reasoning, shape, blanks, tools, native
tail, control text), so the first broken one names the reason; nothing is dropped or changed
without a flag. docs/formats.md lists the rules, reasons and flags.
"""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass, field, replace

from eagled.errors import RowRejectedError
from eagled.readers.base import RawCall, RawRow, RawTurn
from eagled.text.messages import Conversation, Message, Role, ToolCall, Tools
from eagled.types import Mode, RowReason

ROLES: dict[str, Role] = {
    **dict.fromkeys(("human", "user"), Role.USER),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "assistant", "ai", "model"), Role.ASSISTANT),
    "system": Role.SYSTEM,
    "tool": Role.TOOL,
}
CONTROL_TEXT = re.compile("<\\|[^<>|\\s]+\\|>|<\uff5c[^<>\uff5c\\s]+\uff5c>")
CONTROL_TEXT_FLAG = "control_token_text"
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_JOIN = "\n\n"


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn between the rules: canonical role and text, calls still as the row has them."""

    role: Role
    content: str
    reasoning: str | None
    calls: tuple[RawCall, ...]
    call_id: str | None
    name: str | None
    broken: str | None = None
    cut: bool = False


@dataclass(slots=True)
class _Row:
    """One row on its way through the rules; `strict`: a blank answer makes it useless."""

    mode: Mode
    strict: bool
    turns: list[_Turn] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)

    @property
    def native(self) -> bool:
        return self.mode is Mode.NATIVE


def canonical(raw: RawRow, mode: Mode) -> Conversation:
    """Return the conversation of a row.

    Raises:
        RowRejectedError: with the reason of the first rule that the row breaks.
    """
    row = _Row(mode, raw.trajectory or mode is Mode.NATIVE, flags=set(raw.flags))
    row.turns = [_read_turn(turn, row) for turn in raw.turns]
    _shape(row)
    _drop_cut_turn(row)
    _blanks(row)
    messages = _with_calls(row.turns, raw.tools)
    if row.native:
        messages = _trim_tail(messages, row)
        if raw.reasoning_field and not any(m.reasoning for m in messages):
            row.flags.add("no_reasoning")
    if any(CONTROL_TEXT.search(text) for text in _texts(messages)):
        row.flags.add(CONTROL_TEXT_FLAG)
    return Conversation(
        messages=tuple(messages),
        tools=raw.tools or None,
        targets=_targets(messages, mode),
        flags=tuple(sorted(row.flags)),
        source_id=raw.source_id,
        mode=mode,
        trajectory=raw.trajectory,
        task=raw.task,
    )


def _read_turn(turn: RawTurn, row: _Row) -> _Turn:
    if turn.role not in ROLES:
        raise RowRejectedError(RowReason.UNKNOWN_ROLE, f"role {turn.role!r}")
    role = ROLES[turn.role]
    content = _clean(turn.content, row)
    reasoning = _clean(turn.reasoning, row) if turn.reasoning is not None else None
    if role is Role.ASSISTANT and reasoning is None:
        reasoning, content = _split_think(content, row)
    if turn.name is not None and role is not Role.TOOL:
        row.flags.add("names_removed")
    return _Turn(
        role, content, reasoning, turn.calls, turn.call_id, turn.name, turn.broken, turn.cut
    )


def _clean(text: str, row: _Row) -> str:
    if "\0" in text:
        row.flags.add("nul_removed")
        text = text.replace("\0", "")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        detail = f"half a character (surrogate) at position {exc.start}"
        raise RowRejectedError(RowReason.BAD_ENCODING, detail) from exc
    return text


def _split_think(content: str, row: _Row) -> tuple[str | None, str]:
    """Split think tags off an answer: (reasoning, rest)."""
    opened = content.lstrip().startswith(_THINK_OPEN)
    if _THINK_CLOSE not in content:
        if not opened:
            return None, content
        if row.native:
            raise RowRejectedError(RowReason.UNCLOSED_THINK, "the block is never closed")
        row.flags.add("unclosed_think")
        return content.lstrip().removeprefix(_THINK_OPEN).strip(), ""
    reasoning, rest = content.split(_THINK_CLOSE, 1)
    if opened:
        reasoning = reasoning.lstrip().removeprefix(_THINK_OPEN)
    if not row.native:
        reasoning, rest = reasoning.strip(), rest.strip()
    return (reasoning if reasoning.strip() else None), rest


def _shape(row: _Row) -> None:
    """Apply the rules about who speaks when."""
    turns = row.turns
    first = next((i for i, turn in enumerate(turns) if turn.role is Role.USER), None)
    if first is None:
        raise RowRejectedError(RowReason.NO_USER_TURN, "nobody asks anything")
    # a greeting under a system message is how the chat began; without one it is the answer to a
    # question that a split left in another row
    piece = not any(turn.role is Role.SYSTEM for turn in turns[:first])
    if piece and first:
        row.flags.add("dropped_leading_assistant")
        turns = [turn for turn in turns[:first] if turn.role is not Role.ASSISTANT] + turns[first:]
    row.turns = _merged(turns, row)
    if any(turn.role is Role.SYSTEM for turn in row.turns[1:]):
        row.flags.add("system_not_first")


def _merged(turns: list[_Turn], row: _Row) -> list[_Turn]:
    out: list[_Turn] = []
    for turn in turns:
        same = bool(out) and out[-1].role is turn.role
        if same and turn.role in (Role.USER, Role.ASSISTANT):
            row.flags.add(f"merged_{turn.role}")
            out[-1] = _join(out[-1], turn)
        else:
            out.append(turn)
    return out


def _join(one: _Turn, two: _Turn) -> _Turn:
    content = _JOIN.join(text for text in (one.content, two.content) if text.strip())
    thoughts = [text for text in (one.reasoning, two.reasoning) if text]
    return replace(
        one,
        content=content,
        reasoning=_JOIN.join(thoughts) if thoughts else None,
        calls=one.calls + two.calls,
        broken=one.broken or two.broken,
        cut=two.cut,
    )


def _drop_cut_turn(row: _Row) -> None:
    """Drop a last turn that ends in the middle of a call."""
    if row.turns[-1].cut:
        row.flags.add("trimmed_truncated_final")
        row.turns = row.turns[:-1]


def _blanks(row: _Row) -> None:
    for turn in row.turns:
        if turn.content.strip():
            continue
        if turn.role is Role.USER:
            raise RowRejectedError(RowReason.EMPTY_USER_TURN, "a user turn is blank")
        if turn.role is Role.ASSISTANT and not turn.calls and turn.broken is None:
            if row.strict:
                raise RowRejectedError(RowReason.EMPTY_ASSISTANT_TURN, "an answer is blank")
            if not turn.reasoning:
                row.flags.add("empty_assistant")


@dataclass(slots=True)
class _Ledger:
    """Numbers the calls of a conversation and finds the call that a result answers."""

    declared: frozenset[str] | None
    count: int = 0
    new_ids: dict[str, str] = field(default_factory=dict)  # the row's id -> ours, latest wins
    open: deque[ToolCall] = field(default_factory=deque)

    def call(self, raw: RawCall) -> ToolCall:
        if not raw.name.isprintable():  # control characters and lone surrogates
            raise RowRejectedError(RowReason.UNPARSEABLE_TOOL_CALL, f"name {raw.name!r}")
        if self.declared is not None and raw.name not in self.declared:
            raise RowRejectedError(RowReason.TOOLS_UNDECLARED, f"{raw.name!r} is not declared")
        arguments = arguments_text(raw.arguments)
        call = ToolCall(f"functions.{raw.name}:{self.count}", raw.name, arguments)
        self.count += 1
        if raw.id is not None:
            self.new_ids[raw.id] = call.id
        self.open.append(call)
        return call

    def answered(self, turn: _Turn) -> str:
        """Return our id of the call that this result belongs to."""
        if turn.call_id is not None:
            found = self.new_ids.get(turn.call_id)
        else:
            named = (c.id for c in self.open if turn.name in (None, c.name))
            found = next(named, None)
        if found is None:
            shown = turn.call_id or turn.name
            raise RowRejectedError(RowReason.ORPHAN_TOOL_RESULT, f"{shown!r} answers no call")
        self.open = deque(call for call in self.open if call.id != found)
        return found


def _with_calls(turns: list[_Turn], tools: Tools | None) -> list[Message]:
    """Return the messages with calls numbered and results bound to them."""
    declared = None
    if tools is not None:
        declared = frozenset(tool["function"]["name"] for tool in tools)
    ledger = _Ledger(declared)
    return [_message(turn, ledger) for turn in turns]


def _message(turn: _Turn, ledger: _Ledger) -> Message:
    if turn.broken is not None:
        raise RowRejectedError(RowReason.UNPARSEABLE_TOOL_CALL, turn.broken)
    return Message(
        role=turn.role,
        content=turn.content,
        reasoning=turn.reasoning if turn.role is Role.ASSISTANT else None,
        tool_calls=tuple(ledger.call(call) for call in turn.calls),
        tool_call_id=ledger.answered(turn) if turn.role is Role.TOOL else None,
    )


def arguments_text(value: object) -> str:
    """Return tool arguments as once-encoded JSON text of an object.

    Args:
        value: an object, its JSON text, that text encoded once more, or nothing.

    Raises:
        RowRejectedError: if no object comes out, or one that JSON cannot hold.
    """
    for _ in range(2):  # at most one encoding too many is undone
        if not isinstance(value, str):
            break
        value = _decoded(value)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise RowRejectedError(RowReason.UNPARSEABLE_TOOL_CALL, f"arguments are a {kind}")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")  # a lone surrogate could not be written
    except ValueError as exc:
        raise RowRejectedError(RowReason.UNPARSEABLE_TOOL_CALL, f"arguments: {exc}") from exc
    return text


def _decoded(text: str) -> object:
    if not text.strip():
        return {}
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        detail = f"arguments are not JSON: {exc}"
        raise RowRejectedError(RowReason.UNPARSEABLE_TOOL_CALL, detail) from exc


def _trim_tail(messages: list[Message], row: _Row) -> list[Message]:
    last = max((i for i, m in enumerate(messages) if m.role is Role.ASSISTANT), default=None)
    if last is None or not _targets(messages[: last + 1], row.mode):
        raise RowRejectedError(RowReason.EMPTY_ASSISTANT_TURN, "no answer to train on")
    if last + 1 < len(messages):
        row.flags.add("trimmed_trailing")
    return messages[: last + 1]


def _targets(messages: list[Message], mode: Mode) -> tuple[int, ...]:
    first = next((i for i, m in enumerate(messages) if m.role is Role.USER), len(messages))
    answers = [i for i, m in enumerate(messages) if m.role is Role.ASSISTANT and i > first]
    if mode is Mode.REGENERATE and messages[-1].role is not Role.ASSISTANT:
        answers.append(len(messages))
    return tuple(answers)


def _texts(messages: list[Message]) -> list[str]:
    texts = [message.content for message in messages]
    texts += [message.reasoning for message in messages if message.reasoning]
    return texts + [call.arguments for message in messages for call in message.tool_calls]
