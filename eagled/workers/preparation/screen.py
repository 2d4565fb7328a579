"""The rules that look at one row alone and need no tokenizer, in one fixed order.

Format, canonical form, language, regular expressions, benchmark prompts; then the row's question
gets its identity and, where wanted, its MinHash signature.
"""

from __future__ import annotations

import re
from dataclasses import replace

from eagled.decontaminate import Exclusions
from eagled.dedup import signature_of
from eagled.errors import RowRejectedError
from eagled.printable import printable
from eagled.readers import format_named, read_row
from eagled.readers.base import source_id_of
from eagled.readers.pick import pick
from eagled.readers.sources import SourceRow
from eagled.text.canonical import canonical
from eagled.text.identity import conversation_uid, normalised, question_key, task_key
from eagled.text.language import speaks
from eagled.text.messages import Conversation, Role
from eagled.text.rows import Candidate
from eagled.types import RowReason
from eagled.workers.preparation.messages import Job, Passed, Refused


class Screen:
    """The rules of one dataset."""

    def __init__(self, job: Job) -> None:
        self._dataset = job.dataset
        self._format = format_named(job.dataset.format)
        prep = job.config.prep
        self._excluded = Exclusions.load(prep.exclude, prep.exclude_ngram)
        self._include = [re.compile(pattern) for pattern in job.dataset.include]
        self._exclude = [re.compile(pattern) for pattern in job.dataset.exclude]
        self._signs = prep.near != "off"
        self._seed = job.config.run.seed

    def look(self, row: SourceRow) -> tuple[Candidate, Passed] | Refused:
        """Return a row's candidate with its marks, or why it is left out."""
        source_id = source_id_of(row.value) if isinstance(row.value, dict) else None
        try:
            candidate = self._candidate(row)
        except RowRejectedError as exc:
            return refused(exc, source_id)
        conversation = candidate.conversation
        signature = self._signature(conversation) if self._signs else None
        task = task_key(conversation) if self._dataset.max_per_task else None
        return candidate, Passed(candidate.dedup, signature, conversation.source_id, task)

    def _candidate(self, row: SourceRow) -> Candidate:
        if row.fault is not None:
            raise RowRejectedError(row.fault, row.detail)
        raw = read_row(row.value, self._format)
        conversation = canonical(raw, self._dataset.mode)
        self._filter(row, conversation)
        key = question_key(conversation)
        targets = pick(conversation.targets, self._dataset.turns, self._seed, key.hex())
        conversation = replace(conversation, targets=targets)
        uid = conversation_uid(self._dataset.name, conversation)
        return Candidate(row, conversation, uid, key)

    def _filter(self, row: SourceRow, conversation: Conversation) -> None:
        asked = [m.content for m in conversation.messages if m.role is Role.USER]
        if self._dataset.languages:
            wanted, language = speaks(row.value, asked[0], self._dataset.languages)
            if not wanted:
                raise RowRejectedError(RowReason.OTHER_LANGUAGE, f"it seems to be {language!r}")
        self._match(asked)
        benchmark = self._excluded.match(conversation.messages)
        if benchmark is not None:
            raise RowRejectedError(RowReason.EXCLUDED, f"the question {benchmark}")

    def _match(self, asked: list[str]) -> None:
        if self._include and not any(p.search(text) for p in self._include for text in asked):
            raise RowRejectedError(RowReason.NOT_MATCHING, "no pattern of `include` is in it")
        hit = next((p for p in self._exclude for text in asked if p.search(text)), None)
        if hit is not None:
            raise RowRejectedError(RowReason.NOT_MATCHING, f"{hit.pattern!r} of `exclude` is in it")

    @staticmethod
    def _signature(conversation: Conversation) -> bytes | None:
        if conversation.trajectory:  # several runs at one task are no duplicates
            return None
        asked = (m.content for m in conversation.messages if m.role is Role.USER)
        return signature_of(map(normalised, asked))


def refused(exc: RowRejectedError, source_id: str | None) -> Refused:
    """Return a rejection as a record that can be printed and sent."""
    return Refused(str(exc.reason), printable(exc.detail), source_id)
