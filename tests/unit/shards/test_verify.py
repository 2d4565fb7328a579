"""Verification reads everything and names file and sample of what does not hold."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from eagled.artifacts import sha256_file
from eagled.shards.accept import zero_rows
from eagled.shards.container import map_arrays, read_container
from eagled.shards.format import StatesSample, read_shard_header
from eagled.shards.verify import Member, verify_shards
from eagled.types import ShardRecord
from tests.faults import fault_file, fault_row
from tests.unit.shards.helpers import manifest, sample, write_shard


def problems(folder: Path, **arguments: Any) -> list[tuple[str, str]]:
    """Return (uid, problem) of every finding."""
    report = verify_shards(folder, **arguments)
    return [(f.uid, f.problem) for f in report.findings]


def altered(number: int, **changes: Any) -> StatesSample:
    """Return a sample with fields replaced."""
    return dataclasses.replace(sample(number), **changes)


def source(*samples: StatesSample) -> Any:
    """Return the `ids_of` of a database that holds these samples, 3 prompt tokens each."""
    known = {s.uid: (s.input_ids, 3) for s in samples}
    return known.get


def test_good_shards_have_no_findings(tmp_path: Path) -> None:
    """Two good files: everything is counted, nothing found, and progress is told."""
    shards = [write_shard(tmp_path, [sample(1), sample(2)]), write_shard(tmp_path, [sample(3)])]
    seen: list[tuple[int, int]] = []

    report = verify_shards(
        tmp_path,
        {s.path.name: s.record for s in shards},
        manifest=manifest(),
        ids_of=source(sample(1), sample(2), sample(3)),
        progress=lambda _name, done, total: seen.append((done, total)),
    )

    assert report.ok, report.findings
    assert (report.files, report.samples, report.tokens) == (2, 3, 21)
    assert report.bytes_read == sum(s.record.file_bytes for s in shards)
    assert seen == [(0, 2), (1, 2)]


@pytest.mark.fault("F74")
def test_hole_is_found_by_checksum_and_by_zero_rows(tmp_path: Path) -> None:
    """A tail of zeros fits header and size; the checksum finds it, and so does the row check."""
    name = "ok.safetensors"
    (tmp_path / name).write_bytes(fault_file("disk/zero_tail.safetensors").read_bytes())
    good = fault_file("disk/ok.safetensors")
    record = ShardRecord(name, sha256_file(good), good.stat().st_size, 1, 10, "m")

    found = problems(tmp_path, expected={name: record})

    assert "SHA-256" in found[0][1]
    rows = map_arrays(read_container(tmp_path / name))["hidden_states"]
    assert zero_rows(rows).size > 0
    assert zero_rows(map_arrays(read_container(good))["hidden_states"]).size == 0


@pytest.mark.fault("F74")
def test_hole_in_a_shard_without_a_record(tmp_path: Path) -> None:
    """The row check alone finds a hole in `aux` and names the sample."""
    shard = write_shard(tmp_path, [sample(1), sample(2)])
    info = read_shard_header(shard.path).container.tensors["aux"]
    raw = bytearray(shard.path.read_bytes())
    raw[info.end - 96 : info.end] = bytes(96)
    shard.path.write_bytes(raw)

    assert problems(tmp_path) == [(f"{2:032x}", "aux: row 4 is all zero (2 such rows): a hole")]


def test_flipped_bit_is_found_by_the_checksum(tmp_path: Path) -> None:
    """One bit of one state that still is a finite number is found."""
    shard = write_shard(tmp_path, [sample(1)])
    raw = bytearray(shard.path.read_bytes())
    raw[read_shard_header(shard.path).container.tensors["aux"].start] ^= 1
    shard.path.write_bytes(raw)

    found = problems(tmp_path, expected={shard.path.name: shard.record})
    assert [p[:7] for _, p in found] == ["SHA-256"]


def test_gone_and_unknown_files(tmp_path: Path) -> None:
    """A committed file that is gone and a file nobody committed are both findings."""
    shard = write_shard(tmp_path, [sample(1)])
    gone = dataclasses.replace(shard.record, name="gone.safetensors")

    report = verify_shards(tmp_path, {"gone.safetensors": gone})

    assert {f.file: f.problem for f in report.findings} == {
        "gone.safetensors": "the file is gone",
        shard.path.name: "the database does not know this file",
    }
    assert report.bad_files == tuple(sorted(["gone.safetensors", shard.path.name]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_ids": np.full(7, 300, np.int32)}, "7 ids are outside 0..299"),
        ({"loss_mask": np.full(7, 2, np.uint8)}, "values other than 0 and 1"),
        ({"loss_mask": np.zeros(7, np.uint8)}, "nothing in it is supervised"),
        ({"last_positions": np.asarray([0, 1, 2, 3], np.int32)}, "do not follow the policy"),
        ({"aux": np.full((6, 24), 0x7F80, np.uint16)}, "aux: row 0 is not finite (6 such rows)"),
        ({"last": np.full((4, 8), 0x7FC0, np.uint16)}, "last: row 0 is not finite"),
        ({"last": np.zeros((4, 8), np.uint16)}, "last: row 0 is all zero"),
    ],
)
def test_content_that_does_not_hold(
    tmp_path: Path, changes: dict[str, npt.NDArray[Any]], words: str
) -> None:
    """Each rule about a sample's content is checked, and the sample is named."""
    write_shard(tmp_path, [sample(2), altered(1, **changes)])

    found = problems(tmp_path)
    assert {uid for uid, _ in found} == {f"{1:032x}"}
    assert any(words in problem for _, problem in found), found


