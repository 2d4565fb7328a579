"""Stored token ids."""

from __future__ import annotations

import struct
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from eagled.errors import ArtifactError
from eagled.tokens import make_uid, pack_ids, unpack_ids

U32 = st.integers(min_value=0, max_value=2**32 - 1)


@given(st.lists(U32, max_size=300))
def test_round_trip(ids: list[int]) -> None:
    """Whatever ids go in come out, with their count."""
    packed = pack_ids(ids)

    assert ids == unpack_ids(packed.z, packed.crc).tolist()
    assert len(ids) == packed.n


def test_layout_is_little_endian_u32_zstd() -> None:
    """The bytes are what docs/formats.md says, read here without eagled's own code."""
    packed = pack_ids([1, 163_839])

    raw = zstandard.ZstdDecompressor().decompress(packed.z)

    assert struct.pack("<2I", 1, 163_839) == raw
    assert zlib.crc32(raw) == packed.crc


@pytest.mark.parametrize("ids", [[-1], [2**32]])
def test_id_out_of_range_is_refused(ids: list[int]) -> None:
    """An id that would wrap is an error, not another id."""
    with pytest.raises(ArtifactError, match="must be in"):
        pack_ids(ids)


@given(st.lists(U32, min_size=1, max_size=50), st.data())
def test_any_flipped_byte_is_noticed(ids: list[int], data: st.DataObject) -> None:
    """A damaged blob never comes back as ids."""
    packed = pack_ids(ids)
    where = data.draw(st.integers(0, len(packed.z) - 1))
    damaged = bytearray(packed.z)
    damaged[where] ^= data.draw(st.integers(1, 255))

    try:
        back = unpack_ids(bytes(damaged), packed.crc)
    except ArtifactError:
        return

    assert ids == back.tolist()  # a bit of the frame that carries no content


def test_uid_parts_do_not_run_together() -> None:
    """("ab", "c") and ("a", "bc") are two things."""
    assert make_uid("ab", "c") != make_uid("a", "bc")
    assert len(make_uid("x")) == 16
