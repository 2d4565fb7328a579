"""Hub datasets, read through the real client from a hub on this machine."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagled.config import DatasetConfig
from eagled.errors import ConfigError, UnreachableError
from eagled.inspect import open_inspection
from eagled.prepared import read_manifest
from eagled.readers.sources import open_source, remote
from eagled.types import Mode
from eagled.workers.prepare import prepare_dataset
from tests.hub_kit import FakeHub, FakeRepo, fake_hub
from tests.prep_kit import toy_config, toy_renderer

N_ROWS = 600
ROWS: list[dict[str, Any]] = [
    {"prompt_id": str(i), "messages": [{"role": "user", "content": f"question {i} " + "x" * 2000}]}
    for i in range(N_ROWS)
]
CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: train_sft
    path: data/train_sft-*
---
"""


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=50, compression="none")
    return out.getvalue()


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """Run a hub and point the client libraries of this process at it."""
    import datasets.config
    from huggingface_hub import constants

    half = N_ROWS // 2
    repos = {
        "owner/shards": FakeRepo(
            {
                "README.md": CARD,
                "data/train_sft-00000-of-00002.parquet": _parquet(ROWS[:half]),
                "data/train_sft-00001-of-00002.parquet": _parquet(ROWS[half:]),
            }
        ),
        "owner/lines": FakeRepo({"train.jsonl": _lines(ROWS), "notes.txt": b"x"}),
        "owner/table": FakeRepo({"train.csv": b"instruction,response\nq,a\n"}),
        "crownelius/KimiK2.5-2000x": FakeRepo({"data.jsonl": _lines(ROWS)}),
    }
    with fake_hub(repos) as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            running.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", running.url)
        monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))
        monkeypatch.setattr(remote, "WAITS_S", (0.0, 0.0))
        monkeypatch.setattr(remote, "BLOCK_BYTES", 1 << 16)
        yield running


def _dataset(source: str, **settings: Any) -> DatasetConfig:
    return DatasetConfig(name="d", source=source, **settings)


def _ids(rows: Iterator[Any]) -> list[str]:
    return [row.value["prompt_id"] for row in rows]


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("owner/shards", {"split": "train_sft"}),
        ("owner/shards", {"files": ("data/*.parquet",)}),
        ("owner/lines", {}),
        ("owner/lines", {"files": ("train.jsonl",)}),
    ],
)
def test_rows_come_in_order_from_any_place(
    hub: FakeHub, source: str, settings: dict[str, Any]
) -> None:
    """All rows of all files at the pinned commit; behind a position, exactly the rest."""
    opened = open_source(_dataset(source, **settings))

    assert "a" * 40 == opened.identity["revision"]
    assert [str(i) for i in range(N_ROWS)] == _ids(opened.rows())
    for skip in (1, 49, 50, 299, 300, 301, 599, 600, 700):
        assert [str(i) for i in range(skip, N_ROWS)] == _ids(opened.rows(skip))
    files = [path for method, path in hub.asked if method == "GET" and "/resolve/" in path]
    assert all(f"/resolve/{'a' * 40}/" in path for path in files)


def test_the_first_rows_cost_one_block_and_a_far_position_little(hub: FakeHub) -> None:
    """A stream is read as it is used, and Parquet before a position is not read at all."""
    lines, shards = _dataset("owner/lines"), _dataset("owner/shards", split="train_sft")
    next(open_source(lines).rows())
    size = len(hub.repos["owner/lines"].files["train.jsonl"])

    assert hub.served < size / 4
    opened = open_source(shards)
    hub.served = 0
    assert ["599"] == _ids(opened.rows(599))
    total = sum(map(len, hub.repos["owner/shards"].files.values()))
    assert hub.served < total / 2


@pytest.mark.parametrize(
    ("source", "split"), [("owner/lines", "train"), ("owner/shards", "train_sft")]
)
def test_a_hub_that_stops_half_way_is_gone_on_with(hub: FakeHub, source: str, split: str) -> None:
    """The rows so far are exact, the message counts them, and the rest comes from there."""
    opened = open_source(_dataset(source, split=split))
    hub.budget = 500_000
    got: list[Any] = []
    with pytest.raises(UnreachableError, match="the same command goes on there") as caught:
        got.extend(opened.rows())

    n = len(got)
    assert 0 < n < N_ROWS
    assert f"{n} rows were read" in str(caught.value)
    hub.budget = None
    assert [str(i) for i in range(N_ROWS)] == _ids(iter(got)) + _ids(opened.rows(n))


