"""Hugging Face dataset ids, streamed through `datasets`; imported by the prep process only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from eagled.config import DatasetConfig
from eagled.errors import ArtifactError, ConfigError, UnreachableError
from eagled.readers.sources.base import SourceRow, without_nulls

_log = logging.getLogger(__name__)


def resolve_revision(dataset: DatasetConfig) -> str:
    """Return the commit that the hub has for the dataset's revision.

    Raises:
        UnreachableError: if the hub does not answer.
        ConfigError: if it has no such dataset or revision, or wants a token.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        info = huggingface_hub.HfApi().dataset_info(dataset.source, revision=dataset.revision)
    except HfHubHTTPError as exc:
        raise ConfigError(_advice(dataset, "the hub refused it", exc)) from exc
    except Exception as exc:
        # the HTTP library below changes its exception types between releases; whatever it is, the
        # hub was not reached, and the cause is kept
        raise UnreachableError(_advice(dataset, "the hub does not answer", exc)) from exc
    return str(info.sha)


def read_hub(dataset: DatasetConfig, revision: str) -> Iterator[SourceRow]:
    """Yield the rows of a split in their order.

    Raises:
        UnreachableError: if the hub stops answering.
        ConfigError: if there is no such configuration or split.
        ArtifactError: if a file of the dataset cannot be read.
    """
    try:
        for number, row in enumerate(_stream(dataset, revision)):
            yield SourceRow(dataset.source, number, without_nulls(row))
    except (ConnectionError, TimeoutError) as exc:
        raise UnreachableError(_advice(dataset, "the hub stopped answering", exc)) from exc
    except (ValueError, FileNotFoundError) as exc:
        raise ConfigError(_advice(dataset, "the dataset cannot be opened", exc)) from exc
    except OSError as exc:
        raise ArtifactError(_advice(dataset, "a file cannot be read", exc)) from exc


def _stream(dataset: DatasetConfig, revision: str) -> Iterator[dict[str, Any]]:
    import datasets

    rows: Iterator[dict[str, Any]] = iter(
        datasets.load_dataset(
            dataset.source,
            name=dataset.config,
            split=dataset.split,
            revision=revision,
            streaming=True,
        )
    )
    return rows


def _advice(dataset: DatasetConfig, what: str, exc: Exception) -> str:
    return (
        f"dataset {dataset.name!r} ({dataset.source}): {what}: {exc}; check the id, revision, "
        "configuration and network (a gated dataset needs HF_TOKEN), or download its files and "
        "give their folder as `source`"
    )
