"""How hidden states are stored: `raw`, `lossless` (byte planes), `fp8`; numpy and zstd only.

lossless: a bf16 number is an exponent (8 bits) and the rest (sign and 7 bits of mantissa). The rest
is noise and is stored as it is; exponents are few, so zstd halves and halves them again. Blocks are
one layer of as many rows as give BLOCK_BYTES exponents, since each zstd block has one Huffman
table and layers differ in scale. Every bit pattern comes back, NaN payloads included.

fp8: per token and layer, scale = max(largest |x|, MIN_PEAK) / 448 in float32; q = x / scale in
float32, rounded to e4m3 to nearest, ties to even. Decoding is q * scale in float32, rounded to
bf16 to nearest, ties to even. The largest value of a row comes back exactly, so encoding what was
decoded gives the same bytes again. Infinities and NaN are refused when a sample is accepted.

Price, per core: see docs/benchmarks.md. Memory: the pieces in flight (PIECE_BYTES each).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from eagled.errors import ArtifactError
from eagled.frames import unpack_frame
from eagled.shards.format import Bits, Codec

BLOCK_BYTES = 1 << 17  # zstd's own block: one Huffman table
PIECE_BYTES = 1 << 22  # of bf16, encoded by one thread at a time
E4M3_MAX = 448.0
MIN_PEAK = 2.0**-90  # keeps scales and products far from float32's subnormal numbers
_SIGN, _MANTISSA = 0x80, 0x7F
# min_match 7 and a small table: chance matches in noise cost time and gain nothing
_ZSTD = zstandard.ZstdCompressionParameters(
    window_log=17, hash_log=6, chain_log=6, min_match=7, strategy=zstandard.STRATEGY_FAST
)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Piece:
    """Encoded rows: what is appended to the tensor, and what lies beside it.

    Attributes:
        chunks: bytes to be written one after the other.
        sizes: bytes of each lossless block.
        scale: f32 [rows, L] of fp8.
        errors: sums of fp8's errors, f64 [L, len(ERROR_SUMS)], over the rows that were compared.
    """

    chunks: tuple[memoryview, ...]
    sizes: tuple[int, ...] = ()
    scale: npt.NDArray[np.float32] | None = None
    errors: npt.NDArray[np.float64] | None = None


class _Local(threading.local):
    """A compressor and room for one block a thread: none may be shared."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(compression_params=_ZSTD).compress
        self._room = np.empty((2, 0), np.uint16)

    def room(self, shape: tuple[int, ...]) -> tuple[Bits, Bits]:
        """Return two contiguous arrays of this shape, good until the next call."""
        size = math.prod(shape)
        if size > self._room.shape[1]:
            self._room = np.empty((2, size), np.uint16)
        one, other = (row[:size].reshape(shape) for row in self._room)
        return one, other


_local = _Local()


