"""Zstandard frames that were stored, and may have been damaged since.

A frame says in its head how large its content is, and zstandard allocates that much before it
looks at the rest: one flipped bit there asks for any amount of memory (RFC 8878, 3.1.1.1.4).
"""

from __future__ import annotations

import threading

import zstandard

from eagled.errors import ArtifactError


class _Unpacker(threading.local):
    """One decompressor a thread: zstandard's objects are not shareable."""

    def __init__(self) -> None:
        self.decompress = zstandard.ZstdDecompressor().decompress


_unpacker = _Unpacker()


def unpack_frame(frame: bytes | memoryview, most: int) -> bytes:
    """Return the content of a frame, `most` bytes at the very most.

    Raises:
        ArtifactError: if it is no frame, or is damaged, or its content is larger.
    """
    try:
        size = zstandard.frame_content_size(frame)  # -1: the frame does not say
        if size > most:
            raise ArtifactError(f"a zstandard frame of {size} bytes, where {most} are the most")
        return _unpacker.decompress(frame, max_output_size=most)
    except zstandard.ZstdError as exc:
        raise ArtifactError(f"a zstandard frame is damaged: {exc}") from exc
