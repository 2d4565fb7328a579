"""open-thoughts/OpenThoughts-114k, both configurations.

default: the system text orders another model's tags, so it is dropped, and the tags in the answers
become reasoning and content. metadata: question, reasoning and answer in columns of their own.
"""

from __future__ import annotations

from dataclasses import replace

from eagled.errors import RowRejectedError
from eagled.readers.base import Format, RawRow, RawTurn, Row, source_id_of, text_of
from eagled.readers.sharegpt import read_conversations
from eagled.types import RowReason

_THOUGHT = "<|begin_of_thought|>"
_TAGS = {
    _THOUGHT: "<think>",
    "<|end_of_thought|>": "</think>",
    "<|begin_of_solution|>": "",
    "<|end_of_solution|>": "",
}
_METADATA = ("deepseek_reasoning", "deepseek_solution", "problem")


def _read(row: Row) -> RawRow:
    if "conversations" not in row and any(key in row for key in _METADATA):
        return _read_metadata(row)
    raw = read_conversations({key: row[key] for key in row if key != "system"})
    flags = set(raw.flags)
    if row.get("system") is not None:
        flags.add("system_dropped")
    return replace(raw, turns=tuple(map(_retagged, raw.turns)), flags=frozenset(flags))


def _retagged(turn: RawTurn) -> RawTurn:
    """Write the tags as a think block, which the rules for all formats understand."""
    if not turn.content.lstrip().startswith(_THOUGHT):
        return turn
    content = turn.content
    for tag, ours in _TAGS.items():
        content = content.replace(tag, ours, 1)
    return replace(turn, content=content)


def _read_metadata(row: Row) -> RawRow:
    if row.get("problem") is None:
        raise RowRejectedError(RowReason.MISSING_FIELD, "no 'problem'")
    prompt = text_of(row["problem"], "problem")
    starter = text_of(row.get("starter_code"), "starter_code")
    if starter.strip():
        prompt += f"\n\nStarter code:\n```python\n{starter.removesuffix(chr(10))}\n```"
    turns = [RawTurn("user", prompt)]
    if row.get("deepseek_solution") is not None:
        thought = text_of(row.get("deepseek_reasoning"), "deepseek_reasoning")
        answer = text_of(row["deepseek_solution"], "deepseek_solution")
        turns.append(RawTurn("assistant", answer, thought or None))
    return RawRow(tuple(turns), source_id=source_id_of(row), reasoning_field=True)


def _detects(row: Row) -> bool:
    if any(key in row for key in _METADATA[:2]):
        return True
    system = row.get("system")
    return "conversations" in row and isinstance(system, str) and _THOUGHT in system


FORMAT = Format(
    name="openthoughts-114k",
    rank=23,
    columns="system, conversations[{from, value}]; or problem, deepseek_reasoning, "
    "deepseek_solution, starter_code?",
    detects=_detects,
    read=_read,
    hub_ids=("open-thoughts/OpenThoughts-114k",),
    fits=lambda row: "conversations" in row or any(key in row for key in _METADATA),
)
