"""Which storage policy holds, and that a worker follows a change of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from eagled.artifacts import write_json
from eagled.clock import SystemClock
from eagled.config import Config
from eagled.errors import ArtifactError
from eagled.shards.backend import Captured, Ids
from eagled.shards.format import read_shard_header
from eagled.shards.policy import PolicyBackend, StorePolicy, current_policy, write_choice
from eagled.types import ExtractJob
from eagled.workers.extraction import Extraction, ExtractSettings
from tests.unit.shards.doubles import Daemon, ToyBackend, make_job

FP8 = StorePolicy(codec="fp8", last="none")


def config(**shards: str) -> Config:
    """Return a configuration with [shards] settings."""
    return Config.model_validate({"target": {"model": "toy"}, "shards": shards})


def test_the_choice_wins_over_the_configuration(tmp_path: Path) -> None:
    """Without a choice the settings hold; a choice holds until it is taken back."""
    path = tmp_path / "plans" / "disk_choice.json"
    assert current_policy(config(codec="lossless"), path) == StorePolicy(codec="lossless")
    write_choice(path, FP8, {"because": "the disk"})
    assert current_policy(config(codec="lossless"), path) == FP8
    path.unlink()
    assert current_policy(config(), path) == StorePolicy()


@pytest.mark.parametrize("policy", [None, {"codec": "gzip"}, {"kodec": "raw"}, "fp8"])
def test_a_choice_that_is_not_understood_is_an_error(tmp_path: Path, policy: object) -> None:
    """A file of another version never means a codec by accident."""
    write_json(tmp_path / "c.json", {"policy": policy})

    with pytest.raises(ArtifactError, match="choose again"):
        current_policy(config(), tmp_path / "c.json")


class Choosing(ToyBackend):
    """A back end during whose second batch somebody chooses another policy."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.seen = 0

    def capture(self, batch: Sequence[Ids]) -> list[Captured]:
        """Count, choose, and return the toy's states."""
        self.seen += 1
        if self.seen == 2:
            write_choice(self.path, FP8, {})
        return super().capture(batch)


async def test_a_worker_follows_a_choice_from_its_next_claim_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No restart: what was computed stays as it was promised, later shards have the new policy."""
    path = tmp_path / "choice.json"
    daemon = Daemon([make_job(n) for n in range(40)])
    backend = PolicyBackend(Choosing(path), config(), path)
    settings = ExtractSettings(
        shards=tmp_path / "shards", batch_tokens=16, target_bytes=1 << 20, max_wait_s=1e9,
        stop_timeout_s=5.0, once=True, idle_wait_s=0.0,
    )  # fmt: skip
    loop = Extraction(daemon, backend, settings, SystemClock(), refresh=backend.refresh)
    real = daemon.claim_extract

    async def few(worker: str, max_samples: int, max_tokens: int) -> list[ExtractJob]:
        return await real(worker, min(max_samples, 10), max_tokens)

    monkeypatch.setattr(daemon, "claim_extract", few)
    await loop.run()

    found = [read_shard_header(p).manifest for p in (tmp_path / "shards").glob("*.safetensors")]
    assert len(daemon.extracted) == 40
    assert {("raw", "supervised"), ("fp8", "none")} == {(m.codec, m.last) for m in found}
    raw = next(m for m in found if m.codec == "raw")
    assert dataclasses.asdict(raw) == dataclasses.asdict(ToyBackend().manifest)
