"""Judge a generated answer, and make the prompt of the turn that follows it.

Guarantee: a verdict never changes ids. An answer is accepted only if it is stuck in no loop, its
thinking is closed, its calls parse and name declared functions, and it says something, in a length
and a language that `[checks]` allows; one cut by its limit is accepted as such (never as finished)
if the plan keeps those, and has no next turn. The first rule that an answer breaks is its reason.
Pure: no socket, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from eagled.config import ChecksConfig
from eagled.errors import ArtifactError, OutputRejectedError, RowRejectedError
from eagled.printable import printable
from eagled.text.answer import ParsedAnswer, parse_answer
from eagled.text.language import speaks
from eagled.text.loops import LoopRule, find_loop
from eagled.text.render import Renderer
from eagled.text.replay import Recorded, next_messages, read_body
from eagled.tokens import PackedIds, pack_ids, unpack_ids
from eagled.types import Finish, OutputReason, TextJob, TextVerdict

OnLength = Literal["keep", "extend", "drop"]


class TextChecker:
    """Checks answers with one renderer."""

    def __init__(
        self,
        renderer: Renderer,
        *,
        on_length: OnLength = "keep",
        checks_of: Callable[[str], ChecksConfig] | None = None,
    ) -> None:
        """Check with one renderer; `checks_of` says what holds for a dataset."""
        self._renderer = renderer
        self._on_length = on_length
        self._checks_of = checks_of or _default_checks

    @property
    def renderer(self) -> Renderer:
        """The renderer, whose tokenizer also decodes for people."""
        return self._renderer

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
        cut, checks = job.finish is Finish.LENGTH, self._checks_of(job.dataset)
        if cut and self._on_length == "drop":
            raise OutputRejectedError(OutputReason.TRUNCATED, "generation.on_length = drop")
        ids = self._ids(job.output)
        answer = self._parse(self._ids(job.prompt), ids)
        self._refuse_loop(ids, answer, checks)
        if answer.unclosed:
            why = "cut by its limit" if cut else "stopped by itself"
            raise OutputRejectedError(OutputReason.UNCLOSED_THINK, f"{why} inside its reasoning")
        if not cut:
            _refuse_bad_calls(answer, job, checks)
            if not answer.content.strip() and not answer.calls:
                raise OutputRejectedError(OutputReason.EMPTY_ANSWER, "no content and no call")
        self._refuse_length(ids, checks, cut=cut)
        _refuse_language(answer, checks)
        return answer

    def _refuse_loop(self, ids: list[int], answer: ParsedAnswer, checks: ChecksConfig) -> None:
        """Refuse an answer that is stuck; what repeats in a whole call's arguments is data."""
        if not checks.loop_tokens:
            return
        rule = LoopRule(checks.loop_period, checks.loop_tokens, checks.loop_repeats)
        start = 0
        while (loop := find_loop(ids[start:], rule)) is not None:
            start += loop.start
            unit = self._renderer.decode(ids[start : start + 2 * loop.period])
            if not any(unit in call.arguments for call in answer.calls):
                detail = f"{loop.length} tokens, from number {start}, repeat every {loop.period}"
                raise OutputRejectedError(OutputReason.REPETITION_LOOP, detail)
            start += loop.length

    def _refuse_length(self, ids: Sequence[int], checks: ChecksConfig, *, cut: bool) -> None:
        n = len(ids) - (bool(ids) and ids[-1] in self._renderer.eos_ids)
        if n < checks.min_tokens and not cut:
            detail = f"{n} tokens, checks.min_tokens = {checks.min_tokens}"
            raise OutputRejectedError(OutputReason.ANSWER_TOO_SHORT, detail)
        if checks.max_tokens and n > checks.max_tokens:
            detail = f"{n} tokens, checks.max_tokens = {checks.max_tokens}"
            raise OutputRejectedError(OutputReason.ANSWER_TOO_LONG, detail)

    def _ids(self, packed: PackedIds) -> list[int]:
        """Return plain ids.

        Raises:
            ArtifactError: if the bytes are damaged.
            OutputRejectedError: if the tokenizer does not have one of them.
        """
        ids = unpack_ids(packed.z, packed.crc)
        if ids.size and int(ids.max()) >= self._renderer.vocab_size:
            raise OutputRejectedError(
                OutputReason.ID_OUT_OF_VOCABULARY,
                f"id {int(ids.max())}, the tokenizer has {self._renderer.vocab_size}",
            )
        return [int(id_) for id_ in ids.tolist()]

    def _parse(self, prompt: Sequence[int], output: Sequence[int]) -> ParsedAnswer:
        return parse_answer(self._renderer, prompt, output)

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
        prompt = self._ids(job.prompt)
        return [self._parse(prompt, self._ids(packed)) for packed in job.answers]


def _default_checks(_dataset: str) -> ChecksConfig:
    return ChecksConfig()


def _refuse_bad_calls(answer: ParsedAnswer, job: TextJob, checks: ChecksConfig) -> None:
    if answer.call_error is not None:
        raise OutputRejectedError(OutputReason.BAD_TOOL_CALL, answer.call_error)
    if not answer.calls or checks.tools == "any":
        return
    declared = _callable(None if job.conversation is None else read_body(job.conversation))
    unknown = next((call.name for call in answer.calls if call.name not in declared), None)
    if unknown is not None:
        known = ", ".join(sorted(declared)) or "none"
        detail = f"{unknown!r} is called; declared: {known}"
        raise OutputRejectedError(OutputReason.UNDECLARED_TOOL, detail)


def _callable(recorded: Recorded | None) -> set[str]:
    """Return the functions that an answer may call: declared, or else called in the recording."""
    if recorded is None:
        return set()
    if recorded.tools:
        return {tool["function"]["name"] for tool in recorded.tools}
    return {call.name for message in recorded.messages for call in message.tool_calls}


def _refuse_language(answer: ParsedAnswer, checks: ChecksConfig) -> None:
    if not checks.languages or not answer.content.strip():
        return
    fits, found = speaks(None, answer.content, checks.languages)
    if not fits:
        detail = f"it seems to be in {found!r}, checks.languages = {', '.join(checks.languages)}"
        raise OutputRejectedError(OutputReason.OTHER_LANGUAGE, detail)
