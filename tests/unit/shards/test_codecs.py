"""Codecs: lossless gives every bit back, fp8 keeps its written rules."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from eagled.errors import ArtifactError
from eagled.shards import ShardDataset, codecs, codecs_torch
from eagled.shards.codecs import Piece, decode_fp8, decode_lossless, encode, n_blocks, pieces
from eagled.shards.container import read_container
from eagled.shards.format import Bits, Codec, StatesSample, read_shard_header
from eagled.shards.verify import verify_shards
from eagled.shards.writer import FinishedShard, ShardWriter
from tests.unit.shards.helpers import HIDDEN, LAYERS, manifest, random_bits, sample

ANY_BITS = arrays(np.uint16, st.tuples(st.integers(0, 9), st.just(3 * HIDDEN)))
FINITE = st.integers(0, 0xFFFF).filter(lambda b: b & 0x7F80 != 0x7F80)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
FINITE_BITS = arrays(np.uint16, st.tuples(st.integers(1, 5), st.just(3 * HIDDEN)), elements=FINITE)


def joined(piece: Piece) -> np.ndarray:
    """Return the bytes of a piece."""
    return np.frombuffer(b"".join(piece.chunks), np.uint8)


def lossless_back(bits: Bits, hidden: int) -> Bits:
    """Encode and decode."""
    piece = encode("lossless", bits, hidden)
    ends = np.cumsum([0, *piece.sizes])
    data = joined(piece)
    blocks = [data[a:b] for a, b in itertools.pairwise(ends)]
    layers = bits.shape[1] // hidden
    assert len(blocks) == n_blocks(len(bits), layers, hidden)
    return decode_lossless(blocks, len(bits), layers, hidden)


@given(ANY_BITS)
def test_lossless_gives_every_bit_back(bits: Bits) -> None:
    """Any bit patterns at all: NaN payloads, infinities, subnormals, negative zero."""
    assert np.array_equal(lossless_back(bits, HIDDEN), bits)


def test_lossless_gives_all_65536_patterns_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pattern once, over several blocks and a last block that is not full."""
    monkeypatch.setattr(codecs, "BLOCK_BYTES", 640)
    bits = np.random.default_rng(0).permutation(1 << 16).astype(np.uint16).reshape(-1, 64)

    assert np.array_equal(lossless_back(bits, 32), bits)
    exponent, rest = codecs.split_planes(bits)
    assert np.array_equal(codecs.join_planes(exponent, rest), bits)


def test_planes_on_tensors_are_the_same() -> None:
    """Split and joined by torch, as on a GPU, the bytes are those of numpy."""
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    exponent, rest = codecs_torch.split_planes(codecs_torch.as_bf16(bits))

    expected = codecs.split_planes(bits)
    assert np.array_equal(expected[0], exponent.numpy())
    assert np.array_equal(expected[1], rest.numpy())
    back = codecs_torch.join_planes(exponent, rest)
    assert np.array_equal(back.view(torch.int16).numpy().view(np.uint16), bits)


@pytest.mark.parametrize("codec", ["raw", "lossless", "fp8"])
@pytest.mark.parametrize("device", DEVICES)
def test_states_are_encoded_where_they_are(
    monkeypatch: pytest.MonkeyPatch, codec: Codec, device: str
) -> None:
    """From a tensor on any device come the bytes, scales and errors that come from its bits."""
    monkeypatch.setattr(codecs, "BLOCK_BYTES", 16 * HIDDEN)
    bits = random_bits(np.random.default_rng(3), (50, 3 * HIDDEN))
    states = codecs_torch.as_bf16(bits).to(device)
    ours, theirs = encode(codec, bits, HIDDEN), codecs_torch.encode_states(codec, states, HIDDEN)

    assert np.array_equal(joined(ours), joined(theirs))
    assert ours.sizes == theirs.sizes
    assert len(ours.sizes) == (12 if codec == "lossless" else 0)
    assert (ours.scale is None) == (theirs.scale is None)
    if ours.scale is not None and theirs.scale is not None:
        assert np.array_equal(ours.scale, theirs.scale)
        assert ours.errors is not None
        assert theirs.errors is not None
        assert np.allclose(ours.errors, theirs.errors, rtol=1e-12)
        back = codecs_torch.decode_fp8(
            codecs_torch.encode_fp8(states, 3)[0], torch.from_numpy(ours.scale).to(device)
        )
        assert np.array_equal(
            decode_fp8(joined(ours).reshape(bits.shape), ours.scale, HIDDEN),
            back.cpu().view(torch.int16).numpy().view(np.uint16),
        )


