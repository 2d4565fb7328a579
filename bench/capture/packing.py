"""Spool files into shards, by the code of the extraction worker, with the daemon left out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from eagled.sglang_plugin.spoolfile import FINAL_SUFFIX, read_receipt
from eagled.shards.compute import Work, to_sample
from eagled.shards.format import ShardManifest
from eagled.shards.spool import Spool
from eagled.shards.writer import ShardWriter
from eagled.tokens import pack_ids
from eagled.types import ExtractJob, Fence

_TARGET_BYTES = 1 << 30
_VOCAB = 1 << 20


def pack(
    spool: Path, shards: Path, layers: tuple[int, ...], hidden_size: int, *, answer: int
) -> dict[str, Any]:
    """Pack all captured files of `spool` into shards below `shards`, which are then removed.

    Args:
        spool: complete captured files.
        shards: folder, made if needed.
        layers: boundary ids.
        hidden_size: D.
        answer: supervised tokens at the end of each sample.

    Returns:
        Samples, gigabytes written, seconds.
    """
    shards.mkdir(parents=True, exist_ok=True)
    manifest = ShardManifest(
        target="bench", revision=None, target_hash="", tokenizer_hash="", n_layers=max(layers) + 1,
        hidden_size=hidden_size, vocab_size=_VOCAB, layers=layers, last="supervised",
        compute_dtype="bfloat16", backend="sglang", eagled="bench",
    )  # fmt: skip
    view = Spool(spool, layers, hidden_size)
    began, samples, nbytes = time.monotonic(), 0, 0
    writer: ShardWriter | None = None
    for number, path in enumerate(sorted(spool.glob(f"*{FINAL_SUFFIX}"))):
        receipt = read_receipt(path)
        with path.open("rb") as file:
            file.seek(-4 * receipt.tokens, 2)
            ids = np.fromfile(file, np.int32).astype(np.int64)
        states = view.load(receipt, ids)
        mask = np.zeros(len(ids), np.uint8)
        mask[-answer:] = 1
        job = ExtractJob(
            Fence(number, 1, 1), number.to_bytes(16, "big"), "bench",
            pack_ids(ids[:-answer]), pack_ids(ids[-answer:]),
        )  # fmt: skip
        writer = writer or ShardWriter(shards, manifest, owner="bench")
        writer.append(to_sample(Work(job, ids, mask), states.aux, states.last, manifest))
        samples += 1
        path.unlink()
        if writer.data_bytes >= _TARGET_BYTES:
            nbytes += _finished(writer)
            writer = None
    nbytes += _finished(writer) if writer is not None else 0
    took = time.monotonic() - began
    return {"samples": samples, "shard_gb": round(nbytes / 1e9, 3), "pack_s": round(took, 2)}


def _finished(writer: ShardWriter) -> int:
    """Finish a shard, remove it, return its size."""
    done = writer.finish()
    done.path.unlink()
    return done.record.file_bytes
