"""The durable core: one SQLite database, one writer, an independent stamp.

`Store` is the daemon's; `StoreReader` is for long reads; `eagled.store.tools` is `eagled db`.
Rules that every change must keep stand in the module docstrings: `executor` (pragmas), `opening`
(start), `writer` (durability), `reader` (chunks), `stamp`.
"""

from eagled.store.feed import Subscription
from eagled.store.lock import StateLock
from eagled.store.reader import StoreReader
from eagled.store.records import (
    Ack,
    AddResult,
    Body,
    CounterRow,
    DatasetRecord,
    DatasetRow,
    EventRow,
    FailureGroup,
    FailureRow,
    Frozen,
    LaneRow,
    NewConversation,
    NewTurn,
    Recovery,
    SampleDetail,
    SampleFilter,
    SampleRow,
    ShardCommit,
    ShardRow,
    StoredMember,
)
from eagled.store.store import Store

__all__ = [
    "Ack",
    "AddResult",
    "Body",
    "CounterRow",
    "DatasetRecord",
    "DatasetRow",
    "EventRow",
    "FailureGroup",
    "FailureRow",
    "Frozen",
    "LaneRow",
    "NewConversation",
    "NewTurn",
    "Recovery",
    "SampleDetail",
    "SampleFilter",
    "SampleRow",
    "ShardCommit",
    "ShardRow",
    "StateLock",
    "Store",
    "StoreReader",
    "StoredMember",
    "Subscription",
]
