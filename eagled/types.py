"""Words and records that more than one part of eagled uses.

Fixed sets of words are `StrEnum`s; records are frozen. State codes are stored in the database:
never renumber one (`sql/migrations` repeats them as literals so that partial indexes apply).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from eagled.record import record
from eagled.tokens import PackedIds


class SampleState(StrEnum):
    """Where a sample stands; the order of the line of work."""

    WAITING = "waiting"  # a later turn without a prompt yet
    QUEUED = "queued"
    GENERATING = "generating"
    RETRY_WAIT = "retry_wait"
    GENERATED = "generated"
    EXTRACTING = "extracting"
    EXTRACTED = "extracted"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


STATE_CODE: dict[SampleState, int] = {
    SampleState.QUEUED: 0,
    SampleState.GENERATING: 1,
    SampleState.RETRY_WAIT: 2,
    SampleState.GENERATED: 3,
    SampleState.EXTRACTING: 4,
    SampleState.EXTRACTED: 5,
    SampleState.WAITING: 6,
    SampleState.FAILED: 7,
    SampleState.REJECTED: 8,
    SampleState.CANCELLED: 9,
}
STATE_OF_CODE: dict[int, SampleState] = {code: state for state, code in STATE_CODE.items()}


class Mode(StrEnum):
    """Whose answers a dataset trains on."""

    REGENERATE = "regenerate"
    NATIVE = "native"


class Finish(StrEnum):
    """How an answer that counts came to its end."""

    STOP = "stop"
    LENGTH = "length"
    NATIVE = "native"  # written by the dataset, not generated here


class RowReason(StrEnum):
    """Why prep leaves a row out (`docs/formats.md` explains each)."""

    BAD_JSON_LINE = "bad_json_line"
    BAD_ENCODING = "bad_encoding"
    BAD_SCHEMA = "bad_schema"
    MISSING_FIELD = "missing_field"
    EMPTY_CONVERSATION = "empty_conversation"
    UNKNOWN_ROLE = "unknown_role"
    NO_USER_TURN = "no_user_turn"
    EMPTY_USER_TURN = "empty_user_turn"
    EMPTY_ASSISTANT_TURN = "empty_assistant_turn"
    UNCLOSED_THINK = "unclosed_think"
    UNPARSEABLE_TOOL_CALL = "unparseable_tool_call"
    TOOLS_UNDECLARED = "tools_undeclared"
    ORPHAN_TOOL_RESULT = "orphan_tool_result"
    DUPLICATE = "duplicate"
    EXCLUDED = "excluded"
    TOO_LONG = "too_long"
    TEMPLATE_ERROR = "template_error"
    LOST_IN_TEMPLATE = "lost_in_template"
    CONTROL_TEXT = "control_text"
    NOT_CHOSEN = "not_chosen"
    NEAR_DUPLICATE = "near_duplicate"
    ENOUGH_RUNS = "enough_runs"
    OTHER_LANGUAGE = "other_language"
    NOT_MATCHING = "not_matching"
    OUTSIDE_LENGTH = "outside_length"


class OutputReason(StrEnum):
    """Why a generated answer is rejected or a sample given up."""

    UNCLOSED_THINK = "unclosed_think"
    EMPTY_ANSWER = "empty_answer"
    BAD_TOOL_CALL = "bad_tool_call"
    UNDECLARED_TOOL = "undeclared_tool"
    REPETITION_LOOP = "repetition_loop"
    ANSWER_TOO_SHORT = "answer_too_short"
    ANSWER_TOO_LONG = "answer_too_long"
    OTHER_LANGUAGE = "other_language"
    TRUNCATED = "truncated"
    BAD_CHARACTERS = "bad_characters"
    NEXT_TURN_TOO_LONG = "next_turn_too_long"
    NEXT_TURN_TEMPLATE = "next_turn_template"
    TOOL_CALLS_DIFFER = "tool_calls_differ"  # the recorded tool results answer other calls
    REFUSED_BY_SERVER = "refused_by_server"
    TOO_LONG_FOR_SERVER = "too_long_for_server"
    TOO_MANY_FAILURES = "too_many_failures"
    QUARANTINED = "quarantined"
    BAD_STATES = "bad_states"
    PREDECESSOR = "predecessor"
    OPERATOR = "operator"
    ID_OUT_OF_VOCABULARY = "id_out_of_vocabulary"


class EventKind(StrEnum):
    """What an operator acts upon or wants to look up later."""

    DAEMON_STARTED = "daemon_started"
    DAEMON_STOPPED = "daemon_stopped"
    RECOVERED = "recovered"
    STORE_ACCEPTED = "store_accepted"
    ENQUEUED = "enqueued"
    LANE_CHANGED = "lane_changed"
    DATASET_CHANGED = "dataset_changed"
    SETTING_CHANGED = "setting_changed"
    SAMPLES_RETRIED = "samples_retried"
    SAMPLES_REJECTED = "samples_rejected"
    SAMPLES_MOVED = "samples_moved"
    SERVER_UP = "server_up"
    SERVER_DOWN = "server_down"
    SERVER_STUCK = "server_stuck"
    SERVER_REFUSED = "server_refused"
    SERVER_GHOSTS = "server_ghosts"
    SERVER_LAUNCHED = "server_launched"
    SERVER_ENDED = "server_ended"
    WORKER_STARTED = "worker_started"
    WORKER_DIED = "worker_died"
    SHARD_COMMITTED = "shard_committed"
    SHARD_SET_ASIDE = "shard_set_aside"
    SHARD_CONSUMED = "shard_consumed"
    CONSUMER_GONE = "consumer_gone"
    EXTRACTION_CHANGED = "extraction_changed"
    MERGED = "merged"
    BACKUP_MADE = "backup_made"
    DISK_LOW = "disk_low"
    DISK_OK = "disk_ok"
    BALLAST = "ballast"
    STORAGE_CHOSEN = "storage_chosen"
    ALARM = "alarm"
    UNDONE = "undone"


@record
class Fence:
    """Who may finish a piece of work: the holder of this attempt in this epoch, nobody else."""

    sample_id: int
    attempt: int
    epoch: int


@record
class Claim:
    """One sample handed to generation.

    `prompt` holds the exact ids to send; `failures` were charged to the sample so far. `partial`
    holds the ids of an answer that is to be continued (sent after the prompt), `extended` says how
    often it was.
    """

    fence: Fence
    uid: bytes
    dataset: str
    lane: str
    turn: int
    conversation_id: int
    prompt: PackedIds
    failures: int = 0
    partial: PackedIds | None = None
    extended: int = 0

    @property
    def n_sent(self) -> int:
        """Return the tokens of a request for it: the prompt and the answer so far."""
        return self.prompt.n + (self.partial.n if self.partial is not None else 0)


@record
class Answer:
    """The exact ids that a server returned, stop token included.

    `server` is the fingerprint of the server that answered; times are seconds, of the last request
    only; `extended` counts the requests beyond the first that its ids came in.
    """

    output: PackedIds
    finish: Finish
    server: str
    elapsed_s: float
    extended: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt.

    Attributes:
        kind: error class name or a word of `OutputReason`.
        detail: message, made printable by who stores it.
        charge: whether the sample is to blame (counts towards `max_failures`).
        retry_in_s: seconds until the next try; None when there is none.
        final: state to enter when there is no next try: failed or rejected.
    """

    kind: str
    detail: str
    charge: bool
    retry_in_s: float | None
    final: SampleState = SampleState.FAILED


