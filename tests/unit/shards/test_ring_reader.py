"""A trainer's loop over the ring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagled.workers.ring_reader import ring_shards


def test_a_shard_is_released_after_it_was_read() -> None:
    """Register, lease one, read, release, and leave once the run is over."""
    waiting = ["a", "b"]
    log: list[str] = []

    def post(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        log.append(f"{path.rpartition('/')[2]} {','.join(body.get('shards', []))}".strip())
        if not path.endswith("/lease"):
            return {}
        names = [waiting.pop(0)] if waiting else []
        return {"shards": [{"name": n, "path": f"/s/{n}"} for n in names]}

    for path in ring_shards(post, "trainer", ended=lambda: True):
        log.append(f"read {path.name}")
        assert path.parent == Path("/s")

    assert log == [
        "register", "lease", "read a", "release a", "lease", "read b", "release b", "lease",
        "leave",
    ]  # fmt: skip
