"""How states are stored: codecs, final states, tokens; as configured or as chosen later.

`eagled plan disk --choose` writes the choice beside the plans. It wins over the configuration until
it is taken back, and a running worker follows it from its next batch on: the open shard is closed
first, so that a shard has one policy. Nothing that is written already is changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagled.artifacts import read_json, write_json
from eagled.config import Config
from eagled.errors import ArtifactError
from eagled.shards.backend import Captured, Ids, StatesBackend
from eagled.shards.format import CODEC_DTYPES, Codec, LastPolicy, ShardManifest


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """What is stored of the states; the names are those of the settings.

    Attributes:
        codec: of `aux`.
        codec_last: of `last`.
        last: which final states are kept.
        max_tokens: most tokens of a sample; 0 is no limit.
        keep_prompt: most tokens before the first supervised one; 0 is all.
    """

    codec: Codec = "raw"
    codec_last: Codec = "raw"
    last: LastPolicy = "supervised"
    max_tokens: int = 0
    keep_prompt: int = 0

    def apply(self, manifest: ShardManifest) -> ShardManifest:
        """Return the manifest of shards that are written under this policy."""
        return dataclasses.replace(manifest, **dataclasses.asdict(self))

    def words(self) -> str:
        """Return it in one line, for tables and events."""
        parts = [f"aux {self.codec}", f"last {self.last}"]
        if self.last != "none":
            parts[1] += f" {self.codec_last}"
        if self.max_tokens:
            parts.append(f"at most {self.max_tokens:,} tokens")
        if self.keep_prompt:
            parts.append(f"{self.keep_prompt:,} before the answer")
        return ", ".join(parts)


def configured_policy(config: Config) -> StorePolicy:
    """Return the policy of the configuration."""
    return StorePolicy(
        codec=config.shards.codec,
        codec_last=config.shards.codec_last,
        last=config.extract.last,
        max_tokens=config.extract.max_tokens,
        keep_prompt=config.extract.keep_prompt,
    )


def chosen_policy(path: Path) -> StorePolicy | None:
    """Return the policy that `eagled plan disk --choose` left in `path`, or None.

    Raises:
        ArtifactError: if the file is not understood.
    """
    return _policy(read_json(path).get("policy"), path) if path.exists() else None


def current_policy(config: Config, path: Path) -> StorePolicy:
    """Return the policy that holds: the chosen one, else that of the configuration."""
    return chosen_policy(path) or configured_policy(config)


def write_choice(path: Path, policy: StorePolicy, facts: Mapping[str, Any]) -> None:
    """Record a choice and the numbers that it was made from."""
    write_json(path, {"policy": dataclasses.asdict(policy), **facts})


def _policy(value: object, path: Path) -> StorePolicy:
    try:
        policy = StorePolicy(**value) if isinstance(value, dict) else None
    except TypeError:
        policy = None
    if policy is None or not {policy.codec, policy.codec_last} <= set(CODEC_DTYPES):
        raise ArtifactError(f"{path}: the chosen policy is not understood; choose again")
    return policy


class PolicyBackend:
    """A back end whose states are stored under the policy of the moment."""

    def __init__(self, inner: StatesBackend, config: Config, path: Path) -> None:
        self._inner = inner
        self._config = config
        self._path = path
        self.refresh()

    @property
    def manifest(self) -> ShardManifest:
        """The inner back end's, with the policy of the last refresh."""
        return self._manifest

    def refresh(self) -> None:
        """Look at the choice again; never while a batch is in hand."""
        policy = current_policy(self._config, self._path)
        self._manifest = policy.apply(self._inner.manifest)

    def capture(self, batch: Sequence[Ids]) -> list[Captured]:
        """Return the inner back end's states."""
        return self._inner.capture(batch)

    def release(self, batch: Sequence[Ids]) -> None:
        """Let the inner back end forget samples."""
        self._inner.release(batch)

    def self_check(self) -> None:
        """Run the inner back end's check."""
        self._inner.self_check()