@dataclass(frozen=True, slots=True)
class TextJob:
    """A generated answer that waits for its output check, and for what its next turn needs.

    `conversation` is the zstd JSON that prep wrote (None when the sample has no later turn and
    no tools); `answers` are the packed outputs of all earlier turns of it, in turn order.
    """

    sample_id: int
    attempt: int
    dataset: str
    turn: int
    finish: Finish
    prompt: PackedIds
    output: PackedIds
    conversation: bytes | None
    answers: tuple[PackedIds, ...]
    has_next: bool


@dataclass(frozen=True, slots=True)
class TextVerdict:
    """What the text worker says of one answer.

    `reason` None accepts it; `next_prompt` is the exact prompt of the following turn;
    `next_reason` says why there is none although there is a following turn.
    """

    sample_id: int
    attempt: int
    reason: str | None
    detail: str = ""
    next_prompt: PackedIds | None = None
    next_reason: str | None = None


@dataclass(frozen=True, slots=True)
class ExtractJob:
    """A sample whose hidden states are wanted: prompt and answer ids, as stored."""

    fence: Fence
    uid: bytes
    dataset: str
    prompt: PackedIds
    output: PackedIds


@dataclass(frozen=True, slots=True)
class ShardMember:
    """One sample inside a shard, by its extraction fence and its place in the file."""

    fence: Fence
    index: int


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What the database knows of a shard file; `name` is relative to the shard folder."""

    name: str
    sha256: str
    file_bytes: int
    n_samples: int
    n_tokens: int
    manifest_hash: str
