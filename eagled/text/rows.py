"""One dataset's rows on their way through prep: screened, rendered, counted.

Guarantee: each row read is kept once or rejected once, with a reason. Order of the checks: format,
canonical form, benchmark prompts, duplicates (none needs a tokenizer), then template and length.
Coupled: `workers/prepare.py` drives this; `eagled/prepared.py` reads the lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from eagled.config import Config, DatasetConfig
from eagled.errors import RowRejectedError
from eagled.lanes import longest_prompt, ordered_lanes
from eagled.prepared import dump_line
from eagled.printable import printable
from eagled.readers import format_named, read_row
from eagled.readers.base import Format, source_id_of
from eagled.readers.sources import SourceRow
from eagled.text.canonical import canonical
from eagled.text.exclude import Exclusions
from eagled.text.identity import conversation_uid, dedup_key, sample_uid
from eagled.text.messages import Conversation, to_json
from eagled.text.native import NativeRenderer
from eagled.text.render import Renderer
from eagled.types import Mode, RowReason

_PROGRESS_ROWS = 100
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class PrepProgress:
    """Counts while a dataset is being prepared."""

    dataset: str
    rows: int
    kept: int
    rejected: int


Progress = Callable[[PrepProgress], None]


@dataclass(slots=True)
class PrepRun:
    """One dataset on its way, and what was counted so far."""

    config: Config
    dataset: DatasetConfig
    renderer: Renderer
    progress: Progress | None
    rows: int = 0
    kept: int = 0
    turns: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    answer_lengths: list[int] = field(default_factory=list)
    stopped_early: bool = False

    def tell(self) -> None:
        """Report the counts."""
        if self.progress is not None:
            rejected = self.rejected.total()
            self.progress(PrepProgress(self.dataset.name, self.rows, self.kept, rejected))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row that passed every rule that needs no tokenizer."""

    row: SourceRow
    conversation: Conversation
    uid: bytes
    dedup: bytes


class Rejects:
    """Writes rejects.jsonl and counts."""

    def __init__(self, run: PrepRun, file: BinaryIO) -> None:
        self._run = run
        self._file = file

    def add(self, row: SourceRow, exc: RowRejectedError, source_id: str | None) -> None:
        """Write and count one rejected row."""
        self._run.rejected[str(exc.reason)] += 1
        detail = printable(exc.detail)
        if len(self._run.examples) < _EXAMPLES:
            self._run.examples.append(f"{row.file} row {row.number}: {exc.reason}: {detail}")
        line = {
            "file": row.file,
            "row": row.number,
            "source_id": source_id,
            "reason": str(exc.reason),
            "detail": detail,
        }
        self._file.write(dump_line(line) + b"\n")


class Screen:
    """The rules that need no tokenizer: format, canonical form, exclusion, duplicates."""

    def __init__(self, run: PrepRun, rejects: Rejects) -> None:
        self._run = run
        self._rejects = rejects
        self._format: Format | None = format_named(run.dataset.format)
        self._excluded = Exclusions.load(run.config.prep.exclude)
        self._seen: set[bytes] = set()

    def passed(self, rows: Iterable[SourceRow]) -> Iterator[Candidate]:
        """Yield the rows that pass, in file order; the others go to the rejects."""
        for row in rows:
            self._run.rows += 1
            if self._run.rows % _PROGRESS_ROWS == 0:
                self._run.tell()
            source_id = source_id_of(row.value) if isinstance(row.value, dict) else None
            try:
                if row.fault is not None:
                    raise RowRejectedError(row.fault, row.detail)  # noqa: TRY301 - one way out for all reasons
                raw = read_row(row.value, self._format)
                yield self._candidate(row, canonical(raw, self._run.dataset.mode))
            except RowRejectedError as exc:
                self._rejects.add(row, exc, source_id)

    def _candidate(self, row: SourceRow, conversation: Conversation) -> Candidate:
        asked = self._excluded.match(conversation.messages)
        if asked is not None:
            raise RowRejectedError(RowReason.EXCLUDED, f"benchmark prompt {asked!r}")
        dedup = dedup_key(conversation.messages)
        if dedup in self._seen:
            raise RowRejectedError(RowReason.DUPLICATE, "same question as an earlier row")
        self._seen.add(dedup)
        uid = conversation_uid(self._run.dataset.name, conversation)
        return Candidate(row, conversation, uid, dedup)


class LineMaker:
    """Renders candidates into lines of the conversations file."""

    def __init__(self, run: PrepRun) -> None:
        self._run = run
        self._native = NativeRenderer(run.renderer)
        self._thinking = run.config.sampling_of(run.dataset.name).thinking
        self._longest = longest_prompt(run.config)
        self._context = ordered_lanes(run.config)[-1][1].context

    def line(self, candidate: Candidate) -> bytes:
        """Return the line of a candidate and count its turns.

        Raises:
            RowRejectedError: if its first prompt cannot be made or is too long.
        """
        conversation = candidate.conversation
        self._refuse_lost(conversation)
        flags = set(conversation.flags)
        native = conversation.mode is Mode.NATIVE
        turns = self._native_turns(conversation, flags) if native else self._first(conversation)
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
        self._count(turns, flags)
        return line

    def _refuse_lost(self, conversation: Conversation) -> None:
        """Refuse what the template is known to lose in this or a later turn."""
        facts = self._run.renderer.facts
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
        asked = conversation.messages[: conversation.targets[0]]
        ids = self._run.renderer.prompt_ids(asked, conversation.tools, thinking=self._thinking)
        if self._longest and len(ids) > self._longest:
            detail = f"the prompt has {len(ids)} tokens, the longest lane takes {self._longest}"
            raise RowRejectedError(RowReason.TOO_LONG, detail)
        prompts = [ids, *([None] * (len(conversation.targets) - 1))]
        return [
            {"uid": "", "target": target, "prompt_ids": prompt, "output_ids": None}
            for target, prompt in zip(conversation.targets, prompts, strict=True)
        ]

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

    def _count(self, turns: list[dict[str, Any]], flags: set[str]) -> None:
        run = self._run
        run.kept += 1
        run.turns += len(turns)
        run.flags.update(flags)
        run.lengths += [len(turn["prompt_ids"]) for turn in turns if turn["prompt_ids"]]
        run.answer_lengths += [len(turn["output_ids"]) for turn in turns if turn["output_ids"]]


def _dump(value: dict[str, Any]) -> bytes:
    try:
        return dump_line(value)
    except ValueError as exc:  # nothing is written that the next reader refuses
        raise RowRejectedError(RowReason.BAD_ENCODING, str(exc)) from exc
