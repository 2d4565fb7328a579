"""Shards are written whole or not at all, and hold what was appended."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eagled.errors import ArtifactError, DiskError
from eagled.shards import codecs
from eagled.shards import writer as writer_module
from eagled.shards.container import map_arrays, read_container
from eagled.shards.format import SHARD_FORMAT, Codec, LastPolicy, read_shard_header
from eagled.shards.scan import scan_shards
from eagled.shards.writer import ShardWriter, rewrite_metadata
from tests.faults import fault_file
from tests.unit.shards.helpers import HIDDEN, LAYERS, manifest, random_bits, sample, write_shard

_DISK_ROOM = 4096


def test_layout_is_that_of_the_contract(tmp_path: Path) -> None:
    """Another safetensors reader finds the tensors with the documented dtypes, shapes and rows."""
    items = [sample(1), sample(2, 2, 6), sample(3, 5, 1)]

    shard = write_shard(tmp_path, items)

    tensors = load_file(shard.path)
    assert {k: (str(v.dtype), tuple(v.shape)) for k, v in tensors.items()} == {
        "input_ids": ("torch.int32", (21,)),
        "loss_mask": ("torch.uint8", (21,)),
        "offsets": ("torch.int64", (4,)),
        "aux": ("torch.bfloat16", (18, len(LAYERS) * HIDDEN)),
        "last": ("torch.bfloat16", (11, HIDDEN)),
        "last_positions": ("torch.int32", (11,)),
    }
    assert tensors["offsets"].tolist() == [0, 7, 15, 21]
    aux = tensors["aux"].view(torch.int16).numpy().view(np.uint16)
    for i, item in enumerate(items):
        start = int(tensors["offsets"][i])
        for j in range(len(item.input_ids) - 1):
            assert aux[start - i + j].tolist() == item.aux[j].tolist()


def test_header_names_every_sample(tmp_path: Path) -> None:
    """Uid, sample, attempt, dataset and the rows of `last` of each sample are in the header."""
    shard = write_shard(tmp_path, [sample(1), sample(2)])

    header = read_shard_header(shard.path)
    assert header.manifest == manifest()
    assert header.samples == (sample(1).entry, sample(2).entry)
    assert header.container.metadata["format"] == SHARD_FORMAT
    assert json.loads(header.container.metadata["samples"])[0] == {
        "uid": f"{1:032x}", "sample": 1, "attempt": 1, "n_last": 4, "dataset": "alpha",
    }  # fmt: skip


def test_last_keeps_rows_whose_next_token_is_supervised(tmp_path: Path) -> None:
    """Row j of `last` is kept exactly when loss_mask[j + 1] is 1, for a hand-made mask."""
    shard = write_shard(tmp_path, [sample(1, n_prompt=3, n_output=2)])

    assert load_numpy_ints(shard.path, "last_positions") == [2, 3]


def load_numpy_ints(path: Path, name: str) -> list[int]:
    """Return an integer tensor of a file as a list."""
    return [int(x) for x in map_arrays(read_container(path), [name])[name]]


@pytest.mark.parametrize(("last", "rows"), [("supervised", 4), ("all", 6), ("none", 0)])
def test_every_policy_can_be_written(tmp_path: Path, last: LastPolicy, rows: int) -> None:
    """`none` gives empty tensors, `all` a row for every token but the last."""
    shard = write_shard(tmp_path, [sample(1, last=last)], last)

    assert len(load_numpy_ints(shard.path, "last_positions")) == rows


def test_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    """Writing the same samples again gives the same name, hash and bytes."""
    first = write_shard(tmp_path / "a", [sample(1), sample(2)])
    second = write_shard(tmp_path / "b", [sample(1), sample(2)])

    assert first.record == second.record
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.record.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    assert first.record.file_bytes == first.path.stat().st_size


def test_order_of_samples_changes_the_name(tmp_path: Path) -> None:
    """The name is made from the bytes, so another order is another file."""
    first = write_shard(tmp_path, [sample(1), sample(2)])
    second = write_shard(tmp_path, [sample(2), sample(1)])

    assert first.path.name != second.path.name


def test_discard_leaves_nothing(tmp_path: Path) -> None:
    """A discarded shard leaves no file at all."""
    writer = ShardWriter(tmp_path, manifest())
    writer.append(sample(1))
    writer.discard()

    assert list(tmp_path.iterdir()) == []


def test_empty_shard_is_refused(tmp_path: Path) -> None:
    """A shard without samples is an error, and leaves nothing."""
    writer = ShardWriter(tmp_path, manifest())
    with pytest.raises(ArtifactError, match="without samples"):
        writer.finish()
    writer.discard()

    assert list(tmp_path.iterdir()) == []


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A sample with a row too many is refused before a byte of it is written."""
    writer = ShardWriter(tmp_path, manifest())
    good = sample(1)
    wide = type(good)(
        good.uid, 1, 1, "alpha", good.input_ids[:-1], good.loss_mask[:-1], good.aux, good.last,
        good.last_positions,
    )  # fmt: skip
    with pytest.raises(ArtifactError, match="do not fit"):
        writer.append(wide)
    writer.append(good)

    assert writer.finish().record.n_samples == 1


