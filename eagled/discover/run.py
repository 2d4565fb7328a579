"""`eagled discover` from its options to its findings; the command only prints them.

Guarantee: nothing of the configuration or of the run is changed. Blocking; its work is done in
threads. Price: transformers is loaded to count tokens, where the target's tokenizer is here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from eagled.clock import Clock, SystemClock, iso_utc
from eagled.config import Config, DatasetConfig
from eagled.credentials import read_key
from eagled.discover.assess import Assessor
from eagled.discover.cache import Cache
from eagled.discover.categories import Catalogue, Category, TargetSize, chosen, load_categories
from eagled.discover.facts import Found
from eagled.discover.figures import Setting
from eagled.discover.findings import FINDINGS_NAME, Asked, Findings, conclude, write_findings
from eagled.discover.gate import Gate
from eagled.discover.hub import HubSource
from eagled.discover.local import CatalogueSource, FolderSource, fitting
from eagled.discover.rank import rank
from eagled.discover.sample import Measure, Probe
from eagled.discover.search import Finder, Search
from eagled.disk_facts import last_status, model_of
from eagled.disk_plan import Model
from eagled.errors import ConfigError, UnreachableError, UsageError
from eagled.paths import StatePaths
from eagled.readers import formats
from eagled.shards.policy import current_policy

_HUB, _VIEWER = "https://huggingface.co", "https://datasets-server.huggingface.co"
_USED = (
    "pyarrow.parquet", "rensa", "huggingface_hub.hf_api", "huggingface_hub.errors",
    "huggingface_hub.utils._http", "huggingface_hub.utils._headers",
)  # fmt: skip
_HOUR_S = 3600.0
_TOKENISED = 64  # rows that are rendered and counted; the others go through the rules only
_TOKENIZER_S = 20.0  # longest wait for a tokenizer that is not on this machine
_ON = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says.

    Attributes:
        categories: names; none is all.
        categories_file: the user's own categories; None is the package's.
        target: name of the target; empty is the configured model's.
        goal: conversations wanted.
        catalogues: files that name datasets.
        folders: folders of datasets.
        hub: whether the hub is searched.
        endpoint: address of the hub; empty is that of HF_ENDPOINT.
        viewer: address of the dataset viewer; empty is the official one with the official hub.
        limit: most datasets of one query.
        rows: rows looked at of each dataset.
        timeout_s: longest time for one dataset.
        wait_s: longest wait for a byte.
        token_file: file that holds the hub's token.
        rate_tok_per_s: answer tokens a second; None takes what the run measured.
        max_age_h: older answers of the cache are asked again.
        offline: ask nobody, take what the cache has.
        side_by_side: categories at once; 0 is all.
    """

    categories: Sequence[str] = ()
    categories_file: Path | None = None
    target: str = ""
    goal: int = 100_000
    catalogues: Sequence[Path] = ()
    folders: Sequence[Path] = ()
    hub: bool = True
    endpoint: str = ""
    viewer: str = ""
    limit: int = 10
    rows: int = 256
    timeout_s: float = 120.0
    wait_s: float = 10.0
    token_file: Path | None = None
    rate_tok_per_s: float | None = None
    max_age_h: float = 72.0
    offline: bool = False
    side_by_side: int = 0


def discover(
    config: Config,
    options: Options,
    progress: Callable[[int, int, str], None],
    clock: Clock | None = None,
) -> Findings:
    """Search, look, rank and propose; the findings are also kept for `--choose`.

    Findings without a dataset that is new (a hub out of reach) do not take an earlier run's place.

    Raises:
        ConfigError: if categories, catalogue or folder are not understood.
        UsageError: if there is nothing to search, or no such category.
    """
    clock = clock or SystemClock()
    target = options.target or Path(config.target.model).name
    catalogue = load_categories(options.categories_file, target)
    categories = chosen(catalogue.categories, options.categories)
    gate = _gate(options)
    _load_all()
    with gate.installed():
        measure, note = _measure(config, gate, ask=options.hub)
        probe = Probe(config, measure, options.rows, min(_TOKENISED, options.rows))
        search = _search(config, options, categories, gate, probe, target, progress, clock)
        searched = search.run(categories, _known(config.datasets, categories))
    paths = StatePaths(config.run.state_dir)
    have = [dataset.source for dataset in config.datasets]
    scratch = paths.discover / "signatures.tmp"
    ranked = rank(searched.candidates, categories, have, scratch, config.prep.near_threshold)
    setting = _setting(config, options, catalogue, target)
    asked = Asked(options.goal, target, iso_utc(clock.now_ms()), note)
    findings = conclude(ranked, categories, config, setting, asked, searched.failures)
    if found_new(findings, config):
        write_findings(paths.discover / FINDINGS_NAME, findings)
    return findings


