"""The codecs on tensors, on any device: the same bits as `codecs.py` gives.

Encoding fp8 is here only (torch converts to e4m3 fast on CPU and GPU). The byte planes of
`lossless` are split and joined on the device; zstd itself runs on the CPU. `encode_states` takes
tensors where they are, and only what is stored crosses to the host (with `lossless`, the planes).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from eagled.shards.codecs import (
    E4M3_MAX,
    MIN_PEAK,
    Piece,
    block_rows,
    flat_bytes,
    lossless_block,
)
from eagled.shards.format import Bits, Codec

COMPARE_EVERY = 16  # rows between two whose error is summed: the sums cost as much as encoding
_STRIP_ROWS = 64  # keeps intermediate float32 values inside the CPU's cache


def encode_fp8(states: torch.Tensor, layers: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return e4m3 codes and scales of states, on their device.

    Args:
        states: bf16 [rows, L*D], finite.
        layers: L.

    Returns:
        float8_e4m3fn [rows, L*D] and float32 [rows, L].
    """
    rows, width = states.shape
    values = states.float().view(rows, layers, width // layers)  # [rows, L, D]
    # without the sign, bf16 bits are in the order of the numbers
    size = (states.view(torch.int16) & 0x7FFF).view(values.shape)
    peak = size.amax(dim=2, keepdim=True).view(torch.bfloat16).float()
    scale = peak.clamp_min_(MIN_PEAK) / E4M3_MAX
    # the largest quotient is 448 or the next float32, which rounds to it
    codes = values.div_(scale).to(torch.float8_e4m3fn)
    return codes.view(rows, width), scale[:, :, 0]


def decode_fp8(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return bf16 [rows, L*D] of codes of that shape (float8 or u8) and scales [rows, L]."""
    rows, layers = scale.shape
    # e4m3 moved into a half's fields is the number times 2^-8: exact, and faster than a cast
    half = (codes.view(torch.int8).to(torch.int16) << 7) & -16385  # ~0x4000: the sign's copy
    values = half.view(torch.float16).float().view(rows, layers, -1)
    return (values * (scale * 256.0)[:, :, None]).to(torch.bfloat16).view(codes.shape)


def decode_fp8_strips(codes: npt.NDArray[np.uint8], scale: npt.NDArray[np.float32]) -> torch.Tensor:
    """Return bf16 [rows, L*D] on the CPU of mapped codes and scales, a strip of rows at a time."""
    out = torch.empty(codes.shape, dtype=torch.bfloat16)
    for at in range(0, len(codes), _STRIP_ROWS):
        strip = slice(at, at + _STRIP_ROWS)
        out[strip] = decode_fp8(
            torch.from_numpy(codes[strip].copy()), torch.from_numpy(scale[strip].copy())
        )
    return out


def split_planes(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return exponents and rest (sign, mantissa), u8 in the shape of the bf16 states."""
    bits = states.view(torch.int16)
    exponent = (bits >> 7).to(torch.uint8)
    rest = (((bits >> 8) & 0x80) | (bits & 0x7F)).to(torch.uint8)
    return exponent, rest


def join_planes(exponent: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """Return the bf16 states of which these are the planes."""
    wide = rest.to(torch.int16)
    bits = ((wide & 0x80) << 8) | (exponent.to(torch.int16) << 7) | (wide & 0x7F)
    return bits.view(torch.bfloat16)


def encode_states(codec: Codec, states: torch.Tensor, hidden_size: int) -> Piece:
    """Return states on any device in stored form, the same bytes as `codecs.encode` gives.

    Args:
        codec: how they are stored.
        states: bf16 [rows, L*D]; finite for fp8.
        hidden_size: D.
    """
    if codec == "raw":
        return Piece((flat_bytes(states.view(torch.int16).cpu().numpy()),))
    if codec == "lossless":
        return _encode_lossless(states, hidden_size)
    codes, scale = encode_fp8(states, states.shape[1] // hidden_size)
    return Piece(
        (flat_bytes(codes.view(torch.uint8).cpu().numpy()),),
        scale=scale.cpu().numpy(),
        errors=_errors(states, codes, scale),
    )


def _encode_lossless(states: torch.Tensor, hidden_size: int) -> Piece:
    chunks: list[memoryview] = []
    for part in torch.split(states, block_rows(hidden_size)):
        layers = part.view(len(part), -1, hidden_size).transpose(0, 1).contiguous()  # [L, r, D]
        exponent, rest = (plane.cpu().numpy() for plane in split_planes(layers))
        for one, other in zip(exponent, rest, strict=True):
            chunks += lossless_block(one, other)
    sizes = [len(a) + len(b) for a, b in zip(chunks[::2], chunks[1::2], strict=True)]
    return Piece(tuple(chunks), tuple(sizes))


def encode_fp8_bits(bits: Bits, hidden_size: int) -> Piece:
    """Return bf16 bits [rows, L*D] as fp8, with the sums of its errors."""
    rows, width = bits.shape
    layers = width // hidden_size
    states = as_bf16(bits)
    codes = torch.empty((rows, width), dtype=torch.float8_e4m3fn)
    scale = torch.empty((rows, layers))
    for at in range(0, rows, _STRIP_ROWS):
        strip = slice(at, at + _STRIP_ROWS)
        codes[strip], scale[strip] = encode_fp8(states[strip], layers)
    return Piece(
        (flat_bytes(codes.view(torch.uint8).numpy()),),
        scale=scale.numpy(),
        errors=_errors(states, codes, scale),
    )


def as_bf16(bits: Bits) -> torch.Tensor:
    """Return bf16 bit patterns as a tensor; writable memory is shared, other memory copied."""
    if not (bits.flags.c_contiguous and bits.flags.writeable):
        bits = bits.copy()
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def _errors(
    states: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor
) -> npt.NDArray[np.float64]:
    """Return `losses.ERROR_SUMS` by layer, [L, 6], over every COMPARE_EVERY-th row."""
    layers = scale.shape[1]
    picked = codes[::COMPARE_EVERY].contiguous()
    back = decode_fp8(picked, scale[::COMPARE_EVERY])
    true = states[::COMPARE_EVERY].float().view(len(picked), layers, -1)  # [r, L, D]
    got = back.float().view_as(true)
    off = (got - true).abs()
    nonzero = true != 0
    relative = torch.where(nonzero, off / true.abs().clamp_min(1e-45), 0.0)
    sums = (
        nonzero.sum((0, 2)),
        (nonzero & (got == 0)).sum((0, 2)),
        relative.double().sum((0, 2)),
        off.double().square().sum((0, 2)),
        true.double().square().sum((0, 2)),
        true.abs().amax((0, 2)),
    )
    return torch.stack([s.double() for s in sums], dim=1).cpu().numpy()
