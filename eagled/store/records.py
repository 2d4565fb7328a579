"""What goes into and comes out of the store, apart from `eagled.types`."""

from __future__ import annotations

from dataclasses import dataclass

from eagled.record import record
from eagled.tokens import PackedIds
from eagled.types import EventKind, Finish, Mode, SampleState


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A lane; `limit` is what holds now (an operator's, else the configuration's).

    `share` is an operator's; None leaves the configuration's.
    """

    name: str
    ord: int
    context: int
    limit: int
    paused: bool = False
    share: float | None = None


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """A prepared dataset as it enters; `prep_key` names everything that decides its tokens."""

    name: str
    priority: int
    mode: Mode
    prep_key: str
    n_rows: int
    n_kept: int
    n_rejected: int


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A dataset in the store; `complete` once all its conversations are in.

    `limit` is the most requests at once (None: no limit of its own), `share` its weight when
    datasets of one priority take turns.
    """

    id: int
    name: str
    priority: int
    paused: bool
    mode: Mode
    prep_key: str
    n_rows: int
    n_kept: int
    n_rejected: int
    complete: bool
    limit: int | None = None
    share: int = 1


@dataclass(frozen=True, slots=True)
class NewTurn:
    """One turn of a conversation to be stored.

    A first turn has `prompt` and `lane` and is queued. A later turn has neither and waits. A
    native turn has `prompt` and `output` and is generated and checked from the start.
    """

    uid: bytes
    turn: int
    prompt: PackedIds | None
    output: PackedIds | None = None
    lane: str | None = None


@dataclass(frozen=True, slots=True)
class NewConversation:
    """A conversation to be stored; `body` is zstd JSON where later turns or tools need it."""

    uid: bytes
    dedup: bytes
    source_id: str | None
    body: bytes | None
    turns: tuple[NewTurn, ...]


@dataclass(frozen=True, slots=True)
class AddResult:
    """Conversations: newly stored, known already, and held by another dataset."""

    added: int
    known: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class CounterRow:
    """Samples of one dataset in one lane (None: not assigned yet, or native) and state."""

    dataset: str
    lane: str | None
    state: SampleState
    n: int


CONSUMED = "consumed"  # in `shard.dropped`


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A shard file; `dropped` says why it no longer counts."""

    name: str
    sha256: str
    file_bytes: int
    n_samples: int
    n_tokens: int
    manifest_hash: str
    created_ms: int
    dropped: str | None

    @property
    def consumed(self) -> bool:
        """Whether it went because every consumer of the ring had read it."""
        return self.dropped == CONSUMED


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A sample in a shard as the store knows it, in file order."""

    sample_id: int
    uid: bytes
    index: int
    n_prompt: int
    n_output: int
    output_crc: int


@dataclass(frozen=True, slots=True)
class ShardCommit:
    """Members whose fence held, and those that were stale."""

    accepted: int
    stale: int


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """Which samples an operator means; None leaves a field open."""

    dataset: str | None = None
    lane: str | None = None
    state: SampleState | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One line of a list of samples; `extended` counts the continuations of its answer."""

    id: int
    uid: str
    dataset: str
    lane: str | None
    turn: int
    state: SampleState
    attempt: int
    failures: int
    n_prompt: int | None
    n_output: int | None
    finish: Finish | None
    reason: str | None
    detail: str | None
    updated_ms: int
    extended: int


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One failed attempt."""

    attempt: int
    at_ms: int
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class SampleDetail:
    """Everything known of one sample; `failures_log` is newest first, at most 50."""

    row: SampleRow
    conversation: str
    source_id: str | None
    rank: int
    crashes: int
    server: str | None
    elapsed_s: float | None
    checked: bool
    extract_attempt: int
    shard: str | None
    shard_index: int | None
    failures_log: tuple[FailureRow, ...]
    prompt: PackedIds | None
    output: PackedIds | None


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Given-up samples of one dataset, state and reason; `example` is the newest one's uid."""

    dataset: str
    state: SampleState
    reason: str
    n: int
    example: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event; `uid` is the user who caused it, -1 for eagled itself."""

    seq: int
    at_ms: int
    kind: EventKind
    subject: str
    detail: str
    uid: int


@record
class Ack:
    """A result that is on disk: `kind` is the state it reached, `crc` that of the answer's ids."""

    kind: SampleState
    uid: str
    attempt: int
    crc: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a start found and did.

    Attributes:
        clean: the last daemon stopped in order.
        requeued: samples that were generating.
        released_extracting: samples that were extracting.
        checked: `quick_check` ran.
        warnings: what an operator should know.
        in_flight_rids: request ids that may still run on servers; abort them.
    """

    clean: bool
    requeued: int
    released_extracting: int
    checked: bool
    warnings: tuple[str, ...]
    in_flight_rids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Frozen:
    """A member of a frozen list: compare `attempt` and `crc` when its body is read."""

    id: int
    attempt: int
    crc: int
    dataset_id: int


@dataclass(frozen=True, slots=True)
class Body:
    """An accepted answer with what a corpus row needs; the CRC is that of the answer's ids."""

    id: int
    attempt: int
    uid: bytes
    dataset: str
    conversation: bytes
    turn: int
    finish: Finish
    prompt: PackedIds
    output: PackedIds
