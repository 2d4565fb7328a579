"""Every error that eagled raises on purpose.

The class decides what happens next; nothing is ever found by matching a message.

::

    EagledError
    ├── RetryableError            try again later; the sample is not to blame
    │   ├── ServerUnavailableError    refused, reset, 5xx, 503 queue full
    │   │   └── ServerBusyError       429/503 with or without Retry-After
    │   ├── ServerTimeoutError        no complete reply in time
    │   ├── StaleConnectionError      keep-alive died before one byte of reply: free retry
    │   ├── ReplyBrokenError          cut, garbled or contradictory reply
    │   └── RequestAbortedError       HTTP 200 whose finish reason is "abort"
    ├── ContentError              this sample or row is at fault; carries a reason
    │   ├── RowRejectedError          prep leaves the row out
    │   ├── RequestRejectedError      400/413: the server will never take it
    │   ├── OutputRejectedError       the answer breaks an output rule
    │   └── StatesRejectedError       hidden states fail an acceptance check
    └── StopError                 configuration, environment or bug: stop and say so
        ├── ConfigError               exit 78
        ├── UsageError                exit 2
        ├── UnreachableError          exit 69, daemon or server not there
        ├── FingerprintError          exit 78, the server is not the one of this run
        ├── AuthError                 exit 78, missing or wrong key
        ├── LockedError               exit 75, another daemon holds the directory
        ├── DiskError                 exit 74, full, read-only or failing disk
        ├── StoreError                exit 73, database absent, foreign, damaged or went back
        ├── ArtifactError             exit 1, a file is torn, altered or of another run
        └── WorkerLostError           exit 1, a process that prep started was killed
"""

from __future__ import annotations


class EagledError(Exception):
    """Something went wrong in eagled."""

    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else (type(self).__doc__ or "").strip())


class RetryableError(EagledError):
    """The attempt failed through no fault of the sample."""


class ServerUnavailableError(RetryableError):
    """The server did not take the request."""


class ServerBusyError(ServerUnavailableError):
    """The server asks for a pause.

    ``retry_after_s`` is the server's own wish in seconds, or None.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServerTimeoutError(RetryableError):
    """The server gave no complete reply in time."""


class StaleConnectionError(RetryableError):
    """A kept-alive connection was dead before one byte of the reply arrived."""


class ReplyBrokenError(RetryableError):
    """The reply was cut, garbled or contradicts itself."""


class RequestAbortedError(RetryableError):
    """The server aborted the request; what it returned is not an answer."""


class ContentError(EagledError):
    """The sample itself is at fault; ``reason`` is a word of the stage's fixed list."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class RowRejectedError(ContentError):
    """A dataset row is left out."""


class RequestRejectedError(ContentError):
    """The server refuses this request for good; ``status`` is its HTTP status."""

    def __init__(self, reason: str, detail: str = "", status: int = 400) -> None:
        super().__init__(reason, detail)
        self.status = status


class OutputRejectedError(ContentError):
    """The answer breaks an output rule."""


class StatesRejectedError(ContentError):
    """Hidden states fail an acceptance check."""


class StopError(EagledError):
    """A person has to change something before the work can go on."""


class ConfigError(StopError):
    """The configuration is wrong; ``problems`` lists every fault found, one line each."""

    exit_code = 78

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        text = "\n".join([message, *(f"  - {p}" for p in problems)])
        super().__init__(text)
        self.problems = problems


class UsageError(StopError):
    """The command line is wrong."""

    exit_code = 2


class UnreachableError(StopError):
    """The daemon or the server is not reachable."""

    exit_code = 69


class FingerprintError(StopError):
    """The server is not the one that this run was made for."""

    exit_code = 78


class AuthError(StopError):
    """The server wants a key that it did not get."""

    exit_code = 78


class LockedError(StopError):
    """Another daemon holds the state directory."""

    exit_code = 75


class DiskError(StopError):
    """The disk is full, read-only or failing."""

    exit_code = 74


class StoreError(StopError):
    """The database is absent, foreign, damaged or older than the stamp beside it."""

    exit_code = 73


class ArtifactError(StopError):
    """A file is torn, altered or belongs to another run."""


class WorkerLostError(StopError):
    """A process of this command was killed; what is finished is kept."""
