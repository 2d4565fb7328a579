"""Hugging Face datasets: which files a configuration and split are, at one commit.

The files are then read like local ones, in ranges (`remote.py`): one broken line costs one row, no
column is invented, and Parquet behind a position is reached without reading what stands before.
Imported by the prep process only. Files of other kinds (CSV, Arrow, ...) go through `datasets`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

from eagled.config import DatasetConfig
from eagled.errors import ArtifactError, ConfigError, UnreachableError
from eagled.readers.sources.base import SourceRow, without_nulls
from eagled.readers.sources.remote import RemoteFile

_DATASETS = "datasets/"


def resolve_revision(dataset: DatasetConfig) -> str:
    """Return the commit that the hub has for the dataset's revision.

    Raises:
        UnreachableError: if the hub does not answer.
        ConfigError: if it has no such dataset or revision, or wants a token.
    """
    import huggingface_hub
    from huggingface_hub import errors

    try:
        info = huggingface_hub.HfApi().dataset_info(dataset.source, revision=dataset.revision)
    except errors.GatedRepoError as exc:
        raise ConfigError(_gated(dataset)) from exc
    except errors.RevisionNotFoundError as exc:
        detail = f"the hub has no revision {dataset.revision!r}"
        raise ConfigError(_advice(dataset, detail, exc)) from exc
    except errors.RepositoryNotFoundError as exc:
        detail = "the hub has no such dataset (gone, renamed or private)"
        raise ConfigError(_advice(dataset, detail, exc)) from exc
    except errors.HfHubHTTPError as exc:
        server_fault = exc.response.status_code >= 500  # noqa: PLR2004 - HTTP
        kind = UnreachableError if server_fault else ConfigError
        raise kind(_advice(dataset, "the hub refused it", exc)) from exc
    except Exception as exc:
        # the HTTP library below changes its exception types between releases; whatever it is, the
        # hub was not reached, and the cause is kept
        raise UnreachableError(_advice(dataset, "the hub does not answer", exc)) from exc
    return str(info.sha)


def hub_files(dataset: DatasetConfig, revision: str) -> tuple[RemoteFile, ...]:
    """Return the data files of the dataset's configuration and split, in their order.

    Raises:
        ConfigError: if there is no such configuration, split or file, or a token is wanted.
        UnreachableError: if the hub does not answer.
    """
    from huggingface_hub import errors

    try:
        sizes = _sizes(dataset, revision)
        names = _chosen(dataset, revision, sizes)
    except (ConfigError, UnreachableError):
        raise
    except errors.GatedRepoError as exc:
        raise ConfigError(_gated(dataset)) from exc
    except (ValueError, FileNotFoundError) as exc:
        raise ConfigError(_advice(dataset, "the dataset cannot be opened", exc)) from exc
    except Exception as exc:
        raise UnreachableError(_advice(dataset, "the hub does not answer", exc)) from exc
    return tuple(RemoteFile(name, _url(dataset, revision, name), sizes[name]) for name in names)


def _sizes(dataset: DatasetConfig, revision: str) -> dict[str, int]:
    """Return every file of the repository with its size in bytes."""
    import huggingface_hub
    from huggingface_hub.hf_api import RepoFile

    tree = huggingface_hub.HfApi().list_repo_tree(
        dataset.source, recursive=True, revision=revision, repo_type="dataset"
    )
    return {item.path: item.size for item in tree if isinstance(item, RepoFile)}


def _chosen(dataset: DatasetConfig, revision: str, sizes: dict[str, int]) -> list[str]:
    if not dataset.files:
        return _split_files(dataset, revision)
    found = [name for name in sorted(sizes) if any(fnmatch(name, p) for p in dataset.files)]
    if not found:
        shown = ", ".join(sorted(sizes)[:20])
        patterns = ", ".join(dataset.files)
        raise ConfigError(
            f"dataset {dataset.name!r}: no file of {dataset.source} matches {patterns}; it has "
            f"{shown}"
        )
    return found


def _split_files(dataset: DatasetConfig, revision: str) -> list[str]:
    """Ask `datasets` which files the configuration's split is made of."""
    import datasets

    builder = datasets.load_dataset_builder(dataset.source, name=dataset.config, revision=revision)
    splits = {str(name): list(files) for name, files in (builder.config.data_files or {}).items()}
    if dataset.split not in splits:
        raise ConfigError(
            f"dataset {dataset.name!r}: {dataset.source} has no split {dataset.split!r}; it has "
            f"{', '.join(splits) or 'none that can be read'}"
        )
    return [_inside(str(name)) for name in splits[dataset.split]]


def _inside(address: str) -> str:
    """Return the path inside the repository of `hf://datasets/owner/name@revision/path`."""
    path = PurePosixPath(address.partition("://")[2].removeprefix(_DATASETS))
    return PurePosixPath(*path.parts[2:]).as_posix()


def _url(dataset: DatasetConfig, revision: str, name: str) -> str:
    import huggingface_hub

    return huggingface_hub.hf_hub_url(dataset.source, name, repo_type="dataset", revision=revision)


def read_hub(dataset: DatasetConfig, revision: str, skip: int = 0) -> Iterator[SourceRow]:
    """Yield the rows of a split whose files only `datasets` can read, in their order.

    Raises:
        UnreachableError: if the hub stops answering.
        ConfigError: if there is no such configuration or split.
        ArtifactError: if a file of the dataset cannot be read.
    """
    try:
        for number, row in enumerate(_stream(dataset, revision, skip), skip):
            yield SourceRow(dataset.source, number, without_nulls(row))
    except (ConnectionError, TimeoutError) as exc:
        raise UnreachableError(_advice(dataset, "the hub stopped answering", exc)) from exc
    except (ValueError, FileNotFoundError) as exc:
        raise ConfigError(_advice(dataset, "the dataset cannot be opened", exc)) from exc
    except OSError as exc:
        raise ArtifactError(_advice(dataset, "a file cannot be read", exc)) from exc


def _stream(dataset: DatasetConfig, revision: str, skip: int) -> Iterator[dict[str, Any]]:
    import datasets

    rows = datasets.load_dataset(
        dataset.source,
        name=dataset.config,
        split=dataset.split,
        revision=revision,
        streaming=True,
    )
    return iter(rows.skip(skip) if skip else rows)


def stopped(dataset: DatasetConfig, exc: UnreachableError, row: int) -> UnreachableError:
    """Return the error that says where reading stopped and how it goes on."""
    return UnreachableError(
        f"dataset {dataset.name!r} ({dataset.source}): {exc}. {row} rows were read; what is done "
        "is kept, and the same command goes on there when the hub answers again"
    )


def _gated(dataset: DatasetConfig) -> str:
    return (
        f"dataset {dataset.name!r} ({dataset.source}) is gated: accept its terms on its page, then "
        "set HF_TOKEN to a token of the same account; or download its files and give their folder "
        "as `source`"
    )


def _advice(dataset: DatasetConfig, what: str, exc: Exception) -> str:
    cause = (str(exc).splitlines() or [type(exc).__name__])[0]
    return (
        f"dataset {dataset.name!r} ({dataset.source}): {what}: {cause}; check the id, revision, "
        "configuration and network (a gated dataset needs HF_TOKEN), or download its files and "
        "give their folder as `source`"
    )