def flat_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return an array's bytes in C order, without a copy where they lie so already."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def block_rows(hidden_size: int) -> int:
    """Return the rows of a lossless block."""
    return max(1, BLOCK_BYTES // hidden_size)


def n_blocks(rows: int, layers: int, hidden_size: int) -> int:
    """Return the lossless blocks of a sample with so many rows."""
    return -(-rows // block_rows(hidden_size)) * layers


def pieces(bits: Bits, hidden_size: int) -> Iterator[Bits]:
    """Cut a sample's rows [rows, L*D] into pieces of whole blocks, about PIECE_BYTES each."""
    step = block_rows(hidden_size)
    step *= max(1, PIECE_BYTES // (2 * max(1, bits.shape[1]) * step))
    for start in range(0, len(bits), step):
        yield bits[start : start + step]


def encode(codec: Codec, bits: Bits, hidden_size: int) -> Piece:
    """Return rows [rows, L*D] in stored form.

    `fp8` imports torch, whose conversion is the fast one; the other codecs do not.
    """
    if codec == "raw":
        return Piece((flat_bytes(bits),))
    if codec == "lossless":
        return _encode_lossless(bits, hidden_size)
    from eagled.shards.codecs_torch import encode_fp8_bits

    return encode_fp8_bits(bits, hidden_size)


def _encode_lossless(bits: Bits, hidden_size: int) -> Piece:
    planes = np.empty(bits.size, np.uint8)  # every block's rest, one after the other
    chunks: list[memoryview] = []
    sizes: list[int] = []
    step, end = block_rows(hidden_size), 0
    for start in range(0, len(bits), step):
        part = bits[start : start + step]
        for at in range(0, bits.shape[1], hidden_size):
            block = part[:, at : at + hidden_size]
            wide, other = _local.room(block.shape)
            exponent, sign = other.view(np.uint8).reshape(2, *block.shape)
            begin, end = end, end + block.size
            rest = planes[begin:end]
            _split(block, exponent, rest.reshape(block.shape), sign, wide)
            made = lossless_block(exponent, rest)
            chunks += made
            sizes.append(sum(map(len, made)))
    return Piece(tuple(chunks), tuple(sizes))


def lossless_block(exponent: Bytes, rest: Bytes) -> tuple[memoryview, memoryview]:
    """Return a block of one layer from its planes, both contiguous; `rest` is not copied."""
    return flat_bytes(rest), memoryview(_local.compress(exponent.data))


def _split(bits: Bits, exponent: Bytes, rest: Bytes, sign: Bytes, wide: Bits) -> None:
    """Fill `exponent` and `rest`; `sign` and `wide` are room to work in, all of one shape.

    The bytes are made of bytes where that is possible: twice as many fit a vector register, and
    nothing leaves the cache.
    """
    np.right_shift(bits, 7, out=wide)
    np.copyto(exponent, wide, casting="unsafe")
    np.right_shift(wide, 1, out=wide)
    np.copyto(sign, wide, casting="unsafe")
    np.copyto(rest, bits, casting="unsafe")
    # rest has the exponent's last bit where the sign belongs
    np.bitwise_xor(sign, rest, out=sign)
    np.bitwise_and(sign, _SIGN, out=sign)
    np.bitwise_xor(rest, sign, out=rest)


def split_planes(bits: Bits) -> tuple[Bytes, Bytes]:
    """Return exponents and rest (sign, mantissa) of bf16 bits; same shape."""
    exponent, rest, sign = (np.empty(bits.shape, np.uint8) for _ in range(3))
    _split(bits, exponent, rest, sign, np.empty(bits.shape, np.uint16))
    return exponent, rest


def join_planes(exponent: Bytes, rest: Bytes) -> Bits:
    """Return the bf16 bits of which these are the planes."""
    bits, one, other = (np.empty(rest.shape, np.uint16) for _ in range(3))
    _join(exponent, rest, bits, one, other)
    return bits


def _join(exponent: Bytes, rest: Bytes, bits: Bits, wide: Bits, other: Bits) -> None:
    """Fill `bits`, which may have gaps between rows; `wide` and `other` are room to work in."""
    # as signed numbers, so that widening copies the sign up to bit 15
    np.copyto(wide.view(np.int16), rest.view(np.int8))
    np.bitwise_and(wide, _SIGN << 8 | _MANTISSA, out=wide)
    np.copyto(other, exponent)
    np.left_shift(other, 7, out=other)
    np.bitwise_or(other, wide, out=bits)


def decode_lossless(
    blocks: Sequence[npt.NDArray[np.uint8]], rows: int, layers: int, hidden_size: int
) -> Bits:
    """Return the rows [rows, L*D] of one sample from its blocks, in file order.

    Raises:
        ArtifactError: if a block is damaged.
    """
    out = np.empty((rows, layers * hidden_size), np.uint16)
    step = block_rows(hidden_size)
    at = iter(blocks)
    for start in range(0, rows, step):
        part = out[start : start + step]
        for layer in range(layers):
            _decode_block(next(at), part[:, layer * hidden_size : (layer + 1) * hidden_size])
    return out


def _decode_block(block: npt.NDArray[np.uint8], out: Bits) -> None:
    size = out.size
    try:
        raw = unpack_frame(flat_bytes(block[size:]), size)
    except ArtifactError as exc:
        raise ArtifactError(f"a block of states cannot be decompressed: {exc}") from exc
    if len(raw) != size or len(block) < size:
        raise ArtifactError(f"a block of states has {len(raw)} exponents, {size} expected")
    exponent = np.frombuffer(raw, np.uint8).reshape(out.shape)
    _join(exponent, block[:size].reshape(out.shape), out, *_local.room(out.shape))


def e4m3_values() -> npt.NDArray[np.float32]:
    """Return the number of each of the 256 e4m3 bit patterns; the two NaN patterns are NaN."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 0xF, code & 7
    size = np.where(
        exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent.astype(float) - 10)
    )
    size[(code & _MANTISSA) == _MANTISSA] = np.nan
    return np.where(code & _SIGN, -size, size).astype(np.float32)


_E4M3 = e4m3_values()


def decode_fp8(
    codes: npt.NDArray[np.uint8], scale: npt.NDArray[np.float32], hidden_size: int
) -> Bits:
    """Return bf16 bits [rows, L*D] of e4m3 codes of that shape and scales [rows, L]."""
    rows, layers = scale.shape
    values = _E4M3[codes].reshape(rows, layers, hidden_size)
    values *= scale[:, :, None]
    return round_bf16(values.reshape(rows, layers * hidden_size))


def round_bf16(values: npt.NDArray[np.float32]) -> Bits:
    """Return float32 numbers as bf16 bits, to nearest, ties to even; not for NaN."""
    words = values.view(np.uint32)
    odd = (words >> 16) & 1
    result: Bits = ((words + (odd + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    return result
