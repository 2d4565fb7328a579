"""Collect what a plan is made of, and write `train_plan_vN.md`.

Sources: the configuration, the manifests of prepared datasets, the last status (live or from
`status.json`), the newest corpus and vocabulary. Same sources, same bytes; a plan that would not
differ from the newest version is not written again. Loads neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from eagled.artifacts import MANIFEST_NAME, read_json, write_bytes
from eagled.config import Config
from eagled.discover.decision import read_decision
from eagled.disk import file_system
from eagled.errors import ArtifactError, ConfigError
from eagled.holdout import TRAIN
from eagled.lanes import lane_context, ordered_lanes
from eagled.paths import StatePaths
from eagled.plan_render import (
    NOT_MEASURED,
    ByteFacts,
    DatasetFacts,
    PhaseFacts,
    PlanFacts,
    Span,
    human_bytes,
    render_plan,
)
from eagled.plan_risks import RiskFacts, find_risks
from eagled.prepared import PreparedManifest, read_manifest
from eagled.profile import read_profile
from eagled.sampling import ResolvedSampling, model_defaults, resolve_sampling
from eagled.shards.layers import plan_layers
from eagled.shards.policy import current_policy
from eagled.shards.target import TargetFacts, read_target
from eagled.train.corpus import TABLE_NAME, Corpus, corpus_versions, read_corpus

_BF16_BYTES = 2
_LOW, _HIGH = 0.1, 0.9  # of the throughput history: the range of a time
_PLAN = "train_plan_v{}.md"


@dataclass(frozen=True, slots=True)
class TokenSums:
    """Tokens of a dataset in the corpus."""

    samples: int
    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class _Sources:
    config: Config
    paths: StatePaths
    status: Mapping[str, Any]
    prepared: Mapping[str, PreparedManifest]
    target: TargetFacts | None
    corpus: Corpus | None
    sums: Mapping[str, TokenSums]
    vocab: Mapping[str, Any] | None


def write_plan(config: Config, status: Mapping[str, Any] | None) -> Path:
    """Write the next version of the plan, unless the newest one says the same; return its path.

    Args:
        config: the run's configuration.
        status: the daemon's status document; None takes the last one it left, if there is one.
    """
    facts = collect(config, status)
    folder = StatePaths(config.run.state_dir).plans
    newest = max((_number(p) for p in folder.glob(_PLAN.format("*"))), default=0)
    current = folder / _PLAN.format(newest)
    if newest and current.read_text(encoding="utf-8") == render_plan(facts, newest):
        return current
    path = folder / _PLAN.format(newest + 1)
    write_bytes(path, render_plan(facts, newest + 1).encode())
    return path


def show_plan(config: Config, status: Mapping[str, Any] | None) -> str:
    """Return the plan as text without writing it."""
    return render_plan(collect(config, status), 0)


def _number(path: Path) -> int:
    digits = path.stem.rpartition("_v")[2]
    return int(digits) if digits.isdecimal() else 0


def collect(config: Config, status: Mapping[str, Any] | None) -> PlanFacts:
    """Return the facts of a plan."""
    src = _sources(config, status)
    disk = _byte_facts(src)
    datasets = tuple(_dataset_facts(src, d.name) for d in config.datasets)
    return PlanFacts(
        run=config.run.name,
        target=_target_rows(src),
        phases=_phases(src),
        datasets=datasets,
        tokens=_token_rows(src),
        disk=disk,
        decisions=_decisions(src),
        risks=find_risks(_risk_facts(src, disk, datasets)),
        sources=_source_rows(src),
        data=read_decision(src.paths.data_choice),
    )


def _sources(config: Config, status: Mapping[str, Any] | None) -> _Sources:
    paths = StatePaths(config.run.state_dir)
    versions = corpus_versions(paths.corpora)
    corpus = read_corpus(versions[-1]) if versions else None
    return _Sources(
        config=config,
        paths=paths,
        status=status if status is not None else _last_status(paths),
        prepared=_prepared(config, paths),
        target=_target(config),
        corpus=corpus,
        sums=token_sums(corpus.folder / TABLE_NAME) if corpus else {},
        vocab=_newest_vocab(paths),
    )


def _last_status(paths: StatePaths) -> Mapping[str, Any]:
    try:
        return read_json(paths.snapshot)
    except ArtifactError:
        return {}


def _prepared(config: Config, paths: StatePaths) -> dict[str, PreparedManifest]:
    folders = {d.name: paths.datasets / d.name for d in config.datasets}
    return {
        name: read_manifest(folder)
        for name, folder in folders.items()
        if (folder / MANIFEST_NAME).exists()
    }


def _target(config: Config) -> TargetFacts | None:
    try:
        return read_target(Path(config.target.model))
    except ConfigError:  # a hub id that is not on this machine
        return None


def _newest_vocab(paths: StatePaths) -> Mapping[str, Any] | None:
    found = sorted(paths.vocab.rglob(MANIFEST_NAME), key=lambda p: p.stat().st_mtime_ns)
    return read_json(found[-1]) if found else None


def token_sums(table: Path) -> dict[str, TokenSums]:
    """Return the tokens of each dataset in a `corpus.parquet`, one row group in memory."""
    sums: dict[str, TokenSums] = {}
    with pq.ParquetFile(table) as file:
        for batch in file.iter_batches(512, columns=["dataset", "n_prompt", "input_ids"]):
            lengths = pc.list_value_length(batch["input_ids"]).to_pylist()
            names, prompts = batch["dataset"].to_pylist(), batch["n_prompt"].to_pylist()
            for name, length, prompt in zip(names, lengths, prompts, strict=True):
                old = sums.get(name, TokenSums(0, 0, 0))
                sums[name] = TokenSums(
                    old.samples + 1, old.prompt + prompt, old.answer + length - prompt
                )
    return sums


def _target_rows(src: _Sources) -> tuple[tuple[str, str], ...]:
    target = src.config.target
    rows = [("model", target.model), ("revision", target.revision or "the folder as it is")]
    if src.target is not None:
        rows += [
            ("layers", str(src.target.n_layers)),
            ("hidden size", f"{src.target.hidden_size:,}"),
            ("vocabulary", f"{src.target.vocab_size:,}"),
            ("config and weights", src.target.target_hash[:16]),
            ("tokenizer", src.target.tokenizer_hash[:16]),
        ]
    rows += [(f"server {s['url']}", _server_text(s)) for s in src.status.get("servers", [])]
    return tuple(rows)


def _server_text(server: Mapping[str, Any]) -> str:
    return f"{server['model'] or 'unknown model'}, version {server['version'] or 'unknown'}"


def _dataset_facts(src: _Sources, name: str) -> DatasetFacts:
    manifest = src.prepared.get(name)
    live = src.status.get("datasets", {}).get(name, {})
    sums = src.sums.get(name)
    return DatasetFacts(
        name=name,
        mode=src.config.dataset(name).mode.value,
        rows=manifest.n_rows if manifest else 0,
        kept=manifest.n_kept if manifest else 0,
        rejected=sum(manifest.rejected.values()) if manifest else 0,
        samples=live.get("total") or (manifest.n_turns if manifest else 0),
        done=live.get("done", 0),
        failed=sum(live.get(state, 0) for state in ("failed", "rejected", "cancelled")),
        mean_prompt=sums.prompt / sums.samples if sums else _profile_mean(src, name),
        mean_answer=sums.answer / sums.samples if sums else None,
    )


def _profile_mean(src: _Sources, name: str) -> float | None:
    if name not in src.prepared:
        return None
    profile = read_profile(src.paths.datasets / name)
    return profile.total / profile.n if profile.n else None


def _states(src: _Sources, *states: str) -> int:
    datasets = src.status.get("datasets", {}).values()
    return sum(int(d.get(state, 0)) for d in datasets for state in states)


def _phase(name: str, done: int, left: int, time: Span, command: str) -> PhaseFacts:
    state = "not started" if not done else "running" if left else "done"
    return PhaseFacts(name, state, f"{done:,}", f"{left:,}", time, f"`{command}`")


def _phases(src: _Sources) -> tuple[PhaseFacts, ...]:
    prepared, configured = len(src.prepared), len(src.config.datasets)
    answered = _states(src, "generated", "extracting", "extracted")
    open_ = _states(src, "waiting", "queued", "generating", "retry_wait")
    extracted = _states(src, "extracted")
    to_extract = open_ + _states(src, "generated", "extracting")
    eta = src.status.get("extraction", {}).get("eta_s")
    rows = src.corpus.n_rows if src.corpus else 0
    none = Span()
    return (
        _phase("prepare", prepared, configured - prepared, none, "eagled prep"),
        _phase("generate", answered, open_, _generation_span(src), "eagled run"),
        _phase("extract", extracted, to_extract, Span(mid_s=eta), "eagled run"),
        _phase("merge", rows, max(answered - rows, 0), none, "eagled merge"),
        PhaseFacts("verify", "at any time", "", f"{extracted:,}", none, "`eagled verify`"),
        _phase("vocabulary", int(src.vocab is not None), int(src.vocab is None), none,
               "eagled vocab"),
    )  # fmt: skip


def _generation_span(src: _Sources) -> Span:
    """Return the time of the slowest lane, its range from how its throughput varied."""
    lanes = src.status.get("lanes", {}).values()
    timed = [lane for lane in lanes if lane.get("eta_s") is not None]
    if not timed:
        return Span()
    slowest = max(timed, key=lambda lane: lane["eta_s"])
    eta = float(slowest["eta_s"])
    rates = sorted(rate for rate in slowest.get("history", []) if rate)
    if not rates:
        return Span(mid_s=eta)
    mean = sum(rates) / len(rates)
    low, high = rates[int(_LOW * len(rates))], rates[min(int(_HIGH * len(rates)), len(rates) - 1)]
    return Span(low_s=eta * mean / max(high, mean), mid_s=eta, high_s=eta * mean / min(low, mean))


def _token_rows(src: _Sources) -> tuple[tuple[str, str], ...]:
    if src.corpus is None:
        return (("supervised tokens", NOT_MEASURED),)
    manifest = src.corpus.manifest
    open_ = _states(src, "waiting", "queued", "generating", "retry_wait")
    mean = manifest["supervised_tokens"] / src.corpus.n_rows
    return (
        ("corpus", f"{src.corpus.version}, {src.corpus.n_rows:,} samples"),
        ("tokens", f"{manifest['tokens']:,}"),
        ("supervised tokens", f"{manifest['supervised_tokens']:,}"),
        ("supervised tokens a sample", f"{mean:,.0f}"),
        ("supervised tokens when all is done", f"about {mean * (src.corpus.n_rows + open_):,.0f}"),
        ("held out", f"{manifest['holdout_rows']:,} samples"),
        ("answers by finish", ", ".join(f"{k} {v:,}" for k, v in manifest["finish"].items())),
    )


def _byte_facts(src: _Sources) -> ByteFacts:
    hidden = src.target.hidden_size if src.target else 0
    extraction, disk = src.status.get("extraction", {}), src.status.get("disk", {})
    left = _states(src, "waiting", "queued", "generating", "retry_wait", "generated", "extracting")
    samples, tokens = extraction.get("samples", 0), extraction.get("tokens", 0)
    keeps_last = src.config.extract.last != "none"
    return ByteFacts(
        aux_per_token=len(_layers(src)) * hidden * _BF16_BYTES,
        last_per_position=hidden * _BF16_BYTES if keeps_last else 0,
        measured_per_token=extraction.get("bytes_per_token"),
        tokens_done=tokens,
        tokens_left=round(left * tokens / samples) if samples else None,
        projected=disk.get("projected_bytes"),
        free=disk.get("free_bytes"),
        reserve=src.config.disk.reserve_bytes,
    )


def _layers(src: _Sources) -> tuple[int, ...]:
    if src.target is None:
        return src.config.extract.layers
    return plan_layers(src.target.n_layers, src.config.extract.layers)


def _decisions(src: _Sources) -> tuple[tuple[str, str], ...]:
    config = src.config
    sampling = _sampling(config)
    lanes = "; ".join(
        f"{name}: {_up_to(lane_context(lane, None))}, limit {lane.limit or 'of the server'}"
        for name, lane in ordered_lanes(config)
    )
    return (
        ("layers (boundaries)", ", ".join(map(str, _layers(src))) or NOT_MEASURED),
        ("states are stored as", _storage(src)),
        ("extraction", f"{config.extract.backend}, {config.extract.start}"),
        ("temperature", f"{sampling.temperature}"),
        ("top_p, top_k", f"{sampling.top_p}, {sampling.top_k}"),
        ("longest answer", f"{sampling.max_new_tokens:,} tokens"),
        ("answers that are cut", config.generation.on_length),
        ("lanes", lanes),
        ("holdout", f"{config.merge.holdout:.1%} of conversations"),
        ("draft vocabulary", f"{config.vocab.size:,}"),
    )  # fmt: skip


def _storage(src: _Sources) -> str:
    """Return the storage policy that holds, and what it was chosen from."""
    path = src.paths.disk_choice
    policy = current_policy(src.config, path)
    if not path.exists():
        return policy.words()
    choice = read_json(path)
    left, free = human_bytes(choice.get("bytes_left")), human_bytes(choice.get("free_bytes"))
    return (
        f"{policy.words()} (chosen: {choice.get('option')}; {left} were to come, {free} free; "
        f"{choice.get('trade')})"
    )


def _up_to(context: int | None) -> str:
    return f"up to {context:,} tokens" if context else "what the server can hold"


def _sampling(config: Config) -> ResolvedSampling:
    return resolve_sampling(config, "", model_defaults(Path(config.target.model)))


def _risk_facts(src: _Sources, disk: ByteFacts, datasets: tuple[DatasetFacts, ...]) -> RiskFacts:
    finish = dict(src.corpus.manifest["finish"]) if src.corpus else {}
    free = file_system(src.paths.root).free_bytes if disk.free is None else disk.free
    held = src.corpus.manifest["holdout_rows"] if src.corpus else None
    return RiskFacts(
        samples=sum(d.samples for d in datasets),
        done=sum(d.done for d in datasets),
        failed=sum(d.failed for d in datasets),
        rows=sum(d.rows for d in datasets),
        rejected_rows=sum(d.rejected for d in datasets),
        unprepared=tuple(d.name for d in src.config.datasets if d.name not in src.prepared),
        greedy=_sampling(src.config).greedy,
        cut_answers=finish.get("length", 0),
        answers=sum(finish.values()),
        holdout_rows=held,
        disk_short=max((disk.projected or 0) + disk.reserve - free, 0),
        coverage=dict(src.vocab["coverage"]) if src.vocab else {},
        speculative=tuple(
            s["url"] for s in src.status.get("servers", []) if s.get("state") == "refused"
        ),
    )


def _source_rows(src: _Sources) -> tuple[str, ...]:
    rows = [f"dataset {name}: prepared {m.prep_key[:16]}" for name, m in src.prepared.items()]
    if src.corpus is not None:
        train = src.corpus.n_rows - src.corpus.manifest["holdout_rows"]
        rows.append(f"corpus {src.corpus.version}: {train:,} {TRAIN} samples")
    if src.vocab is not None:
        rows.append(f"vocabulary of corpus {src.vocab.get('corpus', 'unknown')}")
    return tuple(rows)
