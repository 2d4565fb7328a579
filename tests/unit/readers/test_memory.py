"""Rows of 50 MB: read one after the other, in the memory of a few of them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

ROW_BYTES = 50 << 20
N_ROWS = 8
MOST_BYTES = 10 * ROW_BYTES  # to hold eight as bytes and as text would take sixteen

_READ = """
import sys
from eagled.config import DatasetConfig
from eagled.readers.sources import open_source
source = open_source(DatasetConfig(name="d", source=sys.argv[1]))
def peak_kb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line)
base = peak_kb()
rows = faults = 0
for row in source.rows():
    rows += 1
    faults += row.fault is not None
    del row
print(rows, faults, (peak_kb() - base) * 1024)
"""


def _packed(path: Path, parts: list[bytes]) -> None:
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as out:
        for part in parts:
            out.write(part)


def _row(number: int) -> bytes:
    return json.dumps({"id": number, "prompt": f"{number} " + "x" * ROW_BYTES}).encode()


def _write(path: Path, kind: str) -> None:
    if kind == "lines":
        _packed(path, [_row(i) + b"\n" for i in range(N_ROWS)])
    elif kind == "cut array":
        _packed(path, [b"[", *(_row(i) + b"," for i in range(N_ROWS)), _row(0)[:-9]])
    else:
        out = io.BytesIO()
        schema = pa.schema([("prompt", pa.string())])
        with pq.ParquetWriter(out, schema, compression="zstd", use_dictionary=False) as writer:
            for i in range(N_ROWS):
                table = pa.table({"prompt": [f"{i} " + "x" * ROW_BYTES]}, schema=schema)
                writer.write_table(table)
        path.write_bytes(out.getvalue())


@pytest.mark.parametrize(
    ("name", "kind", "faults"),
    [
        ("rows.jsonl.zst", "lines", 0),
        ("rows.json.zst", "cut array", 1),
        ("rows.parquet", "parquet", 0),
    ],
)
def test_memory_is_bounded_by_a_few_rows(tmp_path: Path, name: str, kind: str, faults: int) -> None:
    """Rows are not held: eight take less than all would, and a cut end is one reject."""
    _write(tmp_path / name, kind)
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(tmp_path / name)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    rows, found, grown = map(int, done.stdout.split())

    assert (N_ROWS + faults, faults) == (rows, found)
    assert grown < MOST_BYTES
