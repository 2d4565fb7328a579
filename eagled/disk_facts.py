"""Gather what a disk plan is made of: the run's database, shards, file system and last status.

Reads only, beside a live daemon or without one. Loads neither torch nor transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagled.config import Config
from eagled.disk import file_system, folder_bytes
from eagled.disk_plan import (
    DiskPlan,
    Lengths,
    Model,
    Room,
    group_lengths,
    make_plan,
    measure_lossless,
    room_of,
)
from eagled.errors import ArtifactError, ConfigError
from eagled.paths import StatePaths
from eagled.shards.layers import plan_layers
from eagled.shards.policy import StorePolicy, current_policy, write_choice
from eagled.shards.target import read_target
from eagled.store import StoreReader
from eagled.types import STATE_OF_CODE


def plan_disk(
    config: Config,
    status: Mapping[str, Any],
    *,
    asked: StorePolicy | None = None,
    lengths: Sequence[Lengths] | None = None,
    free_bytes: int | None = None,
) -> DiskPlan:
    """Return the disk plan of a run; blocking, for a thread.

    Args:
        config: its configuration.
        status: the status document, for rates; may be empty.
        asked: a policy to show beside the ladder.
        lengths: lengths to assume instead of the run's.
        free_bytes: room to assume instead of the disk's.

    Raises:
        ConfigError: if the target's layers and width cannot be told.
    """
    paths = StatePaths(config.run.state_dir)
    disk = status.get("disk") or {}
    room = room_of(config, disk, file_system(paths.root).free_bytes, folder_bytes(paths.root))
    if free_bytes is not None:
        room = Room(free_bytes, room.own_bytes_per_s, room.others_bytes_per_s)
    return make_plan(
        read_lengths(paths.database) if lengths is None else lengths,
        model_of(config, paths.shards),
        room,
        current_policy(config, paths.disk_choice),
        asked,
    )


def model_of(config: Config, shards: Path) -> Model:
    """Return what decides the size of a row."""
    target = read_target(Path(config.target.model))
    layers = plan_layers(target.n_layers, config.extract.layers)
    share = measure_lossless(shards)
    if share is None:
        return Model(len(layers), target.hidden_size)
    return Model(len(layers), target.hidden_size, share, lossless_measured=True)


def read_lengths(database: Path, stop: Callable[[], bool] | None = None) -> list[Lengths]:
    """Return the lengths of the run's samples; none without a database.

    Raises:
        StoreError: if `stop` said True meanwhile.
    """
    if not database.is_file():
        return []
    with StoreReader(database, stop) as reader:
        return group_lengths(
            (dataset, lane, STATE_OF_CODE[state].value, n_prompt, n_output)
            for dataset, lane, state, n_prompt, n_output in reader.lengths()
        )


def choose(config: Config, plan: DiskPlan, name: str) -> str:
    """Record a choice, or take it back (`config`); return what was done in words.

    Raises:
        ArtifactError: if there is no such option.
    """
    path = StatePaths(config.run.state_dir).disk_choice
    if name == "config":
        path.unlink(missing_ok=True)
        return "the configuration holds again"
    if name == "stream":
        raise ArtifactError('stream mode is a setting: disk.mode = "stream", then start again')
    option = plan.option(name)
    facts = {
        "option": name,
        "trade": option.trade,
        "bytes_left": option.bytes_left,
        "free_bytes": plan.room.free_bytes,
        "model": dataclasses.asdict(plan.model),
    }
    write_choice(path, option.policy, facts)
    return f"{name}: {option.policy.words()}; workers follow with their next batch"


def last_status(paths: StatePaths) -> Mapping[str, Any]:
    """Return the last status that a daemon left, or nothing."""
    from eagled.artifacts import read_json

    try:
        return read_json(paths.snapshot)
    except (ArtifactError, ConfigError):
        return {}
