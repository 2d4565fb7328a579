"""Look at the first rows of a source with eagled's own readers, rules and tokenizer.

Guarantee: a row is kept or rejected as prep would do it (without the filters that compare rows of a
whole run). Memory is bounded by the sample. Price: the first rows of a sorted dataset stand for all
of it; shares are those of the sample.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagled.config import Config, DatasetConfig
from eagled.decontaminate import Exclusions
from eagled.dedup import key_of, signature_of
from eagled.discover.native import MODEL_KEYS
from eagled.errors import RowRejectedError
from eagled.lanes import lane_for
from eagled.printable import printable
from eagled.readers import detect_row, lenient, read_row
from eagled.readers.base import Format
from eagled.readers.detect import guess
from eagled.readers.sources import SourceRow
from eagled.text.canonical import canonical
from eagled.text.identity import conversation_uid, normalised, question_key
from eagled.text.language import speaks
from eagled.text.messages import Conversation, Message, Role
from eagled.text.rows import Candidate, LineMaker
from eagled.types import Mode, RowReason

_COLUMNS = 40
_ASKS = re.compile(
    r"(?:what|how|why|who|when|where|which|can|could|is|are|do|does|write|explain|create|list|"
    r"give|describe|find|solve|implement|compute|translate|summari[sz]e|please|tell|show)\b",
    re.IGNORECASE,
)
_QUESTION_CHARS = 800
_SWAPPED_ANSWERS, _SWAPPED_PROMPTS, _LEAST_ROWS = 0.6, 0.25, 4
_ECHO_CHARS = 20  # a shorter question is easily the beginning of an answer
_FIRST_ROWS = 32  # by which prep finds a reader
CHARS_PER_TOKEN = 4.0  # assumed where there is no tokenizer
Mark = tuple[int, bytes | None]


class Measure:
    """Renders and counts with the target's tokenizer; one thread at a time.

    (Fast tokenizers keep state between calls and refuse two threads at once.)
    """

    def __init__(self, config: Config) -> None:
        from eagled.text.render import Renderer

        self._config = config
        self._lock = threading.Lock()
        self._renderer = Renderer.load(
            config.target, literal_control_text=config.prep.literal_control_text
        )

    @property
    def identity(self) -> str:
        """What decides its numbers: tokenizer, template and its arguments."""
        made = self._renderer
        return f"{made.tokenizer_hash} {made.template_hash} {self._config.target.template_kwargs}"

    def length(self, row: SourceRow, found: Conversation) -> int:
        """Return the tokens of a prompt: the first one, of an agent run one of all.

        Raises:
            RowRejectedError: if the template cannot print the conversation.
        """
        dataset = DatasetConfig(name="probe", source="probe", mode=found.mode)
        uid = conversation_uid("probe", found)
        if found.trajectory:
            place = int.from_bytes(uid[:4], "little") % len(found.targets)
            found = dataclasses.replace(found, targets=(found.targets[place],))
        with self._lock:
            maker = LineMaker(self._config, dataset, self._renderer)
            return maker.line(Candidate(row, found, uid, uid)).prompts[0]


@dataclass(frozen=True, slots=True)
class Taken:
    """The first rows of a source, and their size as text."""

    rows: tuple[SourceRow, ...]
    chars: int

    def models(self) -> Counter[str]:
        """Return how many rows name which model in a column for that."""
        values = [row.value for row in self.rows if isinstance(row.value, dict)]
        named = (next((str(v[k]) for k in MODEL_KEYS if isinstance(v.get(k), str)), None)
                 for v in values)  # fmt: skip
        return Counter(printable(model, 100) for model in named if model is not None)


@dataclass(slots=True)
class Sample:
    """What the rows showed; the names are those of `Facts`, numbers of characters are sums."""

    sampled: int = 0
    kept: int = 0
    columns: list[str] = field(default_factory=list)
    readers: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    lanes: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    unprintable: int = 0  # rows that only the template refuses, of those that it was shown
    first_chars: int = 0
    prompt_chars: int = 0
    prompts: int = 0
    answer_chars: int = 0
    answers: int = 0
    turns: int = 0
    tools: int = 0
    reasoning: int = 0
    multi_turn: int = 0
    trajectory: bool = False
    asking_answers: int = 0
    asking_prompts: int = 0
    judged: int = 0
    echoes: int = 0
    marks: list[Mark] = field(default_factory=list)

    def lengths_sum(self) -> int:
        """Return the tokens (or characters) of the counted first prompts."""
        return sum(length * n for length, n in self.lengths.items())

    @property
    def swapped(self) -> bool:
        """Whether prompts seem to stand in the answer column."""
        n = self.judged
        if n < _LEAST_ROWS:
            return False
        turned = (
            self.asking_answers >= _SWAPPED_ANSWERS * n
            and self.asking_prompts <= _SWAPPED_PROMPTS * n
        )
        return turned or self.echoes >= n / 2

    @property
    def kept_share(self) -> float:
        """Share of rows kept; what only the template refuses counts as often as it was seen."""
        if not self.sampled:
            return 0.0
        shown = self.lengths.total() + self.unprintable
        passed = (self.kept + self.unprintable) / self.sampled
        return passed * (self.lengths.total() / shown if shown else 1.0)


@dataclass(frozen=True, slots=True)
class Probe:
    """How rows are looked at.

    Attributes:
        config: lanes and rules.
        measure: the target's tokenizer; None counts characters.
        rows: most rows read, of which `tokenised` are rendered.
        chars: most characters of rows held at once.
    """

    config: Config
    measure: Measure | None = None
    rows: int = 256
    tokenised: int = 64
    chars: int = 8 << 20

    def settings(self) -> dict[str, object]:
        """Return what decides an answer besides the dataset, for the name of a cached one."""
        config = self.config
        return {
            "tokenizer": self.measure.identity if self.measure else "",
            "rows": [self.rows, self.tokenised, self.chars],
            "prep": config.prep.model_dump(mode="json"),
            "lanes": {name: lane.context for name, lane in config.lanes.items()},
            "min_reply": config.generation.min_reply,
            "thinking": config.sampling.thinking,
        }

    def take(self, rows: Iterable[SourceRow], check: Callable[[], None]) -> Taken:
        """Return the first rows; `check` raises when the time is over."""
        taken, chars = [], 0
        for row in itertools.islice(rows, self.rows):
            check()
            taken.append(row)
            chars += len(str(row.value))
            if chars >= self.chars:
                break
        return Taken(tuple(taken), chars)

    def look(self, name: str, taken: Taken, mode: Mode, check: Callable[[], None]) -> Sample:
        """Return what the first rows show.

        Args:
            name: of the source, by which prep would find its reader.
            taken: the rows.
            mode: whose answers count.
            check: raises when the time is over.
        """
        values = [row.value for row in taken.rows]
        chosen = guess(name, values[:_FIRST_ROWS])
        sample = Sample(sampled=len(taken.rows), columns=_columns(values))
        excluded = Exclusions.load(self.config.prep.exclude, self.config.prep.exclude_ngram)
        seen: set[bytes] = set()
        for row in taken.rows:
            check()
            sample.readers.update(_reader(row.value))
            try:
                found = _read(row, None if chosen is None else lenient(chosen), mode, seen,
                              excluded)  # fmt: skip
                self._count(sample, row, found)
            except RowRejectedError as exc:
                sample.rejected[str(exc.reason)] += 1
            else:
                _note(sample, row, found)
        return sample

    def _count(self, sample: Sample, row: SourceRow, found: Conversation) -> None:
        chars = sum(len(m.content) for m in found.messages[: found.targets[0]])
        if self.measure is None:
            sample.lengths[chars] += 1
            return
        if sample.lengths.total() + sample.unprintable >= self.tokenised:
            return
        try:
            prompt = self.measure.length(row, found)
        except RowRejectedError:
            sample.unprintable += 1
            raise
        sample.lengths[prompt] += 1
        sample.lanes[lane_for(self.config, prompt, server_context=None) or "none"] += 1
        sample.first_chars += chars


def _note(sample: Sample, row: SourceRow, found: Conversation) -> None:
    sample.kept += 1
    asked = [m.content for m in found.messages if m.role is Role.USER]
    sample.languages[speaks(row.value, asked[0], ())[1]] += 1
    calls = bool(found.tools) or any(m.tool_calls for m in found.messages)
    sample.tools += calls
    sample.reasoning += any(m.reasoning for m in found.messages)
    sample.multi_turn += len(asked) > 1
    sample.trajectory |= found.trajectory
    _note_sizes(sample, found)
    _note_answer(sample, asked[0], next(iter(_answers(found.messages)), None))
    sample.marks.append(mark_of(found))


def _note_sizes(sample: Sample, found: Conversation) -> None:
    """Add up what each target has before it, and what the row has there."""
    before = list(itertools.accumulate((_chars(m) for m in found.messages), initial=0))
    sample.turns += 1 if found.trajectory else len(found.targets)
    for target in found.targets:
        sample.prompts += 1
        sample.prompt_chars += before[min(target, len(found.messages))]
        if target < len(found.messages) and (size := _chars(found.messages[target])):
            sample.answers += 1
            sample.answer_chars += size


def _chars(message: Message) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + calls


def mark_of(found: Conversation) -> Mark:
    """Return the exact key of a question and its signature (None: too short, or an agent run)."""
    key = key_of(question_key(found))
    if found.trajectory:
        return key, None
    asked = (m.content for m in found.messages if m.role is Role.USER)
    return key, signature_of(map(normalised, asked))


def _read(
    row: SourceRow, chosen: Format | None, mode: Mode, seen: set[bytes], excluded: Exclusions
) -> Conversation:
    if row.fault is not None:
        raise RowRejectedError(row.fault, row.detail)
    found = canonical(read_row(row.value, chosen), mode)
    if (hit := excluded.match(found.messages)) is not None:
        raise RowRejectedError(RowReason.EXCLUDED, hit)
    key = question_key(found)
    if key in seen:
        raise RowRejectedError(RowReason.DUPLICATE, "same question as an earlier row")
    seen.add(key)
    return found


def _reader(value: object) -> list[str]:
    """Return the name of the reader that knows a row's columns, by the columns alone."""
    if not isinstance(value, dict):
        return []
    try:
        return [detect_row(value).name]
    except RowRejectedError:
        return []


def _columns(values: Sequence[object]) -> list[str]:
    names: dict[str, Any] = {}
    for value in values:
        if isinstance(value, dict):
            names |= dict.fromkeys(printable(name, 60) for name in value)
    return list(names)[:_COLUMNS]


def _answers(messages: Sequence[Message]) -> Iterator[Message]:
    return (m for m in messages if m.role is Role.ASSISTANT)


def _note_answer(sample: Sample, asked: str, answer: Message | None) -> None:
    if answer is None or not answer.content.strip():
        return
    sample.judged += 1
    sample.asking_answers += _is_question(answer.content)
    sample.asking_prompts += _is_question(asked)
    again = normalised(answer.content).startswith(normalised(asked))
    sample.echoes += len(asked) >= _ECHO_CHARS and again


def _is_question(text: str) -> bool:
    bare = text.strip()
    if not bare or len(bare) > _QUESTION_CHARS:
        return False
    return bare.endswith("?") or _ASKS.match(bare) is not None
