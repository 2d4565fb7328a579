"""Give states to other trainers in their own files: SpecForge and speculators.

Guarantee: the folder appears whole or not at all, with `export.json` beside the data that says what
was given and what could not be. A sample of T tokens becomes one of T - 1: its last token has no
state. Final states that the shards do not keep (positions without a supervised target) are zeros
there, and masked in both trainers. Price: every byte is written decoded, one file a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from eagled.artifacts import write_json
from eagled.errors import ArtifactError
from eagled.shards.format import ShardManifest
from eagled.shards.reader import Sample, ShardDataset
from eagled.workers.export_folder import EXPORT_FORMAT, NOTE_NAME, ExportResult, export_folder

_SPECFORGE_GROUP = 2000  # files a folder, as SpecForge's own tool writes them
_NORM_NAMES = ("model.norm.weight", "language_model.model.norm.weight", "norm.weight")
_LEAST_WEIGHT = 1e-3  # a norm's weight below it cannot be divided out again
Progress = Callable[[int, int], None]  # samples done, samples in all


def export_specforge(
    dataset: ShardDataset, out: Path, *, progress: Progress | None = None
) -> ExportResult:
    """Write SpecForge's offline feature files: a torch pickle a sample.

    Raises:
        ArtifactError: if the shards keep no final states.
    """
    manifest = _with_last(dataset)
    ids = [k - 1 for k in manifest.layers]
    notes = (
        f"layers by output, as SpecForge counts: {ids}",
        "the last token of each sample is cut: it has no state",
        _last_note(manifest),
    )
    tokens = 0
    with export_folder(out) as work:
        for i in range(len(dataset)):
            group = i // _SPECFORGE_GROUP * _SPECFORGE_GROUP
            folder = work / f"rows_{group}-{group + _SPECFORGE_GROUP}"
            folder.mkdir(exist_ok=True)
            row = _row(dataset[i], manifest.hidden_size)
            torch.save(
                {
                    "input_ids": row.ids,
                    "loss_mask": row.mask,
                    "aux_hidden_state": row.aux[None],  # [1, T, L*D]
                    "hidden_state": row.last[None],  # [1, T, D], after the final norm
                },
                folder / f"data_{i}.ckpt",
            )
            tokens += len(row.ids)
            if progress:
                progress(i + 1, len(dataset))
        _write_note(work, "specforge", dataset, notes)
    return ExportResult(out, len(dataset), tokens, notes)


def export_speculators(
    dataset: ShardDataset, out: Path, target: Path | None, *, progress: Progress | None = None
) -> ExportResult:
    """Write what speculators' offline training reads: an Arrow dataset and a file a sample.

    speculators applies the target's final norm to the last layer's states; ours have it already.
    With the norm's weight (from `target`) it is divided out: the norm of the quotient is the state
    again, which is all that training sees, but the quotient is not the true residual stream.

    Raises:
        ArtifactError: if the shards keep no final states.
    """
    manifest = _with_last(dataset)
    weight = norm_weight(target, manifest.hidden_size) if target is not None else None
    notes = (
        f"layers by boundary: {list(manifest.layers)}",
        "the last token of each sample is cut: it has no state",
        _last_note(manifest),
        _norm_note(weight),
    )
    tokens = 0
    with export_folder(out) as work:
        (work / "hidden_states").mkdir()
        columns: dict[str, list[Any]] = {"input_ids": [], "loss_mask": [], "seq_len": []}
        for i in range(len(dataset)):
            row = _row(dataset[i], manifest.hidden_size)
            last = row.last if weight is None else (row.last.float() / weight).to(row.last.dtype)
            states = torch.cat([row.aux, last], dim=1)  # [T, (L+1)*D]
            states = states.view(len(row.ids), -1, manifest.hidden_size)
            save_file(
                {"hidden_states": states.contiguous(), "token_ids": row.ids},
                work / "hidden_states" / f"hs_{i}.safetensors",
            )
            columns["input_ids"].append(row.ids.tolist())
            columns["loss_mask"].append(row.mask.tolist())
            columns["seq_len"].append(len(row.ids))
            tokens += len(row.ids)
            if progress:
                progress(i + 1, len(dataset))
        _save_arrow(work, columns)
        _write_note(work, "speculators", dataset, notes)
    return ExportResult(out, len(dataset), tokens, notes)


def norm_weight(target: Path, hidden_size: int) -> torch.Tensor | None:
    """Return the weight f32 [D] of the target's final norm, or None if it cannot be divided out."""
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found = next((name for name in _NORM_NAMES if name in file.keys()), None)  # noqa: SIM118 - not a mapping
            if found is None:
                continue
            weight: torch.Tensor = file.get_tensor(found).float()
            usable = weight.shape == (hidden_size,) and bool((weight.abs() > _LEAST_WEIGHT).all())
            return weight if usable else None
    return None


@dataclass(frozen=True, slots=True)
class _Row:
    """A sample of T' = T - 1 tokens: ids and mask i64 [T'], aux [T', L*D], last [T', D]."""

    ids: torch.Tensor
    mask: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor


def _row(sample: Sample, hidden_size: int) -> _Row:
    n = len(sample["input_ids"]) - 1
    last = torch.zeros(n, hidden_size, dtype=torch.bfloat16)
    last[sample["last_positions"]] = sample["last"]
    return _Row(
        sample["input_ids"][:n].clone(), sample["loss_mask"][:n].long(), sample["aux"], last
    )


def _with_last(dataset: ShardDataset) -> ShardManifest:
    manifest = dataset.manifest
    if manifest.last == "none":
        raise ArtifactError(
            "these shards keep no final states (extract.last = none), which the trainer needs"
        )
    return manifest


def _last_note(manifest: ShardManifest) -> str:
    if manifest.last == "all":
        return "final states of all positions, after the target's final norm"
    return (
        "final states only where the next token is supervised; zeros elsewhere, where the mask is 0"
    )


def _norm_note(weight: torch.Tensor | None) -> str:
    if weight is None:
        return (
            "the last layer's states are AFTER the final norm, which speculators applies again: "
            "set model.verifier_norm = torch.nn.Identity() in a training script of your own"
        )
    return (
        "the final norm's weight is divided out of the last layer's states, so that the norm that "
        "speculators applies gives them back; they are not the true states before the norm"
    )


def _save_arrow(work: Path, columns: dict[str, list[Any]]) -> None:
    import datasets

    made = datasets.Dataset.from_dict(columns)
    made.set_format("torch")
    with _quiet_datasets():
        made.save_to_disk(str(work))


@contextmanager
def _quiet_datasets() -> Iterator[None]:
    import datasets

    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


def _write_note(work: Path, kind: str, dataset: ShardDataset, notes: tuple[str, ...]) -> None:
    value = {
        "format": EXPORT_FORMAT,
        "to": kind,
        "states": dataset.manifest.to_dict(),
        "uids": list(dataset.uids),
        "notes": list(notes),
    }
    write_json(work / NOTE_NAME, value)