def test_files_removed_under_an_open_shard(tmp_path: Path) -> None:
    """When a starting daemon removed the temporary files, closing says so and leaves nothing."""
    writer = ShardWriter(tmp_path, manifest())
    writer.append(sample(1))
    scan_shards(tmp_path, {})
    with pytest.raises(ArtifactError, match="removed while the shard was open"):
        writer.finish()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("F72")
def test_full_disk_leaves_old_files_intact(tmp_path: Path) -> None:
    """A write that the system cuts off is a `DiskError`; the old shard stands, no half file."""
    old = write_shard(tmp_path, [sample(1)])
    before = old.path.read_bytes()
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({_DISK_ROOM}, {_DISK_ROOM}))\n"
        "from tests.unit.shards.helpers import sample, write_shard\n"
        "from eagled.errors import DiskError\n"
        "try:\n"
        "    write_shard(Path(sys.argv[1]), [sample(n, 20, 20) for n in range(10)])\n"
        "except DiskError as exc:\n"
        "    sys.exit(str(exc.exit_code) + str(exc))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip

    assert done.stderr.startswith("74cannot write"), done.stderr
    assert [p.name for p in tmp_path.iterdir()] == [old.path.name]
    assert old.path.read_bytes() == before
    retry = write_shard(tmp_path, [sample(n, 20, 20) for n in range(10)])
    assert read_shard_header(retry.path).n_tokens == 400


@pytest.mark.fault("F72")
def test_kill_while_writing_leaves_only_temporary_files(tmp_path: Path) -> None:
    """A process that dies while assembling leaves `*.tmp`, which the next start removes."""
    old = write_shard(tmp_path, [sample(1)])
    script = (
        "import os, sys; from pathlib import Path\n"
        "from eagled.shards import writer\n"
        "from tests.unit.shards.helpers import sample, write_shard\n"
        "writer.os.fsync = lambda fd: os._exit(137)\n"
        "write_shard(Path(sys.argv[1]), [sample(2)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=False, cwd=Path(__file__).parents[3]
    )
    left = sorted(p.name for p in tmp_path.iterdir() if p != old.path)

    assert done.returncode == 137
    assert left
    assert all(name.endswith(".tmp") for name in left)
    report = scan_shards(tmp_path, {old.path.name: old.record})
    assert (report.good, list(report.removed_tmp)) == ((old.path.name,), left)
    assert [p.name for p in tmp_path.iterdir()] == [old.path.name]


def test_disk_error_while_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing fsync of the assembled file is a `DiskError` and removes everything open."""

    def fail(_fd: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("eagled.shards.writer.os.fsync", fail)
    with pytest.raises(DiskError, match="make room"):
        write_shard(tmp_path, [sample(1)])

    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("F72")
def test_final_name_appears_by_rename_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the rename nothing has the final name: when that fails, nothing is left at all."""

    def fail(_self: Path, _target: Path) -> Path:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(DiskError, match="make room"):
        write_shard(tmp_path, [sample(1)])

    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("F72")
