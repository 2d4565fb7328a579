"""Which server is that? Compared at the start, after every reconnect and with the run's own.

Guarantee: answers of another model, tokenizer or context never get into a run: `refuse_other`
raises before a request is sent. Version, request limit and speculative decoding may change within
a run (a server may be updated); they are part of `short`, which is stored with every answer.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

import orjson

from eagled.errors import FingerprintError
from eagled.printable import printable
from eagled.server.protocol import ModelInfo, ServerInfo

_IDENTITY = ("model_path", "served_name", "tokenizer_path", "vocab_size", "context")
_SHORT_BYTES = 6


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells one server from another; None is unknown and equals everything."""

    model_path: str
    served_name: str
    tokenizer_path: str
    vocab_size: int | None
    context: int | None
    max_input: int | None
    version: str
    speculative: str | None

    @property
    def short(self) -> str:
        """Return 12 hex digits over all fields."""
        return hashlib.blake2b(self.to_json(), digest_size=_SHORT_BYTES).hexdigest()

    def to_json(self) -> bytes:
        """Return the fields as JSON, in a fixed order."""
        return orjson.dumps(asdict(self))


def fingerprint(info: ServerInfo, model: ModelInfo, vocab_size: int | None) -> Fingerprint:
    """Return the fingerprint of a server that said `info` and `model`."""
    return Fingerprint(
        model_path=model.model_path,
        served_name=model.served_name,
        tokenizer_path=model.tokenizer_path,
        vocab_size=vocab_size,
        context=info.context,
        max_input=info.max_input,
        version=info.version,
        speculative=info.speculative,
    )


def from_json(text: str | bytes) -> Fingerprint:
    """Return a stored fingerprint.

    Raises:
        FingerprintError: if the text is not one.
    """
    try:
        return Fingerprint(**orjson.loads(text))
    except (orjson.JSONDecodeError, TypeError) as exc:
        raise FingerprintError(f"the run's stored server fingerprint is unreadable: {exc}") from exc


def refuse_other(run: Fingerprint, found: Fingerprint, url: str) -> None:
    """Check that a server is one of this run.

    Raises:
        FingerprintError: if model, tokenizer or context differ; names both values.
    """
    differences = []
    for name in _IDENTITY:
        want, have = getattr(run, name), getattr(found, name)
        if want is not None and have is not None and want != have:
            differences.append(f"{name} is {printable(have)!r}, this run has {printable(want)!r}")
    if differences:
        raise FingerprintError(f"{url} is not a server of this run: " + "; ".join(differences))
