"""What a failed attempt leads to: decided by the class of its error, never by its text.

Guarantee: a server's fault is never charged to a sample while the server fails others too. A
sample is charged for a broken reply or a timeout only if the same server's latest outcome was a
success; for an abort only if it was alone on the server (then nobody else's memory use explains
it). A sample that met `SUSPECT_TRIES` faults in a row on servers that answered others is charged
from then on, whatever the fault, so that no sample can keep a run from its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from eagled.errors import (
    ArtifactError,
    AuthError,
    ContentError,
    EagledError,
    ReplyBrokenError,
    RequestAbortedError,
    ServerBusyError,
    ServerTimeoutError,
)
from eagled.server.client import ConnectionLostError, NoConnectionError, ReplyCutError
from eagled.types import SampleState

SUSPECT_TRIES = 8


class Action(Enum):
    """What happens to the sample."""

    GIVE_BACK = auto()  # queued again at once, as if it had never been sent
    RETRY = auto()  # queued again after a wait
    FINAL = auto()  # never again, with a reason


class Blame(Enum):
    """What happens to the endpoint."""

    NONE = auto()
    FAULT = auto()  # counts towards the breaker
    PRESSURE = auto()  # fewer at once, perhaps a pause; not a fault
    LOST = auto()  # find out whether it is still there; if not, it crashed
    REFUSE = auto()  # this endpoint is out until a person changes something


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What must be known beside the error.

    Attributes:
        healthy: the endpoint's latest outcome before this one was a success.
        alone: no other request was in flight on the endpoint.
        tries: server faults in a row that this sample met, this one included.
    """

    healthy: bool
    alone: bool
    tries: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do; `final` is the state that a final failure enters."""

    action: Action
    blame: Blame
    charge: bool = False
    final: SampleState = SampleState.FAILED


def decide(error: EagledError, seen: Circumstances) -> Decision:
    """Return what a failed attempt leads to."""
    if isinstance(error, ContentError):
        return Decision(Action.FINAL, Blame.NONE, charge=True, final=SampleState.REJECTED)
    if isinstance(error, ArtifactError):
        return Decision(Action.FINAL, Blame.NONE, charge=True)
    if isinstance(error, AuthError):
        return Decision(Action.GIVE_BACK, Blame.REFUSE)
    if seen.tries >= SUSPECT_TRIES and seen.healthy:
        return Decision(Action.RETRY, Blame.FAULT, charge=True)
    return _server_fault(error, seen)


def _server_fault(error: EagledError, seen: Circumstances) -> Decision:
    match error:
        case ServerBusyError():
            return Decision(Action.GIVE_BACK, Blame.PRESSURE)
        case RequestAbortedError():
            return Decision(Action.RETRY, Blame.PRESSURE, charge=seen.alone and seen.healthy)
        case ReplyCutError():
            return Decision(Action.RETRY, Blame.LOST, charge=seen.healthy)
        case ServerTimeoutError() | ReplyBrokenError():
            return Decision(Action.RETRY, Blame.FAULT, charge=seen.healthy)
        case NoConnectionError():
            return Decision(Action.GIVE_BACK, Blame.LOST)
        case ConnectionLostError():
            return Decision(Action.RETRY, Blame.LOST)
        case _:
            return Decision(Action.RETRY, Blame.FAULT)
