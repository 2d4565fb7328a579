"""Packing, codecs and reading of shards on real hidden states; one JSON line.

    python -m bench.shards --model ~/.cache/eagled/models/SmolLM2-135M-Instruct-v1
    python -m bench.real_model FOLDER; python -m bench.shards --model FOLDER   (a larger real model)
    python -m bench.shards --state state/demo/state     (the shards of a run, with their masks)
    python -m bench.shards --model ... --device cuda     (also the encoders on a GPU; with
                                                          --device-only nothing else)

References, each in the same run: a sequential fsynced write of the same bytes to the same folder
(packing), and SpecForge's one file a sample, read by its own functions when `make peers-env` was
run, else by torch.load (reading). Cold means that the files' pages were dropped first. Without
--state the text is this repository's documentation, half of each sample supervised.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zstandard
from transformers import AutoTokenizer

from eagled.artifacts import TMP_SUFFIX
from eagled.shards import ShardDataset
from eagled.shards.backend_transformers import TransformersBackend
from eagled.shards.codecs import (
    Piece,
    decode_fp8,
    decode_lossless,
    encode,
    pieces,
    round_bf16,
)
from eagled.shards.codecs_torch import (
    as_bf16,
    decode_fp8_strips,
    encode_fp8,
    encode_states,
    split_planes,
)
from eagled.shards.format import (
    Bits,
    Codec,
    ShardManifest,
    StatesSample,
    last_positions,
    read_shard_header,
)
from eagled.shards.layers import plan_layers
from eagled.shards.policy import StorePolicy
from eagled.shards.target import read_target
from eagled.shards.trim import Trim
from eagled.shards.writer import ShardWriter
from eagled.workers.export import export_specforge

ROOT = Path(__file__).parents[1]
CODECS: tuple[Codec, ...] = ("raw", "lossless", "fp8")
CODED: tuple[Codec, ...] = ("lossless", "fp8")
SAMPLE_TOKENS = 1024
PACK_BYTES = 1 << 30  # of bf16 in the shards whose writing is timed, as `shards.target_bytes`
MB = 1e6


def model_backend(model: Path, dtype: str) -> TransformersBackend:
    """Return the back end that computes a model's states."""
    target = read_target(model)
    return TransformersBackend(
        target, layers=plan_layers(target.n_layers), last="all", device="auto", dtype=dtype,
        name=model.name, revision=None,
    )  # fmt: skip


