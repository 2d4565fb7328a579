"""What each shard file is, in a line: from headers and masks, without the states."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagled.errors import ArtifactError
from eagled.shards.container import map_arrays
from eagled.shards.format import SHARD_SUFFIX, ShardManifest, read_shard_header


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """One shard file; `problem` says why it cannot be read, and the numbers are 0 then.

    Attributes:
        name: file name.
        bytes: its size.
        samples: in it.
        tokens: of these that are stored.
        supervised: of these that are the target's.
        states_bytes: of `aux` and of `last`, with what lies beside them.
        manifest: what the states are.
        problem: why it cannot be read.
    """

    name: str
    bytes: int
    samples: int = 0
    tokens: int = 0
    supervised: int = 0
    states_bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    manifest: ShardManifest | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        row = dataclasses.asdict(self)
        return {**row, "manifest": self.manifest.to_dict() if self.manifest else None}

    def cells(self) -> tuple[object, ...]:
        """Return the row of `eagled shards list`."""
        if self.manifest is None:
            return (self.name, None, None, None, self.bytes, None, self.problem, "")
        per_token = round(self.bytes / max(1, self.tokens))
        last = f"{self.manifest.last} {self.manifest.codec_last}"
        counts = (self.samples, self.tokens, self.supervised, self.bytes, per_token)
        return (self.name, *counts, self.manifest.codec, last)


def summarise(folder: Path) -> list[ShardSummary]:
    """Return every shard of `folder` by name; a torn one is listed with its problem."""
    return [_summary(path) for path in sorted(folder.glob(f"*{SHARD_SUFFIX}"))]


def _summary(path: Path) -> ShardSummary:
    size = path.stat().st_size
    try:
        header = read_shard_header(path)
        mask = map_arrays(header.container, ["loss_mask"])["loss_mask"]
    except ArtifactError as exc:
        return ShardSummary(path.name, size, problem=str(exc))
    stored = {
        part: sum(
            info.end - info.start
            for name, info in header.container.tensors.items()
            if name.partition("_")[0] == part
        )
        for part in ("aux", "last")
    }
    return ShardSummary(
        name=path.name,
        bytes=size,
        samples=len(header.samples),
        tokens=header.n_tokens,
        supervised=int(mask.sum()),
        states_bytes=stored,
        manifest=header.manifest,
    )
