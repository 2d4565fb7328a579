"""Judge a generated answer, and make the prompt of the turn that follows it.

Guarantee: a verdict never changes ids. An answer is accepted only if its thinking is closed, its
calls parse and it says something; one cut by its limit is accepted as such (never as finished) if
the plan keeps those, and has no next turn. Pure: no socket, no clock.
"""

from __future__ import annotations

from typing import Literal

from eagled.errors import ArtifactError, OutputRejectedError, RowRejectedError
from eagled.printable import printable
from eagled.text.answer import ParsedAnswer, parse_answer
from eagled.text.render import Renderer
from eagled.text.replay import Recorded, next_messages, read_body
from eagled.tokens import PackedIds, pack_ids, unpack_ids
from eagled.types import Finish, OutputReason, TextJob, TextVerdict

OnLength = Literal["keep", "extend", "drop"]


class TextChecker:
    """Checks answers with one renderer."""

    def __init__(self, renderer: Renderer, *, on_length: OnLength = "keep") -> None:
        self._renderer = renderer
        self._on_length = on_length

    def check(self, job: TextJob) -> TextVerdict:
        """Return the verdict on one answer; content faults are in it, never raised.

        Raises:
            ArtifactError: if the job's stored bytes are damaged.
        """
        try:
            answer = self._judge(job)
        except OutputRejectedError as exc:
            return TextVerdict(job.sample_id, job.attempt, str(exc.reason), printable(exc.detail))
        if not job.has_next:
            return TextVerdict(job.sample_id, job.attempt, None, answer.note)
        try:
            prompt = self._next_prompt(job, answer)
        except OutputRejectedError as exc:
            return TextVerdict(
                job.sample_id, job.attempt, None, printable(exc.detail), next_reason=str(exc.reason)
            )
        return TextVerdict(
            job.sample_id, job.attempt, None, answer.note, next_prompt=pack_ids(prompt)
        )

    def _judge(self, job: TextJob) -> ParsedAnswer:
        """Return the answer if it counts."""
        cut = job.finish is Finish.LENGTH
        if cut and self._on_length == "drop":
            raise OutputRejectedError(OutputReason.TRUNCATED, "generation.on_length = drop")
        answer = self._parse(job.prompt, job.output)
        if answer.unclosed:
            why = "cut by its limit" if cut else "stopped by itself"
            raise OutputRejectedError(OutputReason.UNCLOSED_THINK, f"{why} inside its reasoning")
        if cut:
            return answer
        if answer.call_error is not None:
            raise OutputRejectedError(OutputReason.BAD_TOOL_CALL, answer.call_error)
        if not answer.content.strip() and not answer.calls:
            raise OutputRejectedError(OutputReason.EMPTY_ANSWER, "no content and no call")
        return answer

    def _parse(self, prompt: PackedIds, output: PackedIds) -> ParsedAnswer:
        ids = unpack_ids(output.z, output.crc)
        if ids.size and int(ids.max()) >= self._renderer.vocab_size:
            raise OutputRejectedError(
                OutputReason.ID_OUT_OF_VOCABULARY,
                f"id {int(ids.max())}, the tokenizer has {self._renderer.vocab_size}",
            )
        asked = unpack_ids(prompt.z, prompt.crc)
        return parse_answer(self._renderer, asked.tolist(), ids.tolist())

    def _next_prompt(self, job: TextJob, answer: ParsedAnswer) -> list[int]:
        if job.finish is Finish.LENGTH:
            detail = "an answer without an end cannot be history"
            raise OutputRejectedError(OutputReason.TRUNCATED, detail)
        if job.conversation is None:
            raise ArtifactError(f"sample {job.sample_id} has a next turn but no conversation")
        recorded = read_body(job.conversation)
        answers = [*self._earlier(job, recorded), answer]
        if any(one.broken_text for one in answers):
            detail = "the text of an answer has broken characters, so it cannot be history"
            raise OutputRejectedError(OutputReason.BAD_CHARACTERS, detail)
        history = next_messages(recorded, answers)
        try:
            return self._renderer.prompt_ids(history, recorded.tools, thinking=recorded.thinking)
        except RowRejectedError as exc:
            raise OutputRejectedError(OutputReason.NEXT_TURN_TEMPLATE, str(exc)) from exc

    def _earlier(self, job: TextJob, recorded: Recorded) -> list[ParsedAnswer]:
        """Read the answers of earlier turns.

        Whether a prompt opens a think block depends on template and arguments only, which are the
        same for all turns of a conversation; so this turn's prompt stands for the others.
        """
        if len(job.answers) != job.turn or len(recorded.targets) <= job.turn + 1:
            raise ArtifactError(
                f"sample {job.sample_id}: turn {job.turn} comes with {len(job.answers)} earlier "
                f"answers and {len(recorded.targets)} targets"
            )
        return [self._parse(job.prompt, packed) for packed in job.answers]
