"""What the plugin is told by environment variables, checked at once.

The plugin runs inside SGLang's processes, which pass no flags on; so each setting is a variable.
`eagled.shards.backend_sglang` writes the same names when it describes how to start a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

ACTIVE_ENV = "EAGLED_CAPTURE"
SPOOL_ENV = "EAGLED_CAPTURE_SPOOL"
LAYERS_ENV = "EAGLED_CAPTURE_LAYERS"
FSYNC_ENV = "EAGLED_CAPTURE_FSYNC"
RING_ENV = "EAGLED_CAPTURE_RING_MB"
WRITERS_ENV = "EAGLED_CAPTURE_WRITERS"
RESERVE_ENV = "EAGLED_CAPTURE_RESERVE_MB"
STALL_ENV = "EAGLED_CAPTURE_STALL_S"
REPLY_WAIT_ENV = "EAGLED_CAPTURE_REPLY_WAIT_S"

Fsync = Literal["file", "off"]
MIB = 1 << 20
_WRITERS = 4  # a checksum costs about a second per GiB and thread
_RESERVE_MB = 1024
_STALL_S = 30.0  # longest healthy fsync of a busy disk is far below
_REPLY_WAIT_S = 10.0  # a reply that waits longer says `pending`


class CaptureError(Exception):
    """Capture was asked for and cannot work; the message says what to change."""


@dataclass(frozen=True)
class CaptureSettings:
    """The plugin's settings.

    Attributes:
        spool: folder of the finished files.
        layers: boundary ids, ascending; k is the residual stream that enters layer k.
        fsync: `file` syncs each file before it gets its name; `off` is for /dev/shm.
        ring_bytes: pinned host memory between GPU and writer; 0 = by the batch size.
        writers: threads of the writer process.
        reserve_bytes: free space below which no new file is begun.
        stall_s: longest time that the scheduler waits for ring space before it gives up on the
            states of a batch.
        reply_wait_s: longest time that a reply waits for its file.
    """

    spool: Path
    layers: tuple[int, ...]
    fsync: Fsync = "file"
    ring_bytes: int = 0
    writers: int = _WRITERS
    reserve_bytes: int = _RESERVE_MB * MIB
    stall_s: float = _STALL_S
    reply_wait_s: float = _REPLY_WAIT_S

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> CaptureSettings:
        """Read the variables.

        Raises:
            CaptureError: naming the variable, its value and what it should be.
        """
        fsync = env.get(FSYNC_ENV, "file")
        if fsync not in get_args(Fsync):
            raise CaptureError(f"{FSYNC_ENV}={fsync!r}: give file or off")
        return cls(
            spool=_folder(env.get(SPOOL_ENV, "")),
            layers=_layers(env.get(LAYERS_ENV, "")),
            fsync="off" if fsync == "off" else "file",
            ring_bytes=int(_number(env, RING_ENV, 0) * MIB),
            writers=max(1, int(_number(env, WRITERS_ENV, _WRITERS))),
            reserve_bytes=int(_number(env, RESERVE_ENV, _RESERVE_MB) * MIB),
            stall_s=_number(env, STALL_ENV, _STALL_S),
            reply_wait_s=_number(env, REPLY_WAIT_ENV, _REPLY_WAIT_S),
        )


def _folder(text: str) -> Path:
    if not text:
        raise CaptureError(f"{SPOOL_ENV} is not set: give the folder for captured files")
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise CaptureError(f"{SPOOL_ENV}={text!r}: {exc.strerror}") from exc
    return folder


def _layers(text: str) -> tuple[int, ...]:
    try:
        layers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise CaptureError(
            f"{LAYERS_ENV}={text!r}: give boundary ids with commas, as 2,18,33"
        ) from None
    if min(layers) < 0 or list(layers) != sorted(set(layers)):
        raise CaptureError(f"{LAYERS_ENV}={text!r}: ids must be distinct, ascending, from 0 on")
    return layers


def check_layers(layers: tuple[int, ...], n_layers: int) -> None:
    """Raise unless SGLang can capture each boundary of a model of `n_layers` layers.

    Raises:
        CaptureError: naming the first boundary that is out of range.
    """
    for k in layers:
        if k >= n_layers:
            why = "what leaves the last layer is not captured by SGLang" if k == n_layers else ""
            raise CaptureError(
                f"{LAYERS_ENV}: boundary {k} is outside 0..{n_layers - 1} "
                f"of this model ({n_layers} layers){'; ' if why else ''}{why}"
            )


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "")
    try:
        value = float(text) if text else float(default)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise CaptureError(f"{name}={text!r}: give a number from 0 on")
    return value