def test_full_disk_while_a_shard_is_replaced(tmp_path: Path) -> None:
    """When the copy that should replace a shard does not fit, the old one stands, readable."""
    old = write_shard(tmp_path, [sample(n, 20, 20) for n in range(10)])
    before = old.path.read_bytes()
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({_DISK_ROOM}, {_DISK_ROOM}))\n"
        "from eagled.shards.writer import rewrite_metadata\n"
        "from eagled.errors import DiskError\n"
        "try:\n"
        "    rewrite_metadata(Path(sys.argv[1]), {'note': 'x'})\n"
        "except DiskError as exc:\n"
        "    sys.exit(str(exc.exit_code) + str(exc))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(old.path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip

    assert done.stderr.startswith("74cannot write"), done.stderr
    assert [p.name for p in tmp_path.iterdir()] == [old.path.name]
    assert old.path.read_bytes() == before


@pytest.mark.fault("F75")
def test_rewrite_goes_through_a_new_file(tmp_path: Path) -> None:
    """Adding metadata keeps every value, and a reader that has the old file mapped is unharmed."""
    path = tmp_path / "ok.safetensors"
    path.write_bytes(fault_file("disk/ok.safetensors").read_bytes())
    inode = path.stat().st_ino
    mapped = map_arrays(read_container(path))
    before = {name: array.tolist() for name, array in mapped.items()}

    digest, size = rewrite_metadata(path, {"note": "checked"})

    after = read_container(path)
    assert path.stat().st_ino != inode
    assert {name: array.tolist() for name, array in mapped.items()} == before
    assert {n: a.tolist() for n, a in map_arrays(after).items()} == before
    assert dict(after.metadata) == {"sample": "s-1", "note": "checked"}
    assert (digest, size) == (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)


def test_a_large_shard_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the room for its header nothing is copied; another reader sees the same tensors."""
    items = [sample(n, 20, 20) for n in range(3)]
    small = write_shard(tmp_path / "small", items)
    monkeypatch.setattr(writer_module, "_SMALL_BYTES", 0)
    monkeypatch.setattr(writer_module, "_assemble", None)  # the copy
    large = write_shard(tmp_path / "large", items)

    assert large.record.file_bytes > 1 << 18 > small.record.file_bytes
    assert large.record.sha256 == hashlib.sha256(large.path.read_bytes()).hexdigest()
    ours, theirs = load_file(small.path), load_file(large.path)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[k].view(torch.uint8), theirs[k].view(torch.uint8)) for k in ours)


def test_a_header_that_outgrew_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More samples than the room was made for: the file is copied once, and whole."""
    monkeypatch.setattr(writer_module, "_SMALL_BYTES", 0)
    monkeypatch.setattr(writer_module, "_HEADER_ROOM", 4096)
    shard = write_shard(tmp_path, [sample(n) for n in range(60)])

    assert len(read_shard_header(shard.path).samples) == 60
    assert [p.name for p in tmp_path.iterdir()] == [shard.path.name]


def test_a_write_that_takes_a_part_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unbuffered write may take less than it was given."""
    real = write_shard(tmp_path / "a", [sample(1)])

    class Slow(io.BytesIO):
        def __init__(self, file: BinaryIO) -> None:
            self.file = file

        def write(self, view: Any, /) -> int:
            return self.file.write(view[:7])

    whole = writer_module._write_all
    monkeypatch.setattr(writer_module, "_write_all", lambda file, view: whole(Slow(file), view))
    assert write_shard(tmp_path / "b", [sample(1)]).record == real.record


def test_files_removed_under_a_large_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place or copied: a file that lost its name is not renamed into being."""
    monkeypatch.setattr(writer_module, "_SMALL_BYTES", 0)
    writer = ShardWriter(tmp_path, manifest())
    writer.append(sample(1))
    scan_shards(tmp_path, {})
    with pytest.raises(ArtifactError, match="removed while the shard was open"):
        writer.finish()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("codec", ["raw", "lossless", "fp8"])
def test_memory_stays_at_a_few_pieces_however_long_a_sample_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    """A sample of ninety pieces needs no more memory than the few in flight, with two threads."""
    monkeypatch.setattr(codecs, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(codecs, "BLOCK_BYTES", 1 << 13)
    plan = dataclasses.replace(manifest(), hidden_size=512, codec=codec)
    aux = random_bits(np.random.default_rng(1), (2000, 3 * 512))
    last = np.zeros((1998, 512), np.uint16)
    item = dataclasses.replace(sample(1, 3, 1998), aux=aux, last=last)
    writer = ShardWriter(tmp_path, plan, threads=2)
    tracemalloc.start()
    writer.append(item)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    writer.discard()

    assert peak < 12 << 16 < item.aux.nbytes // 4
