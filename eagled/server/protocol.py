"""Records of the part of SGLang's native protocol that eagled uses.

Guarantee: whatever leaves `eagled.server` is one of these frozen records or an error of
`eagled.errors`; no other module ever sees a reply's JSON.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from eagled.record import record


class EndCause(StrEnum):
    """Why a natural end came when it did."""

    STOP = "stop"
    LIMIT = "limit"  # the reply is as long as was asked for
    WINDOW = "window"  # the server's context was full first


@record
class GenerateRequest:
    """One request.

    Attributes:
        rid: our own request id; fixed length, unique for ever.
        prompt: exact ids to send, u32 [n].
        max_new: most tokens of answer.
        sampling: JSON members of `sampling_params` without braces, `max_new_tokens` and
            `sampling_seed`; see `ResolvedSampling.json_members`.
        seed: seed of this request; None lets the server choose.
        states: whether the server is to write the hidden states into its spool.
    """

    rid: str
    prompt: npt.NDArray[np.uint32]
    max_new: int
    sampling: bytes
    seed: int | None = None
    states: bool = False


@record
class GenerateReply:
    """A whole, natural reply.

    Attributes:
        output: the exact ids, u32 [n] (typecode "I"), stop token included, n >= 1.
        cause: how it ended.
        retractions: how often the server threw the request out for lack of memory.
        connected_at: `time.monotonic()` at which the connection it came over was opened.
    """

    output: array[int]
    cause: EndCause
    retractions: int
    connected_at: float


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What the server can take; None is unknown.

    A prompt of `max_input` tokens or more is refused, and so is prompt + answer > `context`.
    """

    context: int | None = None
    max_input: int | None = None

    def too_long(self, n_prompt: int, max_new: int) -> bool:
        """Return whether the server refuses this pair of lengths, decided by counts."""
        if self.max_input is not None and n_prompt >= self.max_input:
            return True
        return self.context is not None and n_prompt + max_new > self.context


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What `/server_info` says; the key that is in that reply is never read."""

    version: str
    context: int | None
    max_input: int | None
    max_running: int | None
    max_total_tokens: int | None
    speculative: str | None
    graph_batch: int | None = None  # largest batch with a CUDA graph

    @property
    def limits(self) -> ServerLimits:
        """Return the part that bounds one request."""
        return ServerLimits(self.context, self.max_input)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What `/model_info` says."""

    model_path: str
    served_name: str
    tokenizer_path: str


@dataclass(frozen=True, slots=True)
class Load:
    """What `/v1/loads` says, summed over the data-parallel ranks; `usage` is the highest one."""

    running: int
    waiting: int
    used_tokens: int
    total_tokens: int
    usage: float
    tok_per_s: float


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """How a server was started, by its own word; None or False where it does not say.

    `draft` is the draft's folder, `aux_layers` the engine's own layer numbers.
    """

    speculative: str | None = None
    draft: str | None = None
    radix_cache_off: bool = False
    metrics: bool = False
    hidden_states: bool = False
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    truncates: bool = False
    aux_layers: tuple[int, ...] = ()
