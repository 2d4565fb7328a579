"""What each mutating call may carry; unknown fields are refused.

Guarantee: a handler that holds one of these models need not check it again. The records inside
work calls are read by `control.wire`, so they stay plain here.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_BATCH = 4096  # samples in one work or operator call
MAX_WORD = 200


class Body(BaseModel):
    """Base of all bodies: strict types, nothing unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Empty(Body):
    """A call without arguments."""


class LaneBody(Body):
    """POST /v1/lanes/{name}: what is left out stays as it is."""

    paused: bool | None = None
    limit: int | None = Field(default=None, ge=0, le=100_000)
    share: float | None = Field(default=None, ge=0, le=1000)


class DatasetBody(Body):
    """POST /v1/datasets/{name}: what is left out stays as it is."""

    paused: bool | None = None
    priority: int | None = Field(default=None, ge=-1000, le=1000)
    limit: int | None = Field(default=None, ge=0, le=100_000)
    share: int | None = Field(default=None, ge=1, le=100)


class PauseBody(Body):
    """POST /v1/extract: start or pause extraction."""

    paused: bool


class EnqueueBody(Body):
    """POST /v1/enqueue: one prepared folder, or all configured ones."""

    folder: str | None = None


class ChangeBody(Body):
    """What every change of samples has: these, or all that match.

    With `dry_run` nothing is changed: the answer says how many would be. With `expect` nothing is
    changed when it would be another number than the caller has seen.
    """

    samples: list[str] = Field(default_factory=list, max_length=MAX_BATCH)
    reason: str | None = Field(default=None, max_length=MAX_WORD)
    dataset: str | None = Field(default=None, max_length=MAX_WORD)
    lane: str | None = Field(default=None, max_length=MAX_WORD)
    cause: str | None = Field(default=None, max_length=MAX_WORD)
    dry_run: bool = False
    expect: int | None = Field(default=None, ge=0)


class RetryBody(ChangeBody):
    """POST /v1/retry: these samples, or all that failed for a reason or cause (or for any)."""


class RejectBody(ChangeBody):
    """POST /v1/reject: samples by their uid in hex, or all of a dataset or lane."""

    reason: str = Field(default="operator", max_length=MAX_WORD)


class MoveBody(ChangeBody):
    """POST /v1/move: samples that wait, into the lane `to`."""

    to: str = Field(min_length=1, max_length=MAX_WORD)


class HelloBody(Body):
    """POST /v1/work/hello: a worker starts."""

    worker: str = Field(min_length=1, max_length=MAX_WORD)
    kind: Literal["text", "extract"]
    pid: int = Field(ge=1)


class AliveBody(Body):
    """POST /v1/work/alive: a worker's event loop turns."""

    worker: str = Field(min_length=1, max_length=MAX_WORD)


class TextClaimBody(Body):
    """POST /v1/work/text/claim."""

    worker: str = Field(min_length=1, max_length=MAX_WORD)
    max: int = Field(ge=1, le=MAX_BATCH)


class TextSettleBody(Body):
    """POST /v1/work/text/settle: verdicts in wire form."""

    verdicts: list[dict[str, Any]] = Field(max_length=MAX_BATCH)


class ExtractClaimBody(Body):
    """POST /v1/work/extract/claim."""

    worker: str = Field(min_length=1, max_length=MAX_WORD)
    max_samples: int = Field(ge=1, le=MAX_BATCH)
    max_tokens: int = Field(ge=1)


class ExtractCommitBody(Body):
    """POST /v1/work/extract/commit: members are [sample, attempt, epoch, index]."""

    shard: dict[str, Any]
    members: list[list[int]]


class ExtractFailBody(Body):
    """POST /v1/work/extract/fail: the fence in wire form."""

    fence: dict[str, Any]
    reason: str = Field(min_length=1, max_length=MAX_WORD)
    detail: str = ""
    final: bool


class DropBody(Body):
    """POST /v1/shards/{name}/drop."""

    reason: str = Field(min_length=1, max_length=MAX_WORD)
