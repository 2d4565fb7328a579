"""What a failed attempt leads to: decided by the class of its error, never by its text.

Guarantee: a server's fault is never charged to a sample while the server fails others too. A
sample is charged for a broken reply or a timeout only if the same server's latest outcome was a
success; for an abort only if it was alone on the server (then nobody else's memory use explains
it). A sample that met `SUSPECT_TRIES` faults in a row is charged from then on, whatever the fault,
if the server answered others or at least its own probe: no sample can keep a run from its end.
One that fails again and again while the servers answer others in between (`LONELY_FAULTS`) is
charged sooner, and then its faults are no server's: they do not count towards a breaker.
A refused connection and a full queue say nothing of the sample and never count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from eagled.errors import (
    ArtifactError,
    AuthError,
    ContentError,
    EagledError,
    FingerprintError,
    ReplyBrokenError,
    RequestAbortedError,
    ServerBusyError,
    ServerTimeoutError,
)
from eagled.server.wire import ConnectionLostError, NoConnectionError, ReplyCutError
from eagled.types import SampleState

SUSPECT_TRIES = 8
LONELY_FAULTS = 2  # beyond the first: three in a row, others answered between each two


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
        probed: the endpoint passed its own one-token probe before this trial.
        alone: no other request was in flight on the endpoint.
        tries: server faults in a row that this sample met, this one included.
        lonely: how many of them came after others were answered since the one before.
    """

    healthy: bool
    probed: bool
    alone: bool
    tries: int
    lonely: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do; `final` is the state that a final failure enters."""

    action: Action
    blame: Blame
    charge: bool = False
    final: SampleState = SampleState.FAILED


def decide(error: EagledError, seen: Circumstances) -> Decision:
    """Return what a failed attempt leads to."""
    match error:
        case ContentError():
            made = Decision(Action.FINAL, Blame.NONE, charge=True, final=SampleState.REJECTED)
        case ArtifactError():
            made = Decision(Action.FINAL, Blame.NONE, charge=True)
        case AuthError() | FingerprintError():
            made = Decision(Action.GIVE_BACK, Blame.REFUSE)
        case ServerBusyError():
            made = Decision(Action.GIVE_BACK, Blame.PRESSURE)
        case NoConnectionError():
            made = Decision(Action.GIVE_BACK, Blame.LOST)
        case _ if seen.lonely >= LONELY_FAULTS:
            made = Decision(Action.RETRY, _lonely_blame(error), charge=True)
        case _ if is_suspect(seen):
            made = Decision(Action.RETRY, Blame.FAULT, charge=True)
        case _:
            made = _server_fault(error, seen)
    return made


def is_suspect(seen: Circumstances) -> bool:
    """Return whether so many faults in a row are this sample's doing."""
    return seen.tries >= SUSPECT_TRIES and (seen.healthy or seen.probed)


def says_nothing_of_sample(error: EagledError) -> bool:
    """Return whether an attempt ended before the server looked at the sample."""
    return isinstance(error, ServerBusyError | NoConnectionError)


def _lonely_blame(error: EagledError) -> Blame:
    """A lost connection may still be a crash, which has its own account (quarantine)."""
    return Blame.LOST if isinstance(error, ReplyCutError | ConnectionLostError) else Blame.NONE


def _server_fault(error: EagledError, seen: Circumstances) -> Decision:
    match error:
        case RequestAbortedError():
            return Decision(Action.RETRY, Blame.PRESSURE, charge=seen.alone and seen.healthy)
        case ReplyCutError():
            return Decision(Action.RETRY, Blame.LOST, charge=seen.healthy)
        case ServerTimeoutError() | ReplyBrokenError():
            return Decision(Action.RETRY, Blame.FAULT, charge=seen.healthy)
        case ConnectionLostError():
            return Decision(Action.RETRY, Blame.LOST)
        case _:
            return Decision(Action.RETRY, Blame.FAULT)
