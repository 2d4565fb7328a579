"""Datasets of the hub, through its real client: search, card, files, and the viewer's row count.

Per candidate: one call for the card and the list of files, one for the card's text, one for the
viewer where the card has no row count, and a few ranges of one data file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from typing import Any
from urllib.parse import quote

from eagled.config import DatasetConfig
from eagled.discover.categories import Category
from eagled.discover.facts import Found
from eagled.discover.gate import Gate
from eagled.errors import UnreachableError
from eagled.printable import printable
from eagled.readers.sources import Source
from eagled.readers.sources.files import SUFFIXES
from eagled.readers.sources.remote import RemoteFile

_CARD_BYTES = 32 << 10
_BLOCK_BYTES, _PARQUET_BLOCK_BYTES = 1 << 20, 4 << 20
_WAITS_S = (0.2, 1.0)
_NAMED_FILES = 20
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(?:/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
_SPLIT = re.compile(r"(?:^|/)(?P<split>[A-Za-z]\w*?)-\d{5}-of-\d{5}\.")
_KEPT_BACK = re.compile(r"(?:^|[/_.-])(?P<split>test|validation|valid|val|dev|eval)(?=[/_.-])")
_HEADER = re.compile(r"\A---\r?\n.*?\r?\n---\r?\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Card:
    """What the hub says of a dataset; the names are those of `Facts`."""

    revision: str | None = None
    licence: str | None = None
    gated: bool = False
    modified: str | None = None
    downloads: int | None = None
    size_bytes: int | None = None
    rows: int | None = None
    rows_from: str = ""
    config: str | None = None
    split: str | None = None
    n_files: int = 0
    files: tuple[str, ...] = ()
    text: str = ""
    notes: tuple[str, ...] = ()


class HubSource:
    """The hub behind a gate.

    Args:
        gate: carries every request.
        viewer: address of the dataset viewer's API; None asks nobody.
    """

    def __init__(self, gate: Gate, viewer: str | None = None) -> None:
        import huggingface_hub

        self._gate = gate
        self._viewer = viewer
        self._api = huggingface_hub.HfApi(endpoint=gate.endpoint)

    @property
    def identity(self) -> Sequence[object]:
        """What names this hub in the cache."""
        return ["hub", self._gate.endpoint]

    def search(self, category: Category, limit: int) -> list[Found]:
        """Return what the category's queries find, most downloaded first, and its own datasets."""
        names = list(category.datasets)
        for query in category.queries:
            names += self._gate.ask(partial(self._query, query, category.filters, limit))
        return [Found(name) for name in dict.fromkeys(names) if _ID.fullmatch(name)]

    def _query(self, query: str, filters: Sequence[str], limit: int) -> list[str]:
        items = self._api.list_datasets(
            search=query, sort="downloads", limit=limit, filter=list(filters) or None
        )
        return [str(item.id) for item in items]

    def open(self, found: Found) -> tuple[Card, Source | None]:
        """Return the card and the rows of one split; None if no file can be read."""
        info = self._gate.ask(
            lambda: self._api.dataset_info(
                found.source, files_metadata=True, timeout=self._gate.timeout_s
            )
        )
        sizes = {str(s.rfilename): int(s.size or 0) for s in info.siblings or ()}
        data: Mapping[str, Any] = vars(info.card_data) if info.card_data is not None else {}
        config, split, names, matched = _choose_files(data, sizes, found)
        files = tuple(self._file(found.source, info.sha, n, sizes[n]) for n in names)
        notes = [] if matched else ["the card's configurations match no file"]
        if config is not None:
            notes.append(f"one of several configurations: {printable(config, 60)}")
        rows, rows_from = self._row_count(found.source, data, (config, split), files, notes)
        card = Card(
            revision=str(info.sha) if info.sha else None,
            licence=_licence(data, info.tags or ()),
            gated=bool(info.gated),
            modified=info.last_modified.date().isoformat() if info.last_modified else None,
            downloads=info.downloads,
            size_bytes=sum(sizes[name] for name in names) or None,
            rows=rows,
            rows_from=rows_from,
            config=config,
            split=split,
            n_files=len(names),
            files=() if matched else tuple(names[:_NAMED_FILES]),
            text=self._text(found.source, info.sha, sizes, notes),
            notes=tuple(notes),
        )
        if not files:
            return card, None
        dataset = DatasetConfig(name="probe", source=found.source)
        return card, Source(dataset, ((files[0].name, files[0]),))

    def _file(self, source: str, sha: str | None, name: str, size: int) -> RemoteFile:
        # not `hf_hub_url`: it knows no hub but the one of HF_ENDPOINT
        url = f"{self._gate.endpoint}/datasets/{source}/resolve/{sha or 'main'}/{quote(name)}"
        block = _PARQUET_BLOCK_BYTES if name.endswith(".parquet") else _BLOCK_BYTES
        return RemoteFile(name, url, size, block, _WAITS_S, self._gate.deadline_check())

    def _text(
        self, source: str, sha: str | None, sizes: Mapping[str, int], notes: list[str]
    ) -> str:
        """Return the beginning of the card below its header; nothing if it cannot be read."""
        size = min(sizes.get("README.md", 0), _CARD_BYTES)
        if not size:
            return ""
        file = self._file(source, sha, "README.md", sizes["README.md"])
        file = RemoteFile(file.name, file.url, file.size, size, file.waits_s, file.check)
        try:
            with file.open() as stream:
                text = stream.read(size).decode("utf-8", "replace")
        except UnreachableError as exc:
            self._gate.check()
            notes.append(f"the card cannot be read: {printable(exc, 80)}")
            return ""
        return _HEADER.sub("", text)

    def _row_count(
        self,
        source: str,
        data: Mapping[str, Any],
        part: tuple[str | None, str | None],
        files: Sequence[RemoteFile],
        notes: list[str],
    ) -> tuple[int | None, str]:
        """Return the rows and who says so: the card, the viewer, or the Parquet files."""
        if (counted := _card_rows(data.get("dataset_info"), *part)) is not None:
            return counted, "card"
        for ask, by in ((self._viewer_rows, "viewer"), (self._parquet_rows, "files")):
            try:
                rows = ask(source, part, files)
            except Exception as exc:  # noqa: BLE001 - who cannot say costs the number, never the candidate
                self._gate.check()
                notes.append(f"no row count from {by}: {printable(exc, 80)}")
                continue
            if rows is not None:
                return rows, by
        return None, ""

    def _viewer_rows(
        self, source: str, part: tuple[str | None, str | None], _files: Sequence[RemoteFile]
    ) -> int | None:
        if self._viewer is None:
            return None
        from huggingface_hub import get_session
        from huggingface_hub.utils._http import hf_raise_for_status  # where type checkers see it

        reply = get_session().get(f"{self._viewer}/size", params={"dataset": source})
        hf_raise_for_status(reply)
        config, split = part
        rows = [
            int(item["num_rows"])
            for item in reply.json()["size"]["splits"]
            if split in (None, item["split"]) and config in (None, item["config"])
        ]
        return sum(rows) if rows else None

    def _parquet_rows(
        self, _source: str, _part: tuple[str | None, str | None], files: Sequence[RemoteFile]
    ) -> int | None:
        """Return what the footers say; that of the first file stands for many."""
        if not files or not files[0].name.endswith(".parquet"):
            return None
        import pyarrow.parquet as pq

        with files[0].open() as stream, pq.ParquetFile(stream) as parquet:
            own = int(parquet.metadata.num_rows)
        return round(own * sum(file.size for file in files) / max(1, files[0].size))