def text_ids(model: Path, tokens: int) -> list[npt.NDArray[np.int64]]:
    """Return this repository's documentation in samples of SAMPLE_TOKENS."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "docs").glob("*.md")))
    ids = np.asarray(AutoTokenizer.from_pretrained(model)(text)["input_ids"], np.int64)
    ids = np.resize(ids, tokens)
    return [ids[at : at + SAMPLE_TOKENS] for at in range(0, tokens - 1, SAMPLE_TOKENS)]


def text_samples(model: Path, tokens: int) -> tuple[ShardManifest, list[StatesSample]]:
    """Return samples of documentation, with the model's states."""
    backend = model_backend(model, "bfloat16")
    samples = []
    for i, part in enumerate(text_ids(model, tokens)):
        got = backend.capture([part])[0]
        mask = (np.arange(len(part)) >= len(part) // 2).astype(np.uint8)
        aux = got.aux[:-1].reshape(len(part) - 1, -1)
        samples.append(_sample(i, part.astype(np.int32), mask, aux, got.last[:-1]))
    return backend.manifest, samples


def against_f32(model: Path, tokens: int) -> dict[str, dict[str, float]]:
    """Return how far what is stored is from states that were computed and kept in float32.

    `lossless` stands for `raw` too: both are those states rounded to bf16.
    """
    backend = model_backend(model, "float32")
    found = [backend.reference(ids) for ids in text_ids(model, tokens)]
    hidden = backend.manifest.hidden_size
    parts = {
        f"layer {k}": np.concatenate([r.boundaries[k] for r in found])
        for k in backend.manifest.layers
    }
    parts["last"] = np.concatenate([r.last for r in found])
    table = {}
    for name, true in parts.items():
        bits = round_bf16(np.ascontiguousarray(true))
        fp8 = encode("fp8", bits, hidden)
        assert fp8.scale is not None
        codes = np.frombuffer(b"".join(fp8.chunks), np.uint8).reshape(bits.shape)
        table[name] = {
            f"{codec}_{what}": value
            for codec, stored in (("lossless", bits), ("fp8", decode_fp8(codes, fp8.scale, hidden)))
            for what, value in _distance(true, as_bf16(stored).float().numpy()).items()
        }
    return table


def _distance(true: npt.NDArray[np.float32], got: npt.NDArray[np.float32]) -> dict[str, float]:
    off, size = np.abs(got - true).astype(np.float64), np.abs(true).astype(np.float64)
    return {
        "median_relative_error": round(float(np.median(off[size > 0] / size[size > 0])), 6),
        "rms_error_share": round(float(np.sqrt((off**2).sum() / (size**2).sum())), 6),
    }


def run_samples(state: Path) -> tuple[ShardManifest, list[StatesSample]]:
    """Return the samples of a run's shards; final states that it does not keep are zeros."""
    data = ShardDataset.from_folder(state / "shards")
    samples = []
    for i in range(len(data)):
        got = data[i]
        rows = len(got["input_ids"]) - 1
        last = torch.zeros(rows, data.manifest.hidden_size, dtype=torch.bfloat16)
        last[got["last_positions"]] = got["last"]
        ids, mask = got["input_ids"].int().numpy(), got["loss_mask"].to(torch.uint8).numpy()
        samples.append(_sample(i, ids, mask, _bits(got["aux"]), _bits(last)))
    return data.manifest, samples


def _bits(states: torch.Tensor) -> Bits:
    return states.view(torch.int16).numpy().view(np.uint16)


def _sample(
    i: int, ids: npt.NDArray[np.int32], mask: npt.NDArray[np.uint8], aux: Bits, last: Bits
) -> StatesSample:
    """Return a sample with the final states of every row."""
    everywhere = last_positions(mask, "all")
    return StatesSample(f"{i:032x}", i, 1, "bench", ids, mask, aux, last, everywhere)


def under(policy: StorePolicy, sample: StatesSample) -> StatesSample:
    """Return what a policy keeps of a sample that has everything."""
    start, end = Trim(policy.max_tokens, policy.keep_prompt).span_of(sample.loss_mask)
    mask = sample.loss_mask[start:end]
    positions = last_positions(mask, policy.last)
    return dataclasses.replace(
        sample,
        input_ids=sample.input_ids[start:end],
        loss_mask=mask,
        aux=sample.aux[start : end - 1],
        last=sample.last[start:end][positions],
        last_positions=positions,
        skip=start,
        cut=len(sample.loss_mask) - end,
    )


def pack(
    folder: Path, manifest: ShardManifest, policy: StorePolicy, samples: Sequence[StatesSample],
    threads: int = 1,
) -> tuple[Path, float]:  # fmt: skip
    """Write one shard; return its path and the seconds from first append to rename."""
    kept = [under(policy, s) for s in samples]
    start = time.perf_counter()
    writer = ShardWriter(folder, policy.apply(manifest), threads=threads)
    for sample in kept:
        writer.append(sample)
    path = writer.finish().path
    return path, time.perf_counter() - start


def plain_write(folder: Path, arrays: Sequence[Bits]) -> float:
    """Write arrays one after the other and sync; return the seconds."""
    path = folder / f"plain{TMP_SUFFIX}"
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for array in arrays:
            file.write(array.data)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def packing(
    folder: Path, manifest: ShardManifest, samples: Sequence[StatesSample], rounds: int
) -> dict[str, Any]:
    """Measure whole shards per codec on one core, and all cores, against a plain write.

    The samples are taken again and again until the shard has a real size: what a small one waits
    for is the disk's answer to a sync.
    """
    one = sum(s.aux.nbytes + s.last.nbytes for s in samples)
    samples = list(samples) * -(-PACK_BYTES // one)
    arrays = [np.ascontiguousarray(a) for s in samples for a in (s.aux, s.last)]
    size = sum(a.nbytes for a in arrays) / MB
    cores = len(os.sched_getaffinity(0))
    rates: dict[str, list[float]] = {}
    for _ in range(rounds):
        rates.setdefault("plain", []).append(size / plain_write(folder, arrays))
        for codec in CODECS:
            policy = StorePolicy(codec, codec, "all")
            for threads in {1, cores}:
                cpu = time.process_time()
                path, seconds = pack(folder, manifest, policy, samples, threads)
                cpu = time.process_time() - cpu
                path.unlink()
                rates.setdefault(f"{codec}_{threads}", []).append(size / seconds)
                if threads == 1:
                    rates.setdefault(f"{codec}_cpu", []).append(size / cpu)
    best = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    return {"mb": round(size, 1), "mb_per_s": best, "raw_of_plain": best["raw_1"] / best["plain"]}


def best_rate(
    work: Callable[[], object], size: float, rounds: int, clock: Callable[[], float]
) -> float:
    """Return the best MB/s of some rounds."""
    times = []
    for _ in range(rounds):
        start = clock()
        work()
        times.append(clock() - start)
    return round(size / min(times), 1)


def core_rate(work: Callable[[], object], size: float, rounds: int) -> float:
    """Return the best MB/s of one core: by CPU time, so that a busy machine does not count."""
    return best_rate(work, size, rounds, time.process_time)


def coding(
    manifest: ShardManifest, samples: Sequence[StatesSample], rounds: int
) -> dict[str, dict[str, Any]]:
    """Measure ratio, speed and error of each codec by layer, without a disk, on one core.

    The reference is zstd at level 1 over the same bytes as they are.
    """
    plain = zstandard.ZstdCompressor(level=1)
    hidden = manifest.hidden_size
    joined = np.concatenate([s.aux for s in samples])
    parts = {
        f"layer {k}": np.ascontiguousarray(joined[:, i * hidden : (i + 1) * hidden])
        for i, k in enumerate(manifest.layers)
    }
    parts["last"] = np.concatenate([s.last for s in samples])
    table: dict[str, dict[str, Any]] = {}
    for name, bits in parts.items():
        # rows without a final state are zeros in `run_samples`
        rows = np.ascontiguousarray(bits[bits.any(axis=1)])
        size = rows.nbytes / MB
        row: dict[str, Any] = {
            "zstd1_ratio": round(len(plain.compress(rows.data)) / rows.nbytes, 4),
            "zstd1_mb_per_s": core_rate(lambda r=rows: plain.compress(r.data), size, rounds),  # type: ignore[misc] # bound in the loop
        }
        for codec in CODED:
            made = [encode(codec, p, hidden) for p in pieces(rows, hidden)]
            stored = sum(sum(map(len, m.chunks)) for m in made)
            stored += sum(m.scale.nbytes for m in made if m.scale is not None)
            row[f"{codec}_ratio"] = round(stored / rows.nbytes, 4)
            row[f"{codec}_bytes_per_value"] = round(stored / rows.size, 4)
            row[f"{codec}_mb_per_s"] = core_rate(
                lambda c=codec, r=rows: [encode(c, p, hidden) for p in pieces(r, hidden)],  # type: ignore[misc] # bound in the loop
                size,
                rounds,
            )
            row[f"{codec}_decode_mb_per_s"] = core_rate(
                decoder(codec, made, rows.shape, hidden), size, rounds
            )
        row |= _fp8_error(rows, hidden)
        table[name] = row
    return table


def decoder(
    codec: Codec, made: Sequence[Piece], shape: tuple[int, ...], hidden: int
) -> Callable[[], object]:
    """Return a function that decodes these pieces of one layer as the reader does."""
    data = np.frombuffer(b"".join(c for m in made for c in m.chunks), np.uint8)
    if codec == "fp8":
        scales = np.concatenate([m.scale for m in made if m.scale is not None])
        return lambda: decode_fp8_strips(data.reshape(shape), scales)
    ends = np.cumsum([0, *(n for m in made for n in m.sizes)])
    blocks = [data[i:j] for i, j in itertools.pairwise(ends)]
    # each piece has whole blocks, so they are those of one sample with all rows
    return lambda: decode_lossless(blocks, shape[0], 1, hidden)


def _fp8_error(rows: Bits, hidden: int) -> dict[str, float]:
    codes, scale = encode_fp8(as_bf16(rows), 1)
    back = decode_fp8(codes.view(torch.uint8).numpy(), scale.numpy(), hidden)
    true, got = as_bf16(rows).float(), as_bf16(back).float()
    nonzero = true != 0
    relative = ((got - true).abs() / true.abs())[nonzero]
    return {
        "fp8_median_relative_error": round(float(relative.median()), 5),
        "fp8_zeroed": float((nonzero & (got == 0)).sum() / nonzero.sum()),
        "peak": float(true.abs().max()),
    }


def policies(
    folder: Path, manifest: ShardManifest, samples: Sequence[StatesSample]
) -> dict[str, Any]:
    """Return bytes a supervised token of each policy, and of 8·H a token as others store."""
    supervised = sum(int(s.loss_mask.sum()) for s in samples)
    tokens = sum(len(s.loss_mask) for s in samples)
    width = (len(manifest.layers) + 1) * manifest.hidden_size * 2
    table: dict[str, Any] = {"others": round(tokens * width / supervised)}
    for name, policy in {
        "all raw": StorePolicy(last="all"),
        "supervised raw": StorePolicy(),
        "supervised lossless": StorePolicy("lossless", "lossless"),
        "supervised fp8, last lossless": StorePolicy("fp8", "lossless"),
        "fp8": StorePolicy("fp8", "fp8"),
        "none raw": StorePolicy(last="none"),
        "window of 64, lossless": StorePolicy("lossless", "lossless", keep_prompt=64),
    }.items():
        path, _ = pack(folder, manifest, policy, samples)
        table[name] = round(path.stat().st_size / supervised)
        path.unlink()
    return table


def drop_cache(folder: Path) -> None:
    """Drop the pages of every file in a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def reading(
    folder: Path, manifest: ShardManifest, samples: Sequence[StatesSample]
) -> dict[str, Any]:
    """Measure samples/s in random order, cold and warm, of each codec and of one file a sample.

    Every state is copied once more, as a trainer does when it makes a batch: SpecForge's reader
    only maps its files, and would be timed without reading anything.
    """
    order = random.Random(0).sample(range(len(samples)), len(samples))
    readers: dict[str, tuple[Path, Callable[[int], Any]]] = {}
    for codec in CODECS:
        place = folder / codec
        pack(place, manifest, StorePolicy(codec, codec, "all"), samples)
        readers[codec] = (place, ShardDataset.from_folder(place).__getitem__)
    files = folder / "specforge"
    export_specforge(ShardDataset.from_folder(folder / "raw"), files)
    load, own = specforge_reader()
    readers["one_file_a_sample"] = (files, lambda i: load(files / f"rows_0-2000/data_{i}.ckpt"))
    mb = sum(s.aux.nbytes + s.last.nbytes for s in samples) / MB
    table: dict[str, Any] = {"specforge_own_reader": own}
    room = torch.empty(max(s.aux.size for s in samples), dtype=torch.bfloat16)
    for name, (place, read) in readers.items():
        drop_cache(place)
        for kind in ("cold", "warm"):
            start, cpu = time.perf_counter(), time.process_time()
            for i in order:
                _into(room, read(i))
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
            table[f"{name}_{kind}"] = {
                "samples_per_s": round(len(order) / seconds, 1),
                "mb_per_s": round(mb / seconds, 1),
                "mb_per_cpu_s": round(mb / cpu, 1),
            }
    for kind in ("cold", "warm"):
        ours, theirs = (table[f"{n}_{kind}"] for n in ("raw", "one_file_a_sample"))
        table[f"ratio_{kind}"] = round(ours["samples_per_s"] / theirs["samples_per_s"], 2)
        table[f"ratio_{kind}_by_cpu"] = round(ours["mb_per_cpu_s"] / theirs["mb_per_cpu_s"], 2)
    return table


def _into(room: torch.Tensor, sample: Mapping[str, object]) -> None:
    """Copy every state of a sample."""
    for value in sample.values():
        if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
            room[: value.numel()].copy_(value.reshape(-1))


def specforge_reader() -> tuple[Callable[[Path], Any], bool]:
    """Return how SpecForge reads a file, and whether it is its own code."""
    sys.path.append(str(ROOT / ".peers-venv"))
    try:
        data = importlib.import_module("specforge.algorithms.eagle3.data")
        store = importlib.import_module("specforge.runtime.data_plane.feature_store")
    except ImportError:
        return lambda path: torch.load(path, weights_only=True), False
    return (
        lambda path: data.normalize_offline_sample(store.load_feature_file(str(path)), 1 << 20)
    ), True


def on_device(
    device: str, manifest: ShardManifest, samples: Sequence[StatesSample], rounds: int
) -> dict[str, float]:
    """Measure the encoders on a device that holds the states already, bf16 MB/s."""
    states = torch.cat([as_bf16(np.ascontiguousarray(s.aux)) for s in samples]).to(device)
    states = states.repeat(max(1, (1 << 30) // states.nbytes), 1)  # about 1 GiB
    layers, size = len(manifest.layers), states.nbytes / MB

    def run(work: Callable[[], object]) -> Callable[[], None]:
        def timed() -> None:
            work()
            torch.cuda.synchronize()

        return timed

    works: dict[str, Callable[[], object]] = {
        "fp8": lambda: encode_fp8(states, layers),
        "split_planes": lambda: split_planes(states),
        # with what crosses to the host, and zstd on one core of it
        "fp8_to_host": lambda: encode_states("fp8", states, manifest.hidden_size),
        "lossless_to_host": lambda: encode_states("lossless", states, manifest.hidden_size),
    }
    works["fp8"]()
    return {
        f"{name}_mb_per_s": best_rate(run(work), size, rounds, time.perf_counter)
        for name, work in works.items()
    }


def main() -> None:
    """Run everything and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of the model whose states are made")
    parser.add_argument("--state", type=Path, help="state folder of a run that has shards")
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens of text, with --model")
    parser.add_argument("--f32-tokens", type=int, default=4096, help="of these, also in float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="", help="cuda: measure the encoders there as well")
    parser.add_argument("--device-only", action="store_true")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache", help="where files are made")
    args = parser.parse_args()
    torch.set_num_threads(1)
    made = run_samples(args.state) if args.state else text_samples(args.model, args.tokens)
    manifest, samples = dataclasses.replace(made[0], last="all"), made[1]
    if args.device_only:
        found = on_device(args.device, manifest, samples, args.rounds)
        print(json.dumps({"bench": "shards", "model": manifest.target, "device": found}))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-shards-", dir=args.folder))
    try:
        result: dict[str, Any] = {
            "bench": "shards",
            "model": manifest.target,
            "samples": len(samples),
            "tokens": sum(len(s.input_ids) for s in samples),
            "packing": packing(folder, manifest, samples, args.rounds),
            "codecs": coding(manifest, samples, args.rounds),
            "against_f32": against_f32(args.model, args.f32_tokens) if args.model else None,
            "bytes_per_supervised_token": policies(folder, manifest, samples),
            "reading": reading(folder, manifest, samples),
        }
        if args.device:
            result["device"] = on_device(args.device, manifest, samples, args.rounds)
        for path in folder.glob("*/shard-*.safetensors"):
            assert read_shard_header(path).samples, path
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