def test_rows_inside_a_wider_array_are_encoded_alike() -> None:
    """Where rows have gaps between them (a slice of columns), blocks are the same."""
    wide = random_bits(np.random.default_rng(4), (9, 5 * HIDDEN))
    inside = wide[:, HIDDEN : 4 * HIDDEN]
    ours = encode("lossless", inside, HIDDEN)

    assert np.array_equal(joined(ours), joined(encode("lossless", inside.copy(), HIDDEN)))
    assert np.array_equal(lossless_back(inside, HIDDEN), inside)


def test_a_damaged_block_is_refused() -> None:
    """A flipped byte in a frame's header, or a short block, is an error, never other numbers."""
    bits = random_bits(np.random.default_rng(0), (4, HIDDEN))
    data = joined(encode("lossless", bits, HIDDEN)).copy()
    data[4 * HIDDEN] ^= 0xFF
    with pytest.raises(ArtifactError, match="cannot be decompressed"):
        decode_lossless([data], 4, 1, HIDDEN)
    with pytest.raises(ArtifactError, match="block of states"):
        decode_lossless([data[:8]], 4, 1, HIDDEN)


def floats(bits: Bits) -> np.ndarray:
    """Return bf16 bits as float64."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@settings(deadline=None)
@given(FINITE_BITS)
def test_fp8_is_the_nearest_code(bits: Bits) -> None:
    """Each code is the nearest e4m3 number to x / scale, ties to the even code; by a table."""
    piece = encode("fp8", bits, HIDDEN)
    codes, scale = joined(piece).reshape(bits.shape), piece.scale
    assert scale is not None
    x = floats(bits).reshape(len(bits), 3, HIDDEN).astype(np.float32)
    peak = np.maximum(np.abs(x).max(axis=2), np.float32(2.0**-90))
    assert np.array_equal(scale, peak / np.float32(448))
    want = x / scale[:, :, None]
    table = codecs.e4m3_values()[:127].astype(np.float64)  # the numbers from 0 to 448
    distance = np.abs(np.minimum(np.abs(want), 448)[..., None].astype(np.float64) - table)
    nearest = distance == distance.min(axis=-1, keepdims=True)
    odd = (np.arange(127) & 1) * 0.5 + np.arange(127) * 1e-6
    chosen = np.where(nearest, odd, 9.0).argmin(axis=-1)
    negative = np.signbit(x)

    assert np.array_equal(chosen + 128 * negative, codes.reshape(chosen.shape))


@settings(deadline=None)
@given(FINITE_BITS)
def test_fp8_encoded_again_is_the_same(bits: Bits) -> None:
    """Decoding and encoding again changes neither codes nor scales; the peaks are exact."""
    first = encode("fp8", bits, HIDDEN)
    assert first.scale is not None
    codes = joined(first).reshape(bits.shape)
    back = decode_fp8(codes, first.scale, HIDDEN)
    second = encode("fp8", back, HIDDEN)

    assert np.array_equal(joined(second).reshape(bits.shape), codes)
    assert second.scale is not None
    big = first.scale > np.float32(2.0**-90) / np.float32(448)
    assert np.array_equal(second.scale[big], first.scale[big])
    peaks = np.abs(floats(bits).reshape(-1, HIDDEN)).max(axis=1)
    kept = np.abs(floats(back).reshape(-1, HIDDEN)).max(axis=1)
    assert np.array_equal(peaks[big.ravel()], kept[big.ravel()])


@settings(deadline=None)
@given(FINITE_BITS)
def test_fp8_decodes_alike_on_tensors(bits: Bits) -> None:
    """Torch's decoding (for a GPU) gives numpy's bits."""
    piece = encode("fp8", bits, HIDDEN)
    assert piece.scale is not None
    codes = joined(piece).reshape(bits.shape).copy()
    ours = decode_fp8(codes, piece.scale, HIDDEN)
    theirs = codecs_torch.decode_fp8(torch.from_numpy(codes), torch.from_numpy(piece.scale))

    assert np.array_equal(ours, theirs.view(torch.int16).numpy().view(np.uint16))


def test_e4m3_table_is_torchs() -> None:
    """The 256 numbers are those of float8_e4m3fn."""
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()

    assert np.array_equal(theirs, codecs.e4m3_values(), equal_nan=True)


def coded(
    folder: Path, aux: Codec, last: Codec, items: list[StatesSample], threads: int = 1
) -> FinishedShard:
    """Write a shard with codecs."""
    plan = dataclasses.replace(manifest(), codec=aux, codec_last=last)
    writer = ShardWriter(folder, plan, threads=threads)
    for item in items:
        writer.append(item)
    return writer.finish()


@pytest.mark.parametrize("aux", ["raw", "lossless", "fp8"])
@pytest.mark.parametrize("last", ["raw", "lossless", "fp8"])
def test_every_pair_of_codecs_reads_back(tmp_path: Path, aux: Codec, last: Codec) -> None:
    """Each tensor has its own codec; the manifest says which, and verification finds nothing."""
    items = [sample(1), sample(2, 5, 9), sample(3, 30, 1)]
    shard = coded(tmp_path, aux, last, items)
    header = read_shard_header(shard.path)
    dataset = ShardDataset([shard.path])

    assert (header.manifest.codec, header.manifest.codec_last) == (aux, last)
    assert verify_shards(tmp_path, {shard.path.name: shard.record}).findings == ()
    for item, got in zip(items, (dataset[i] for i in range(3)), strict=True):
        for name, codec in (("aux", aux), ("last", last)):
            true = torch.from_numpy(getattr(item, name).view(np.int16)).view(torch.bfloat16)
            tensor = got[name]  # type: ignore[literal-required] # one of two tensors
            if codec == "fp8":
                assert torch.allclose(true.float(), tensor.float(), rtol=0.07, atol=1e-2)
            else:
                assert torch.equal(true.view(torch.int16), tensor.view(torch.int16))


@pytest.mark.parametrize("codec", ["lossless", "fp8"])
def test_threads_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    """Encoded by three threads in small pieces, the file has the same bytes as by one."""
    monkeypatch.setattr(codecs, "BLOCK_BYTES", 64)
    monkeypatch.setattr(codecs, "PIECE_BYTES", 2048)
    items = [sample(n, 200, 60) for n in range(3)]
    assert len(list(pieces(items[0].aux, HIDDEN))) > 4

    one = coded(tmp_path / "a", codec, codec, items)
    three = coded(tmp_path / "b", codec, codec, items, threads=3)
    assert one.path.read_bytes() == three.path.read_bytes()


def test_raw_shards_are_format_1(tmp_path: Path) -> None:
    """What an earlier version could read still says so, with the manifest it knows."""
    meta = read_container(coded(tmp_path, "raw", "raw", [sample(1)]).path).metadata
    new = read_container(coded(tmp_path, "fp8", "raw", [sample(1)]).path).metadata

    assert ("eagled-shard/1", "eagled-shard/2") == (meta["format"], new["format"])
    assert "codec_last" not in json.loads(meta["manifest"])
    assert "codec_errors" not in meta


def test_errors_of_fp8_are_in_the_header(tmp_path: Path) -> None:
    """By layer: the values compared, the share stored as zero, the errors, the largest value."""
    shard = coded(tmp_path, "fp8", "raw", [sample(n, 40, 20) for n in range(4)])
    errors = json.loads(read_container(shard.path).metadata["codec_errors"])

    assert list(errors) == ["aux"]
    assert [row["layer"] for row in errors["aux"]] == list(LAYERS)
    for row in errors["aux"]:
        assert row["values"] == 4 * 4 * HIDDEN  # every 16th of 59 rows
        assert 0.01 < row["mean_relative_error"] < 0.04
        assert 0.01 < row["rms_error_share"] < 0.04
        assert row["zeroed"] == 0


def test_one_large_channel_does_not_flush_another_layer(tmp_path: Path) -> None:
    """A scale a layer: a deep layer's massive value leaves the shallow layer's small ones alone."""
    item = sample(1, 40, 20)
    aux = item.aux.copy()
    aux[:, -1] = 0x4680  # 16384 in the last channel of the last layer
    shard = coded(tmp_path, "fp8", "raw", [dataclasses.replace(item, aux=aux)])
    rows = json.loads(read_container(shard.path).metadata["codec_errors"])["aux"]

    assert [0.0, 0.0] == [row["zeroed"] for row in rows[:2]]
    assert rows[2]["zeroed"] > 0.01
    assert rows[2]["mean_relative_error"] > 3 * rows[0]["mean_relative_error"]
    assert rows[2]["peak"] == 16384


def test_an_odd_width_is_padded(tmp_path: Path) -> None:
    """A width that is no multiple of 8 still gives aligned tensors to every safetensors reader."""
    plan = dataclasses.replace(manifest(), hidden_size=5, codec="fp8", codec_last="lossless")
    item = sample(1)
    writer = ShardWriter(tmp_path, plan)
    writer.append(
        dataclasses.replace(
            item, aux=np.ascontiguousarray(item.aux[:, :15]), last=item.last[:, :5].copy()
        )
    )
    shard = writer.finish()
    container = read_container(shard.path)

    assert container.tensors["pad"].shape == (6,)
    for info in container.tensors.values():
        width = {"I64": 8, "I32": 4, "F32": 4}.get(info.dtype, 1)
        assert info.start % width == 0
    assert ShardDataset([shard.path])[0]["aux"].shape == (6, 15)
