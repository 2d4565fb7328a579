"""Gather what `eagled report` shows: status, course, lengths, failures, shards, events, origin.

Guarantee: reads only, beside a live daemon or without one; plain JSON of bounded size whatever the
run's size: at most `MAX_READ` samples are read, evenly over the run, and long lists are cut with
their length said. Blocking, for a thread. Loads neither torch nor transformers.
Coupled: `report_page.py` draws it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eagled import __version__
from eagled.artifacts import MANIFEST_NAME, sha256_file
from eagled.build_info import build_info
from eagled.config_load import LoadedConfig, flatten
from eagled.config_problems import Origin
from eagled.errors import ArtifactError, ConfigError
from eagled.history import read_history
from eagled.paths import StatePaths
from eagled.prepared import read_manifest
from eagled.shards.target import read_target
from eagled.store import StoreReader, queries
from eagled.store.records import ShardRow

MAX_READ = 200_000  # samples whose lengths are read
MAX_POINTS = 2000  # of the course and of the shards
MAX_ROWS = 200  # of a list
_EVENTS = 100
_GROUPS = 50  # of failures
_SHARES = (0.5, 0.95)
_EDGES = [0, *(2**i for i in range(4, 25))]  # 16 tokens to 16 million

Facts = dict[str, Any]


def gather(
    loaded: LoadedConfig, status: Mapping[str, Any], stop: Callable[[], bool] | None = None
) -> Facts:
    """Return the facts of a report.

    Args:
        loaded: the run's configuration.
        status: the daemon's status document, or the last one that it left; may be empty.
        stop: asked while the database is read; True ends it with a `StoreError`.
    """
    paths = StatePaths(loaded.config.run.state_dir)
    facts: Facts = {
        "status": status,
        "history": _thinned(read_history(paths.history)),
        "provenance": _provenance(loaded, paths, status),
        **_of_store(paths.database, stop),
    }
    return facts


def _of_store(database: Path, stop: Callable[[], bool] | None) -> Facts:
    if not database.is_file():
        return {"lengths": None, "failures": [], "shards": [], "events": []}
    with StoreReader(database, stop) as reader:
        groups = queries.failure_groups(reader.db, _GROUPS)
        last = reader.db.rows("last_event")[0][0] or 0
        return {
            "lengths": _lengths(reader),
            "failures": [
                {"dataset": g.dataset, "state": g.state.value, "reason": g.reason, "n": g.n,
                 "example": g.detail}
                for g in groups
            ],
            "shards": _thinned(list(_growth(reader.shards()))),
            "events": [
                {"at_ms": e.at_ms, "kind": e.kind.value, "subject": e.subject, "detail": e.detail}
                for e in queries.events(reader.db, max(0, last - _EVENTS), _EVENTS)
            ],
        }  # fmt: skip


def _growth(shards: Sequence[ShardRow]) -> Iterator[dict[str, int]]:
    """Yield how much was in shards after each one, in the order in which they were made."""
    samples = tokens = size = 0
    for row in sorted(shards, key=lambda row: row.created_ms):
        if row.dropped is None or row.consumed:
            samples += row.n_samples
            tokens += row.n_tokens
            size += row.file_bytes
            yield {"at_ms": row.created_ms, "samples": samples, "tokens": tokens, "bytes": size}


def _thinned(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(points) <= MAX_POINTS:
        return points
    last = len(points) - 1
    return [points[round(i * last / (MAX_POINTS - 1))] for i in range(MAX_POINTS)]


# -- lengths


def _lengths(reader: StoreReader) -> Facts:
    """Return histograms of prompt and answer tokens, and their quantiles by dataset and lane."""
    found: dict[str, list[int]] = {"prompt": [], "answer": []}
    groups: dict[tuple[str, str], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    read = 0
    total = reader.db.rows("last_sample")[0][0] or 0
    for dataset, lane, n_prompt, n_output in reader.some_lengths(total, MAX_READ):
        read += 1
        mine = groups[dataset, lane or ""]
        if n_prompt is not None:
            found["prompt"].append(n_prompt)
            mine[0].append(n_prompt)
        if n_output is not None:
            found["answer"].append(n_output)
            mine[1].append(n_output)
    return {
        "samples": total,
        "read": read,
        "edges": _EDGES,
        **{side: np.histogram(values, _EDGES)[0].tolist() for side, values in found.items()},
        "groups": [
            [*key, len(p), *_quantiles(p), len(a), *_quantiles(a)]
            for key, (p, a) in sorted(groups.items())[:MAX_ROWS]
        ],
    }


def _quantiles(values: Sequence[int]) -> list[int | None]:
    if not values:
        return [None, None, None]
    return [*(round(float(q)) for q in np.quantile(values, _SHARES)), max(values)]


# -- where it comes from


def _provenance(loaded: LoadedConfig, paths: StatePaths, status: Mapping[str, Any]) -> Facts:
    config = loaded.config
    values = flatten(config)
    chosen = [p for p, origin in loaded.origins.items() if origin is not Origin.DEFAULT]
    return {
        "run": [*_made_with(loaded), *_target(loaded), *_servers(status)],
        "settings": [
            [path, str(values[path]), loaded.origins[path].value]
            for path in chosen
            if path in values
        ][:MAX_ROWS],
        "datasets": [_prepared(paths, d.name) for d in config.datasets][:MAX_ROWS],
        "files": list(_manifests(paths))[:MAX_ROWS],
    }


def _made_with(loaded: LoadedConfig) -> list[list[str]]:
    return [
        ["eagled", f"{__version__} ({build_info()})"],
        ["configuration", str(loaded.path)],
        ["state directory", str(loaded.config.run.state_dir)],
        ["seed", str(loaded.config.run.seed)],
    ]


def _target(loaded: LoadedConfig) -> list[list[str]]:
    target = loaded.config.target
    rows = [["target", target.model], ["revision", target.revision or "the folder as it is"]]
    try:
        facts = read_target(Path(target.model))
    except (ConfigError, ArtifactError):  # a hub id, or a folder of another machine
        return rows
    return [
        *rows,
        ["layers, width, vocabulary",
         f"{facts.n_layers}, {facts.hidden_size}, {facts.vocab_size}"],
        ["config and weights", facts.target_hash],
        ["tokenizer", facts.tokenizer_hash],
    ]  # fmt: skip


def _servers(status: Mapping[str, Any]) -> list[list[str]]:
    return [
        [f"server {s['url']}", f"{s['model'] or 'unknown'}, version {s['version'] or 'unknown'}"]
        for s in status.get("servers", [])
    ]


def _prepared(paths: StatePaths, name: str) -> list[Any]:
    try:
        found = read_manifest(paths.datasets / name)
    except ArtifactError:
        return [name, "not prepared", None, None, None, ""]
    return [
        name,
        found.mode.value,
        found.n_rows,
        found.n_kept,
        sum(found.rejected.values()),
        found.prep_key,
    ]


def _manifests(paths: StatePaths) -> Iterator[list[str]]:
    """Yield kind, place and SHA-256 of the manifest of what the run has frozen or trained."""
    kinds = (("corpus", paths.corpora), ("vocabulary", paths.vocab), ("draft", paths.drafts))
    for kind, folder in kinds:
        for path in sorted(folder.rglob(MANIFEST_NAME)):
            yield [kind, str(path.parent.relative_to(paths.root)), sha256_file(path)]
