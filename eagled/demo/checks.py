"""What the demo holds its run against, and the table it ends with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from eagled.artifacts import MANIFEST_NAME, read_json
from eagled.audit import audit
from eagled.paths import StatePaths

_DONE_STATES = ("extracted",)
_GIVEN_UP = ("failed", "rejected", "cancelled")
_LEAST_SAMPLES = 48


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The rows of the final table: dataset, kept rows, samples, states, tokens."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def table(self) -> str:
        """Return the table with aligned columns; the first one is text, the others numbers."""
        cells = [self.head, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.head))]
        return "\n".join(
            "  " + row[0].ljust(widths[0]) + "".join(
                "  " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)
            )
            for row in cells
        )  # fmt: skip


def restart_checks(
    state: StatePaths, acks: Sequence[Mapping[str, Any]], in_flight: int
) -> list[Check]:
    """Hold the restarted daemon's database against what was acknowledged before the kill."""
    found = audit(acks, state.database)
    return [
        Check(
            found.ok,
            f"after SIGKILL with {in_flight} in flight: {len(acks)} acknowledged answers, "
            f"{len(found.lost)} lost, {len(found.doubled)} doubled",
        )
    ]


def final_checks(
    state: StatePaths,
    acks: Sequence[Mapping[str, Any]],
    status: Mapping[str, Any],
    verified: str,
) -> list[Check]:
    """Hold the finished run against its acknowledgements, its counts and its files."""
    corpus = newest(state.corpora)
    found = audit(acks, state.database, corpus=corpus / "corpus.parquet", shards=state.shards)
    datasets = status["datasets"].values()
    done = sum(_count(d, _DONE_STATES) for d in datasets)
    given_up = sum(_count(d, _GIVEN_UP) for d in datasets)
    total = sum(int(d["total"]) for d in datasets)
    rows = pq.ParquetFile(corpus / "corpus.parquet").metadata.num_rows
    return [
        Check(
            found.ok, f"database, corpus and shards against the acknowledgements: {found.line()}"
        ),
        *(Check(ok=False, text=line) for line in (*found.lost, *found.doubled)[:5]),
        Check(total >= _LEAST_SAMPLES, f"{total} samples, at least {_LEAST_SAMPLES}"),
        Check(
            done + given_up == total,
            f"{total} samples = {done} with hidden states + {given_up} given up with a reason",
        ),
        Check(rows == done, f"the corpus has {rows} rows, {done} samples have hidden states"),
        *_prep_checks(state),
        *_lane_checks(status),
        _verify_check(verified),
        _vocab_check(state),
        Check(any(state.plans.glob("train_plan_v*.md")), "the plan is written"),
    ]


def newest(folder: Path) -> Path:
    """Return the last version in a folder of versions."""
    return max(path for path in folder.iterdir() if path.is_dir())


def _count(dataset: Mapping[str, Any], states: Iterable[str]) -> int:
    return sum(int(dataset[state]) for state in states)


def _prep_checks(state: StatePaths) -> list[Check]:
    checks = []
    for folder in sorted(p for p in state.datasets.iterdir() if p.is_dir()):
        manifest = read_json(folder / MANIFEST_NAME)
        left_out = sum(manifest["rejected"].values())
        rows, kept = manifest["rows"], manifest["kept"]
        text = f"{folder.name}: {rows} rows = {kept} kept + {left_out} left out"
        checks.append(Check(rows == kept + left_out, text))
    return checks


def _lane_checks(status: Mapping[str, Any]) -> list[Check]:
    return [
        Check(_count(lane, _DONE_STATES) > 0, f"lane {name}: {_count(lane, _DONE_STATES)} samples")
        for name, lane in status["lanes"].items()
    ]


def _verify_check(verified: str) -> Check:
    report = orjson.loads(verified)
    return Check(bool(report["ok"]), f"every shard re-read: {report['samples']} samples")


def _vocab_check(state: StatePaths) -> Check:
    found = sorted(state.vocab.rglob(MANIFEST_NAME))
    if not found:
        return Check(ok=False, text="no vocabulary was written")
    coverage = read_json(found[-1])["coverage"]
    return Check(bool(coverage), f"vocabulary covers {coverage}")


def summary_of(state: StatePaths, status: Mapping[str, Any]) -> Summary:
    """Return the table of the finished run, token sums from the corpus."""
    corpus = pq.read_table(
        newest(state.corpora) / "corpus.parquet", columns=["dataset", "n_prompt", "input_ids"]
    ).to_pylist()
    rows = []
    for name, dataset in sorted(status["datasets"].items()):
        mine = [row for row in corpus if row["dataset"] == name]
        prompt = sum(row["n_prompt"] for row in mine)
        answer = sum(len(row["input_ids"]) for row in mine) - prompt
        rows.append(
            (
                name, str(dataset["total"]), str(_count(dataset, _DONE_STATES)),
                str(_count(dataset, _GIVEN_UP)), f"{prompt:,}", f"{answer:,}",
            )
        )  # fmt: skip
    head = ("dataset", "samples", "extracted", "given up", "prompt tokens", "answer tokens")
    return Summary(head, tuple(rows))