def _licence(data: Mapping[str, Any], tags: Sequence[str]) -> str | None:
    value = data.get("license")
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    tag = next((t.partition(":")[2] for t in tags if t.startswith("license:")), None)
    return printable(value, 60) if value else tag and printable(tag, 60)


def _choose_files(
    data: Mapping[str, Any], sizes: Mapping[str, int], found: Found
) -> tuple[str | None, str | None, list[str], bool]:
    """Return configuration, split, its files that eagled reads, and whether the card is right."""
    readable = sorted(name for name in sizes if name.endswith(SUFFIXES) and _is_rows(name))
    listed = data.get("configs")
    configs = [c for c in listed if isinstance(c, dict)] if isinstance(listed, list) else []
    if configs:
        wanted = [c for c in configs if c.get("config_name") == found.config]
        config = (wanted or [c for c in configs if c.get("default")] or configs)[0]
        splits = _splits(config.get("data_files"))
        split = _train(splits, found.split)
        names = [n for n in readable if any(fnmatch(n, p) for p in splits.get(split or "", ()))]
        name = config.get("config_name")
        if names:
            return (str(name) if len(configs) > 1 else None), split, names, True
    named: dict[str, list[str]] = {}
    for name in readable:
        place = _SPLIT.search(name) or _KEPT_BACK.search(name)
        named.setdefault(place["split"] if place else "train", []).append(name)
    split = _train(named, found.split)
    return None, split, named.get(split or "", []), not configs or not readable


def _is_rows(name: str) -> bool:
    bare = name.rsplit("/", 1)[-1]
    return not name.startswith(".") and bare not in ("dataset_infos.json", "package.json")


def _splits(files: object) -> dict[str, list[str]]:
    if isinstance(files, str):
        return {"train": [files]}
    out: dict[str, list[str]] = {}
    for item in files if isinstance(files, list) else ():
        if isinstance(item, str):
            out.setdefault("train", []).append(item)
        elif isinstance(item, dict):
            path = item.get("path")
            paths = [path] if isinstance(path, str) else path if isinstance(path, list) else []
            out.setdefault(str(item.get("split", "train")), []).extend(map(str, paths))
    return out


def _train(splits: Mapping[str, object], wanted: str | None) -> str | None:
    names = list(splits)
    order = [n for n in names if n == wanted] + [n for n in names if n == "train"]
    order += [n for n in names if n.startswith("train")] + names
    return order[0] if order else None


def _card_rows(value: object, config: str | None, split: str | None) -> int | None:
    """Return the row count of the card's header."""
    infos = [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, dict)]
    for info in infos:
        if config is not None and info.get("config_name") not in (None, config):
            continue
        for item in info.get("splits") or ():
            known = isinstance(item, dict) and isinstance(item.get("num_examples"), int)
            if known and split in (None, item.get("name")):
                return int(item["num_examples"])
    return None
