"""Damaged zstandard frames: refused, and without asking for the memory they claim."""

from __future__ import annotations

import tracemalloc

import pytest
import zstandard

from eagled.errors import ArtifactError
from eagled.frames import unpack_frame


def _claiming(size: int) -> bytes:
    """Return a frame whose head says `size` (RFC 8878: magic, 8-byte size without window)."""
    return bytes.fromhex("28b52ffd") + b"\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"


@pytest.mark.parametrize("size", [101, 1 << 34, (1 << 64) - 3])
def test_a_frame_that_claims_too_much_is_refused_at_once(size: int) -> None:
    """The claim is compared first: nothing near its size is allocated."""
    tracemalloc.start()
    with pytest.raises(ArtifactError, match=f"{size} bytes, where 100 are the most"):
        unpack_frame(_claiming(size), 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1 << 20


@pytest.mark.parametrize("frame", [b"", b"abc", b"\0" * 20, _claiming(50), _claiming(0)[:9]])
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    """Empty, foreign, cut off."""
    with pytest.raises(ArtifactError, match="zstandard frame"):
        unpack_frame(frame, 100)


@pytest.mark.parametrize("says", [True, False])
def test_content_comes_back_up_to_the_limit(*, says: bool) -> None:
    """Also of frames that do not say how large they are, as streams write them."""
    frame = zstandard.ZstdCompressor(write_content_size=says).compress(b"x" * 100)

    assert unpack_frame(frame, 100) == b"x" * 100
    with pytest.raises(ArtifactError):
        unpack_frame(frame, 99)
