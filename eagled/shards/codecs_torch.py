"""The codecs on tensors, on any device: the same bits as `codecs.py` gives.

Encoding fp8 is here only (torch converts to e4m3 fast on CPU and GPU). The byte planes of
`lossless` are split and joined on the device, so that a GPU moves them instead of bf16; zstd itself
runs on the CPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from eagled.shards.codecs import E4M3_MAX, MIN_PEAK, Piece, flat_bytes
from eagled.shards.format import Bits

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
    peak = values.abs().amax(dim=2, keepdim=True)
    scale = peak.clamp_min(MIN_PEAK) / E4M3_MAX
    codes = (values / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
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


def encode_fp8_bits(bits: Bits, hidden_size: int) -> Piece:
    """Return bf16 bits [rows, L*D] as fp8, with the sums of its errors."""
    rows, width = bits.shape
    layers = width // hidden_size
    states = as_bf16(bits)
    codes = np.empty((rows, width), np.uint8)
    scale = np.empty((rows, layers), np.float32)
    for at in range(0, rows, _STRIP_ROWS):
        q, s = encode_fp8(states[at : at + _STRIP_ROWS], layers)
        codes[at : at + _STRIP_ROWS] = q.view(torch.uint8).numpy()
        scale[at : at + _STRIP_ROWS] = s.numpy()
    return Piece((flat_bytes(codes),), scale=scale, errors=_errors(states, codes, scale))


def as_bf16(bits: Bits) -> torch.Tensor:
    """Return bf16 bit patterns as a tensor; writable memory is shared, other memory copied."""
    if not (bits.flags.c_contiguous and bits.flags.writeable):
        bits = bits.copy()
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def _errors(
    states: torch.Tensor, codes: npt.NDArray[np.uint8], scale: npt.NDArray[np.float32]
) -> npt.NDArray[np.float64]:
    """Return `errors.ERROR_SUMS` by layer, [L, 6], over every COMPARE_EVERY-th row."""
    layers = scale.shape[1]
    picked = torch.from_numpy(codes[::COMPARE_EVERY])
    back = decode_fp8(picked, torch.from_numpy(scale[::COMPARE_EVERY]))
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
    return torch.stack([s.double() for s in sums], dim=1).numpy()
