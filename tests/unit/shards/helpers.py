"""Small shards made from a seed, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eagled.shards.format import Bits, LastPolicy, ShardManifest, StatesSample, last_positions
from eagled.shards.writer import FinishedShard, ShardWriter

HIDDEN = 8
LAYERS = (2, 4, 5)


def manifest(last: LastPolicy = "supervised", *, target: str = "toy") -> ShardManifest:
    """Return the manifest of an 8-layer toy with width 8 and 300 ids."""
    return ShardManifest(
        target=target,
        revision=None,
        target_hash="t" * 64,
        tokenizer_hash="k" * 64,
        n_layers=8,
        hidden_size=HIDDEN,
        vocab_size=300,
        layers=LAYERS,
        last=last,
        compute_dtype="float32",
        backend="test",
        eagled="0",
    )


def random_bits(rng: np.random.Generator, shape: tuple[int, ...]) -> Bits:
    """Return bf16 bits of normal numbers: the upper half of their float32 bits."""
    values = rng.normal(size=shape).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def sample(
    number: int, n_prompt: int = 3, n_output: int = 4, last: LastPolicy = "supervised"
) -> StatesSample:
    """Return a sample whose content depends on its number only."""
    rng = np.random.default_rng(number)
    n = n_prompt + n_output
    mask = np.concatenate([np.zeros(n_prompt, np.uint8), np.ones(n_output, np.uint8)])
    positions = last_positions(mask, last)
    return StatesSample(
        uid=f"{number:032x}",
        sample=number,
        attempt=1,
        dataset="alpha" if number % 2 else "beta",
        input_ids=rng.integers(0, 300, n).astype(np.int32),
        loss_mask=mask,
        aux=random_bits(rng, (n - 1, len(LAYERS) * HIDDEN)),
        last=random_bits(rng, (len(positions), HIDDEN)),
        last_positions=positions,
    )


def write_shard(
    folder: Path, samples: list[StatesSample], last: LastPolicy = "supervised"
) -> FinishedShard:
    """Write `samples` as one shard into `folder`."""
    writer = ShardWriter(folder, manifest(last))
    for item in samples:
        writer.append(item)
    return writer.finish()