def test_source_disagrees(tmp_path: Path) -> None:
    """Other ids, another prompt length or an unknown sample in the source are findings."""
    write_shard(tmp_path, [sample(1), sample(2), sample(3)])
    known = {sample(1).uid: (sample(2).input_ids, 3), sample(2).uid: (sample(2).input_ids, 2)}

    found = problems(tmp_path, ids_of=known.get)
    assert [p for _, p in found] == [
        "its 7 ids differ from the 7 of the source",
        "the loss mask is not 1 exactly from token 2 on",
        "the source does not know this sample",
    ]


def test_sample_in_two_files(tmp_path: Path) -> None:
    """A sample that is in two shards is named with the place of the first."""
    shards = [write_shard(tmp_path, [sample(1), sample(2)]), write_shard(tmp_path, [sample(1)])]
    first = min(shards, key=lambda s: s.path.name)

    assert problems(tmp_path) == [(sample(1).uid, f"is in {first.path.name} at index 0 as well")]


def test_other_manifest_names_both_values(tmp_path: Path) -> None:
    """States of another target are named with both values."""
    write_shard(tmp_path, [sample(1)])

    found = problems(tmp_path, manifest=manifest(target="other"))
    assert found == [("", "manifest: target is 'toy', this run has 'other'")]


def test_torn_file_is_a_finding_not_an_error(tmp_path: Path) -> None:
    """A cut file does not stop verification of the others."""
    shard, other = write_shard(tmp_path, [sample(1)]), write_shard(tmp_path, [sample(2)])
    shard.path.write_bytes(shard.path.read_bytes()[:-3])

    report = verify_shards(tmp_path)
    assert report.bad_files == (shard.path.name,)
    assert (report.files, report.samples) == (2, other.record.n_samples)


def member(number: int, index: int, **changes: Any) -> Member:
    """Return what the database would hold of a sample of 3 prompt and 4 answer tokens."""
    crc = zlib.crc32(sample(number).input_ids[3:].tobytes())
    values = {"n_prompt": 3, "n_output": 4, "output_crc": crc, **changes}
    return Member(sample(number).uid, index, **values)


