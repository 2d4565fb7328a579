"""The shard folder is compared with the database from headers and sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled.errors import ArtifactError
from eagled.shards.container import read_container
from eagled.shards.scan import remove_leftovers, scan_shards
from eagled.types import ShardRecord
from tests.faults import fault_file, fault_row
from tests.unit.shards.helpers import sample, write_shard

CAUSES = {
    "cut_data": "cut: 760 bytes needed, 755 there",
    "cut_header": "cut inside the header",
    "empty": "the file is empty",
    "trailing": "2 bytes follow the last tensor",
    "huge_header": "the header claims",
    "zero_header": "zero bytes only",
}

OVERLAPPING = (
    b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},'
    b'"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}'
)


def record(name: str, size: int) -> ShardRecord:
    """Return what the database would hold for a file of this size."""
    return ShardRecord(name, "0" * 64, size, 1, 10, "m")


@pytest.mark.fault("F73")
def test_torn_files_are_found_from_header_and_size(tmp_path: Path) -> None:
    """Only the whole file counts; each torn one is named with its cause."""
    names = [Path(f).name for f in fault_row("F73")["files"]]
    for name in names:
        (tmp_path / name).write_bytes(fault_file(f"disk/{name}").read_bytes())
    whole = fault_file("disk/ok.safetensors").stat().st_size

    report = scan_shards(tmp_path, {n: record(n, whole) for n in names})

    assert report.good == ("ok.safetensors",)
    assert report.bytes_good == whole
    causes = {b.name.removesuffix(".safetensors"): b.cause for b in report.damaged}
    assert set(causes) == set(CAUSES)
    for stem, words in CAUSES.items():
        assert words in causes[stem]
        assert f"{stem}.safetensors" in causes[stem]
    assert all(b.known for b in report.damaged)


@pytest.mark.fault("F73")
def test_torn_headers_are_not_read_into_memory(tmp_path: Path) -> None:
    """A header that claims gigabytes is refused from its first eight bytes."""
    path = tmp_path / "x.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")

    with pytest.raises(ArtifactError, match="the header claims 4611686018427387904 bytes"):
        read_container(path)


def test_unknown_known_gone_and_leftover_files(tmp_path: Path) -> None:
    """Uncommitted whole files are reported, absent ones are damage, leftovers are removed."""
    known, unknown = write_shard(tmp_path, [sample(1)]), write_shard(tmp_path, [sample(2)])
    (tmp_path / "open-extract.1-0.aux.tmp").write_bytes(b"x")
    records = {known.path.name: known.record, "gone.safetensors": record("gone.safetensors", 5)}

    report = scan_shards(tmp_path, records)

    assert report.good == (known.path.name,)
    assert report.unknown == (unknown.path.name,)
    assert [(b.name, b.known) for b in report.damaged] == [("gone.safetensors", True)]
    assert "gone" in report.damaged[0].cause
    assert report.removed_tmp == ("open-extract.1-0.aux.tmp",)
    assert unknown.path.exists()


def test_size_other_than_committed(tmp_path: Path) -> None:
    """A whole file of another size than committed is damage."""
    shard = write_shard(tmp_path, [sample(1)])
    name = shard.path.name

    report = scan_shards(tmp_path, {name: record(name, shard.record.file_bytes + 8)})

    assert (report.good, len(report.damaged)) == ((), 1)
    assert "were committed" in report.damaged[0].cause


def test_missing_folder_is_an_empty_one(tmp_path: Path) -> None:
    """Before the first shard there is no folder, and nothing to complain about."""
    assert scan_shards(tmp_path / "none", {}).good == ()


def test_a_worker_removes_only_its_own_leftovers(tmp_path: Path) -> None:
    """Leftovers of another writer may still be open."""
    for name in ("open-extract.1-0.aux.tmp", "open-extract-2.1-0.aux.tmp"):
        (tmp_path / name).touch()

    assert remove_leftovers(tmp_path, "extract") == ("open-extract.1-0.aux.tmp",)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (OVERLAPPING, "overlaps"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}', "leaves a gap"),
        (b'{"a":{"dtype":"Q9","shape":[3],"data_offsets":[0,3]}}', "not known"),
        (b'{"a":{"dtype":"I64","shape":[3],"data_offsets":[0,3]}}', "needs 24 bytes"),
        (b'{"a":{"dtype":"U8","shape":[-3],"data_offsets":[0,3]}}', "negative"),
        (b'{"a":{"dtype":"U8","shape":[true],"data_offsets":[0,3]}}', "negative or non-integer"),
        (b'{"a":[1,2,3]}', "lacks dtype"),
        (b"[1,2,3]", "not a JSON object"),
        (b'{"__metadata__":{"n":1}}', "not a map of strings"),
    ],
)
def test_forged_headers(tmp_path: Path, header: bytes, words: str) -> None:
    """Numbers in a header that contradict each other or the file are refused."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"abc")

    with pytest.raises(ArtifactError, match=words):
        read_container(path)