@pytest.mark.parametrize(
    ("source", "split"), [("owner/lines", "train"), ("owner/shards", "train_sft")]
)
def test_prep_goes_on_where_the_hub_stopped(
    hub: FakeHub, tmp_path: Path, source: str, split: str
) -> None:
    """A second run gives the bytes of a run that nothing stopped, at the same commit."""
    settings = {"source": source, "split": split}
    stopped = toy_config(tmp_path / "stopped", source, dataset=settings)
    whole = toy_config(tmp_path / "whole", source, dataset=settings)
    hub.budget = 900_000
    with pytest.raises(UnreachableError, match="the same command goes on there"):
        prepare_dataset(stopped, stopped.datasets[0], renderer=toy_renderer())
    hub.budget = None
    done = prepare_dataset(stopped, stopped.datasets[0], renderer=toy_renderer())
    reference = prepare_dataset(whole, whole.datasets[0], renderer=toy_renderer())
    names = sorted(path.name for path in reference.folder.iterdir())

    assert (N_ROWS, N_ROWS) == (done.rows, done.kept)
    assert names == sorted(path.name for path in done.folder.iterdir())
    for name in names:
        assert (done.folder / name).read_bytes() == (reference.folder / name).read_bytes(), name
    assert "a" * 40 == read_manifest(done.folder).inputs["source"]["revision"]


def test_a_broken_connection_is_mended(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that ends early once is asked for again at its byte; no row is lost or doubled."""
    opened = open_source(_dataset("owner/lines"))
    hub.budget = 100_000

    def recover(_seconds: float) -> None:
        hub.budget = None

    monkeypatch.setattr(remote, "WAITS_S", (0.5,))
    monkeypatch.setattr(remote, "_sleep", recover)

    assert [str(i) for i in range(N_ROWS)] == _ids(opened.rows())


def test_a_restarting_hub_is_waited_for(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 between two blocks is no end."""
    opened = open_source(_dataset("owner/lines"))
    rows = opened.rows()
    first = next(rows)
    hub.down = True
    monkeypatch.setattr(remote, "WAITS_S", (0.5,))
    monkeypatch.setattr(remote, "_sleep", lambda _seconds: setattr(hub, "down", False))

    assert [str(i) for i in range(N_ROWS)] == _ids(iter([first])) + _ids(rows)


def test_a_dataset_that_vanishes_while_it_is_read(hub: FakeHub) -> None:
    """A file that is gone is not waited for; the message names it."""
    rows = open_source(_dataset("owner/lines")).rows()
    next(rows)
    hub.repos["owner/lines"].gone = True

    with pytest.raises(UnreachableError, match=r"train\.jsonl is gone \(HTTP 404\)"):
        list(rows)


def test_a_server_that_ignores_ranges_is_refused(hub: FakeHub) -> None:
    """The whole file instead of a part would be read as the wrong bytes, and fill the memory."""
    opened = open_source(_dataset("owner/lines"))
    hub.ignore_ranges = True
    with pytest.raises(UnreachableError, match="instead of a part"):
        list(opened.rows())


def test_a_part_that_is_shorter_than_asked_is_no_part(hub: FakeHub) -> None:
    """A reply that is whole in itself but holds fewer bytes is never taken for the file's end."""
    opened = open_source(_dataset("owner/lines"))
    hub.short_parts = True
    with pytest.raises(UnreachableError, match=r"32768 bytes instead of 65536"):
        list(opened.rows())


def test_gated_and_absent_datasets_say_what_to_do(hub: FakeHub) -> None:
    """A gate names the token, an absent dataset or revision itself; none of them is retried."""
    hub.repos["owner/lines"].gated = True
    with pytest.raises(ConfigError, match=r"owner/lines\) is gated.*HF_TOKEN"):
        open_source(_dataset("owner/lines"))
    with pytest.raises(ConfigError, match=r"owner/none.*no such dataset.*gone, renamed or private"):
        open_source(_dataset("owner/none"))
    with pytest.raises(ConfigError, match="no revision 'dead'"):
        open_source(_dataset("owner/shards", revision="dead"))


@pytest.mark.usefixtures("hub")
def test_an_unknown_split_or_file_names_those_there_are() -> None:
    """The way out stands in the message."""
    with pytest.raises(ConfigError, match="no split 'train'; it has train_sft"):
        open_source(_dataset("owner/shards"))
    with pytest.raises(ConfigError, match=r"matches \*\.zip; it has notes\.txt, train\.jsonl"):
        open_source(_dataset("owner/lines", files=("*.zip",)))
    with pytest.raises(ConfigError, match=r"no file matching notes\.txt that can be read"):
        open_source(_dataset("owner/lines", files=("notes.txt",)))


@pytest.mark.usefixtures("hub")
def test_other_kinds_of_files_go_through_datasets() -> None:
    """CSV and the like are streamed by the library."""
    opened = open_source(_dataset("owner/table"))

    assert () == opened.files
    assert [{"instruction": "q", "response": "a"}] == [row.value for row in opened.rows()]
    assert [] == list(opened.rows(1))


@pytest.mark.usefixtures("hub")
def test_a_hub_id_settles_the_format() -> None:
    """Columns that many sets share are told apart by the dataset's name."""
    inspection = open_inspection("crownelius/KimiK2.5-2000x")

    assert inspection.format is not None
    assert ("kimi-k25-2000x", Mode.NATIVE) == (inspection.format.name, inspection.mode)