@pytest.mark.parametrize(
    ("changes", "index", "words"),
    [
        ({}, 1, None),
        ({}, 0, "the database has it at index 0, where"),
        ({}, 9, "the database has it at index 9, where None is"),
        ({"n_prompt": 2, "n_output": 5}, 1, "are not the 2 + 5 tokens of the database"),
        ({"n_output": 3}, 1, "are not the 3 + 3 tokens of the database"),
        ({"output_crc": 1}, 1, "the ids of its answer are not those of the database"),
    ],
)
def test_members_of_the_database(
    tmp_path: Path, changes: dict[str, int], index: int, words: str | None
) -> None:
    """Each member is at its index with the database's token counts and answer ids."""
    shard = write_shard(tmp_path, [sample(1), sample(2)])
    stored = {shard.path.name: [member(1, 0), member(2, index, **changes)]}

    found = problems(tmp_path, members_of=lambda name: stored[name])
    assert [uid for uid, _ in found] == [sample(2).uid] * (words is not None)
    assert all(words in problem for _, problem in found if words)


@pytest.mark.fault("F73")
@pytest.mark.fault("F74")
def test_every_damaged_file_is_found_and_stops_nothing(tmp_path: Path) -> None:
    """Each damaged input under a committed name is named with its cause; a good shard is read."""
    good = write_shard(tmp_path, [sample(1), sample(2)])
    names = [Path(f).name for f in (*fault_row("F73")["files"], *fault_row("F74")["files"])]
    whole = fault_file("disk/ok.safetensors")
    expected = {good.path.name: good.record}
    for name in names:
        (tmp_path / name).write_bytes(fault_file(f"disk/{name}").read_bytes())
        size, digest = whole.stat().st_size, sha256_file(whole)
        expected[name] = ShardRecord(name, digest, size, 1, 10, "m")

    report = verify_shards(tmp_path, expected)

    causes: dict[str, list[str]] = {name: [] for name in names}
    for finding in report.findings:
        causes[finding.file].append(finding.problem)
    assert good.path.name not in report.bad_files
    assert report.samples == 2
    damage = {name: [c for c in causes[name] if "missing tensor" not in c] for name in names}
    assert [name for name in names if not damage[name]] == ["ok.safetensors"]
    words = {
        "cut_data": "cut", "cut_header": "cut inside the header", "empty": "empty",
        "trailing": "follow the last tensor", "huge_header": "claims",
        "zero_header": "zero bytes", "zero_tail": "SHA-256",
    }  # fmt: skip
    for stem, word in words.items():
        assert any(word in cause for cause in damage[f"{stem}.safetensors"]), damage


def test_a_sampled_check_reads_a_share(tmp_path: Path) -> None:
    """About the asked share of samples, the same for the same seed, others for another."""
    shard = write_shard(tmp_path, [sample(n) for n in range(200)])
    expected = {shard.path.name: shard.record}
    seen = [verify_shards(tmp_path, expected, share=0.2, seed=s).samples for s in (1, 1, 2)]
    full = verify_shards(tmp_path, expected)

    assert seen[0] == seen[1]
    assert all(20 < n < 60 for n in seen)
    assert (full.samples, full.bytes_read) == (200, shard.record.file_bytes)
    assert verify_shards(tmp_path, expected, share=0.2).bytes_read < full.bytes_read / 2


def test_a_sampled_check_still_finds_torn_files_and_chosen_damage(tmp_path: Path) -> None:
    """Header, size and counts of all files; states of the chosen samples."""
    shard = write_shard(
        tmp_path, [altered(n, aux=np.full((6, 24), 0x7F80, np.uint16)) for n in range(50)]
    )
    torn = write_shard(tmp_path, [sample(99)])
    torn.path.write_bytes(torn.path.read_bytes()[:-1])
    expected = {s.path.name: s.record for s in (shard, torn)}

    report = verify_shards(tmp_path, expected, share=0.1)
    found = {f.uid for f in report.findings if f.file == shard.path.name}
    assert len(found) == report.samples > 0
    assert torn.path.name in report.bad_files
