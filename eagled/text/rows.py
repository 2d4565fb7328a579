"""From a conversation that passed the rules to a line of the prepared dataset.

Guarantee: the first prompt (native: every prompt and answer) is made by the target's own template
and counted in tokens; what the template loses, or what is too long, is refused with a reason.
Coupled: `workers/preparation/` drives this; `eagled/prepared.py` reads the lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagled.config import Config, DatasetConfig
from eagled.errors import RowRejectedError
from eagled.lanes import longest_prompt, ordered_lanes
from eagled.prepared import dump_line
from eagled.readers.sources import SourceRow
from eagled.text.identity import sample_uid
from eagled.text.messages import Conversation, to_json
from eagled.text.native import NativeRenderer
from eagled.text.render import Renderer
from eagled.types import Mode, RowReason


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row that passed every rule that needs no tokenizer."""

    row: SourceRow
    conversation: Conversation
    uid: bytes
    dedup: bytes


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the conversations file, without its line feed, and what is counted of it.

    `prompts` and `answers` are lengths in tokens of what is known already.
    """

    data: bytes
    turns: int
    prompts: tuple[int, ...]
    answers: tuple[int, ...]
    flags: tuple[str, ...]


class LineMaker:
    """Renders candidates into lines of the conversations file."""

    def __init__(self, config: Config, dataset: DatasetConfig, renderer: Renderer) -> None:
        self._dataset = dataset
        self._renderer = renderer
        self._native = NativeRenderer(renderer)
        self._thinking = config.sampling_of(dataset.name).thinking
        self._longest = longest_prompt(config)
        self._context = ordered_lanes(config)[-1][1].context

    def line(self, candidate: Candidate) -> Line:
        """Return the line of a candidate.

        Raises:
            RowRejectedError: if its first prompt cannot be made, or has not the wanted length.
        """
        conversation = candidate.conversation
        self._refuse_lost(conversation)
        flags = set(conversation.flags)
        native = conversation.mode is Mode.NATIVE
        if native:
            turns = self._native_turns(conversation, flags)
        elif conversation.trajectory:
            turns = self._run_turns(conversation, flags)
        else:
            turns = self._first(conversation)
        self._refuse_length(turns[0])
        for index, turn in enumerate(turns):
            turn["uid"] = sample_uid(candidate.uid, index).hex()
        tools = conversation.tools
        line = _dump(
            {
                "uid": candidate.uid.hex(),
                "dedup": candidate.dedup.hex(),
                "source_id": conversation.source_id,
                "file": candidate.row.file,
                "row": candidate.row.number,
                "mode": conversation.mode.value,
                "thinking": None if native else self._thinking,
                "messages": to_json(conversation.messages),
                "tools": None if tools is None else list(tools),
                "targets": list(conversation.targets),
                "flags": sorted(flags),
                "turns": turns,
            }
        )
        return Line(
            line,
            len(turns),
            tuple(len(turn["prompt_ids"]) for turn in turns if turn["prompt_ids"]),
            tuple(len(turn["output_ids"]) for turn in turns if turn["output_ids"]),
            tuple(sorted(flags)),
        )

    def _refuse_lost(self, conversation: Conversation) -> None:
        """Refuse what the template is known to lose in this or a later turn."""
        facts = self._renderer.facts
        calls = any(message.tool_calls for message in conversation.messages)
        what = {
            "tool declarations": conversation.tools is not None and not facts.keeps_tools,
            "tool calls": calls and not facts.keeps_calls,
            "a later system message": "system_not_first" in conversation.flags
            and not facts.keeps_later_system,
        }
        for name, is_lost in what.items():
            if is_lost:
                detail = f"the chat template does not print {name}"
                raise RowRejectedError(RowReason.LOST_IN_TEMPLATE, detail)

    def _first(self, conversation: Conversation) -> list[dict[str, Any]]:
        """Return the turns of a conversation whose answers will be regenerated."""
        first = self._prompt(conversation, conversation.targets[0])
        prompts = [first, *([None] * (len(conversation.targets) - 1))]
        return [
            {"uid": "", "target": target, "prompt_ids": prompt, "output_ids": None}
            for target, prompt in zip(conversation.targets, prompts, strict=True)
        ]

    def _run_turns(self, conversation: Conversation, flags: set[str]) -> list[dict[str, Any]]:
        """Return the turns of a recorded agent run, each behind the run as it was recorded.

        Other answers would not fit the recorded results, so turns do not wait for each other. One
        whose prompt is too long is left out.
        """
        turns, fault = [], None
        for target in conversation.targets:
            try:
                ids = self._prompt(conversation, target)
            except RowRejectedError as exc:
                if exc.reason != RowReason.TOO_LONG:
                    raise
                fault = exc
                flags.add("dropped_long_turn")
                continue
            turns.append({"uid": "", "target": target, "prompt_ids": ids, "output_ids": None})
        if fault is not None and not turns:
            raise fault
        return turns

    def _prompt(self, conversation: Conversation, target: int) -> list[int]:
        """Return the ids of everything before a target."""
        asked = conversation.messages[:target]
        ids = self._renderer.prompt_ids(asked, conversation.tools, thinking=self._thinking)
        if self._longest and len(ids) > self._longest:
            detail = f"the prompt has {len(ids)} tokens, the longest lane takes {self._longest}"
            raise RowRejectedError(RowReason.TOO_LONG, detail)
        return ids

    def _native_turns(self, conversation: Conversation, flags: set[str]) -> list[dict[str, Any]]:
        """Return the turns of a conversation whose answers are the target's own.

        An answer that runs over the longest context is cut there, without an invented stop
        token; a turn whose prompt leaves no room is left out.
        """
        turns = []
        for target in conversation.targets:
            turn = self._native.turn(conversation.messages, conversation.tools, target)
            room = self._context - len(turn.prompt) if self._context else len(turn.answer)
            if room <= 0:
                flags.add("dropped_long_turn")
                continue
            if room < len(turn.answer):
                flags.add("cut_answer")
            answer = turn.answer[:room]
            turns.append(
                {"uid": "", "target": target, "prompt_ids": turn.prompt, "output_ids": answer}
            )
        if not turns:
            detail = f"no answer begins within the longest context of {self._context} tokens"
            raise RowRejectedError(RowReason.TOO_LONG, detail)
        return turns

    def _refuse_length(self, turn: dict[str, Any]) -> None:
        """Refuse a first prompt outside `min_tokens` to `max_tokens`."""
        n, least, most = len(turn["prompt_ids"]), self._dataset.min_tokens, self._dataset.max_tokens
        if n < least or (most and n > most):
            detail = f"the first prompt has {n} tokens, wanted are {least} to {most or 'any'}"
            raise RowRejectedError(RowReason.OUTSIDE_LENGTH, detail)


def _dump(value: dict[str, Any]) -> bytes:
    try:
        return dump_line(value)
    except ValueError as exc:  # nothing is written that the next reader refuses
        raise RowRejectedError(RowReason.BAD_ENCODING, str(exc)) from exc