def found_new(findings: Findings, config: Config) -> bool:
    """Return whether a dataset that is not configured already could be looked at."""
    have = {dataset.source for dataset in config.datasets}
    return any(not item.flaw and item.facts.source not in have for item in findings.ranked)


def _load_all() -> None:
    """Import here what the threads use: forty first imports at once are asking for trouble."""
    for name in _USED:
        import_module(name)
    formats()


def _gate(options: Options) -> Gate:
    from huggingface_hub import constants

    file = options.token_file
    offline = options.offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in _ON
    return Gate(
        options.endpoint or constants.ENDPOINT,
        timeout_s=options.wait_s,
        token=None if file is None else read_key(file, what="--token-file"),
        offline=offline,
    )


def _search(
    config: Config,
    options: Options,
    categories: Sequence[Category],
    gate: Gate,
    probe: Probe,
    target: str,
    progress: Callable[[int, int, str], None],
    clock: Clock,
) -> Search:
    viewer = options.viewer or (_VIEWER if gate.endpoint == _HUB else None)
    hub = HubSource(gate, viewer)
    turns = threading.Semaphore(os.cpu_count() or 1)
    cache = Cache(
        folder=StatePaths(config.run.state_dir).discover / "cache",
        settings=[gate.endpoint, target, probe.settings()],
        now_s=lambda: clock.now_ms() / 1000,
        max_age_s=options.max_age_h * _HOUR_S,
        offline=gate.offline,
    )
    return Search(
        _finders(options, categories, hub),
        Assessor(gate, hub, probe, target, options.timeout_s, turns),
        cache,
        options.limit,
        options.side_by_side,
        progress,
    )


def _finders(options: Options, categories: Sequence[Category], hub: HubSource) -> list[Finder]:
    finders: list[Finder] = [hub] if options.hub else []
    finders += [CatalogueSource(path, categories) for path in options.catalogues]
    finders += [FolderSource(folder, categories) for folder in options.folders]
    if not finders:
        raise UsageError("there is nothing to search: give --catalogue or --folder with --no-hub")
    return finders


def _known(
    datasets: Sequence[DatasetConfig], categories: Sequence[Category]
) -> dict[Found, list[str]]:
    """Return the datasets of the configuration, each with the categories that it fits."""
    out = {}
    for dataset in datasets:
        local = Path(dataset.source).exists()
        split = None if local or dataset.split == "train" else dataset.split
        found = Found(dataset.source, local, None, dataset.config, split)
        out[found] = fitting(categories, f"{dataset.name} {dataset.source}")
    return out


def _measure(config: Config, gate: Gate, *, ask: bool) -> tuple[Measure | None, str]:
    """Return the target's tokenizer, or why there is none here."""
    try:
        with gate.within(_TOKENIZER_S, patient=True) if ask else gate.unasked():
            return Measure(config), ""
    except (ConfigError, UnreachableError) as exc:
        cause = str(exc).splitlines()[0]
        return None, f"lengths are characters, because the target's tokenizer is not here: {cause}"


def _setting(config: Config, options: Options, catalogue: Catalogue, target: str) -> Setting:
    paths = StatePaths(config.run.state_dir)
    rate = options.rate_tok_per_s or measured_rate(last_status(paths))
    return Setting(rate, _model(config, catalogue, target),
                   current_policy(config, paths.disk_choice))  # fmt: skip


def measured_rate(status: Mapping[str, Any]) -> float | None:
    """Return the answer tokens a second of all lanes at their best, from a status document."""
    rates = [
        max([lane.get("out_tok_per_s") or 0.0, *(r or 0.0 for r in lane.get("history", ()))])
        for lane in status.get("lanes", {}).values()
    ]
    return sum(rates) or None


def _model(config: Config, catalogue: Catalogue, target: str) -> Model | None:
    size: TargetSize | None = catalogue.targets.get(target.lower())
    if size is not None:
        return Model(size.layers, size.hidden_size)
    try:
        return model_of(config, StatePaths(config.run.state_dir).shards)
    except ConfigError:
        return None
